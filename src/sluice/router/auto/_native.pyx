# cython: boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Requests for an alias that are like those before them, compiled.

`AutoRouter.route` says where requests go and why. Most of them need nothing of it that was not
found out for an earlier one: where tiers begin is known until scores have moved, and what was
decided for one request holds for all of its kind. Those are routed here, in one call that touches
little code and little memory; for any other `choose` gives None, and has changed nothing.
"""

from cpython.unicode cimport PyUnicode_DecodeASCII
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sluice.router.complexity._native cimport Compiled, Facts, Reading

from sluice.router.auto import calibration as _calibration
from sluice.router.auto import documents as _documents
from sluice.router.auto.decision import tell as _tell

cdef enum:
    MOST_TIERS = 8
    EVERY = 100  # scores, after which the window is looked at again
    DIGEST = 16  # bytes of what stands for a conversation
    BLOCK = 64
    LINE = 256
    MOST_KNOWN = 16

cdef double ALMOST = 1e-6
cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char* PyUnicode_1BYTE_DATA(object text)


# What stands for a conversation ---------------------------------------------------------------

cdef struct Hash:
    # BLAKE2s, RFC 7693.
    uint32_t state[8]
    uint64_t passed  # bytes of the blocks that are in the state
    uint8_t block[BLOCK]
    uint32_t held  # bytes in the block

cdef uint32_t[8] IV = [
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
]
cdef uint8_t[160] SIGMA = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3,
    11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4,
    7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8,
    9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13,
    2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9,
    12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11,
    13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10,
    6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5,
    10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0,
]


cdef inline uint32_t _turned(uint32_t word, int by) noexcept nogil:
    return word >> by | word << (32 - by)


cdef inline void _mix(
    uint32_t* v, int a, int b, int c, int d, uint32_t x, uint32_t y
) noexcept nogil:
    v[a] += v[b] + x
    v[d] = _turned(v[d] ^ v[a], 16)
    v[c] += v[d]
    v[b] = _turned(v[b] ^ v[c], 12)
    v[a] += v[b] + y
    v[d] = _turned(v[d] ^ v[a], 8)
    v[c] += v[d]
    v[b] = _turned(v[b] ^ v[c], 7)


cdef void _compress(Hash* hash, bint last) noexcept nogil:
    """Take the block into the state."""
    cdef uint32_t v[16]
    cdef uint32_t m[16]
    cdef const uint8_t* s = SIGMA
    cdef int at
    hash.passed += hash.held
    for at in range(16):
        m[at] = (
            hash.block[4 * at]
            | <uint32_t>hash.block[4 * at + 1] << 8
            | <uint32_t>hash.block[4 * at + 2] << 16
            | <uint32_t>hash.block[4 * at + 3] << 24
        )
    for at in range(8):
        v[at], v[at + 8] = hash.state[at], IV[at]
    v[12] ^= <uint32_t>hash.passed
    v[13] ^= <uint32_t>(hash.passed >> 32)
    if last:
        v[14] = ~v[14]
    for at in range(10):
        _mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]])
        _mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]])
        _mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]])
        _mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]])
        _mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]])
        _mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]])
        _mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]])
        _mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]])
        s += 16
    for at in range(8):
        hash.state[at] ^= v[at] ^ v[at + 8]
    hash.held = 0


cdef void _begin(Hash* hash) noexcept nogil:
    memcpy(hash.state, IV, sizeof(IV))
    hash.state[0] ^= 0x01010000 ^ DIGEST
    hash.passed, hash.held = 0, 0


cdef void _update(Hash* hash, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t part
    while size:
        if hash.held == BLOCK:  # the last block is taken otherwise, so a full one waits
            _compress(hash, False)
        part = min(size, <Py_ssize_t>(BLOCK - hash.held))
        memcpy(hash.block + hash.held, data, part)
        hash.held += <uint32_t>part
        data += part
        size -= part


cdef bytes _digest(Hash* hash):
    memset(hash.block + hash.held, 0, BLOCK - hash.held)
    _compress(hash, True)
    return (<const char*>hash.state)[:DIGEST]


# Choosing -------------------------------------------------------------------------------------

cdef struct Border:
    # Where a tier begins: a `calibration.Cut`.
    double score
    uint64_t last  # of those with just this score: conversations up to this number belong to it
    bint none  # of those with just this score none does


cdef struct Line:
    # A line of text under way.
    Py_ssize_t size
    char text[LINE]


@cython.final
cdef class Known:
    """What was decided for one kind of request; see `alias.Kind`."""

    cdef object endpoint, tier, rights
    cdef int wanted, needs
    cdef object course, position
    cdef str before, after  # the score, in what is told


@cython.final
cdef class Choosing:
    """Chooses for the requests of one alias and team, as long as it has one scorer."""

    cdef Compiled scorer
    cdef object standings, clock, policy, make
    cdef dict courses, capabilities
    cdef list known
    cdef Py_ssize_t room, half
    cdef int lowest, highest, fixed
    cdef bint sticky
    cdef Hash begun
    cdef Border borders[MOST_TIERS]
    cdef int count  # of the borders
    cdef double scores[EVERY]
    cdef int taken, left

    def __init__(self, alias, Compiled scorer, standings, dict capabilities, make):
        """Args:
        alias: the `Alias`.
        scorer: its scorer's.
        standings: of conversations.
        capabilities: of `needs`: what a kind of request needs.
        make: an `AutoChoice` of its attributes.
        """
        cdef bytes begun = alias.conversations.begun
        policy = alias.policy
        self.scorer, self.standings, self.policy = scorer, standings, policy
        self.clock, self.half = standings.clock, standings.half
        self.courses, self.capabilities, self.make = alias.courses, capabilities, make
        self.room, self.lowest, self.highest = alias.room, policy.lowest, policy.highest
        self.sticky = policy.sticky
        self.fixed = {"economy": self.lowest, "quality": self.highest}.get(alias.mode, -1)
        _begin(&self.begun)
        _update(&self.begun, begun, len(begun))
        self.known, self.taken, self.left = [], 0, 0

    def follow(self, cuts, int left):
        """From now on tiers begin here.

        Args:
            cuts: the `Cut`s.
            left: how many scores may be taken in until the next look at the window.
        """
        self.count, self.left, self.taken = len(cuts), left, 0
        if not self.courses:  # they were forgotten
            self.known.clear()
        for place, cut in enumerate(cuts):
            self.borders[place].score = cut.score
            self.borders[place].none = cut.below == 0
            self.borders[place].last = max(cut.below - 1, 0)

    def take(self):
        """The scores that were taken in since, which the window is to have."""
        taken, self.taken, self.left = [self.scores[at] for at in range(self.taken)], 0, 0
        return taken

    def choose(self, request, endpoint, str tier, bytes session, bytes conversation, rights):
        """See `AutoRouter.route`; None where it is for that to find out."""
        cdef Reading reading
        cdef bint named = session is not None or conversation is not None
        cdef double score
        cdef Py_ssize_t tokens
        cdef int wanted, least = 0
        cdef Known known
        if self.taken >= self.left:
            return None
        tokens = self._tokens(request)
        if tokens > self.room:
            return None
        reading = self.scorer.reading(request.readable)
        if request.images:
            reading.facts.images = True
        if session or conversation is None:
            conversation = self._conversation(session if session else reading.opening)
        score = reading.score
        if self.sticky and (reading.facts.continued or named):
            standing = self.standings.get(conversation, self.policy)
            if standing is not None:
                score, least = max(score, <double>standing[0]), standing[1]
        wanted = self._wanted(score, conversation, least)
        known = self._known(wanted, endpoint, tier, rights, &reading.facts)
        if known is None:
            return None
        self.scores[self.taken] = score
        self.taken += 1
        decided_on = score
        if self.sticky and self.fixed < 0:
            self._put(conversation, decided_on, known.position)
        return self.make(
            known.course,
            decided_on,
            reading.reasons,
            reading.features,
            tokens,
            conversation,
            _told(known, score, reading.reasons),
        )

    cdef Known _known(self, int wanted, endpoint, tier, rights, const Facts* facts):
        """What was decided for requests of this kind; None: nothing yet."""
        cdef int needs = facts.tools << 2 | facts.images << 1 | facts.schema
        cdef Known known
        for known in self.known:
            if (
                known.wanted == wanted
                and known.needs == needs
                and known.endpoint is endpoint
                and known.tier is tier
                and known.rights is rights
            ):
                return known
        capabilities = self.capabilities[endpoint, facts.tools, facts.images, facts.schema]
        course = self.courses.get((wanted, endpoint, tier, capabilities, rights))
        if course is None:
            return None
        known = Known.__new__(Known)
        known.wanted, known.needs, known.endpoint, known.tier = wanted, needs, endpoint, tier
        known.rights, known.course, known.position = rights, course, course.decision.position
        known.before, after = course.decision.told
        known.after = after + '; because="'
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known.append(known)
        return known

    cdef Py_ssize_t _tokens(self, request) except -1:
        """See `needs.needs_of`; of what is beyond all measure, more than there is room for."""
        cdef Py_ssize_t prompt = request.prompt_characters
        most = request.max_tokens
        if most is None:
            return (prompt + 3) // 4
        if not 0 <= most <= self.room:
            return self.room + 1
        return (prompt + 3) // 4 + <Py_ssize_t>most

    cdef int _put(self, bytes conversation, score, position) except -1:
        """See `Standings.put`."""
        cdef dict young = self.standings.young
        young[conversation] = (score, position, self.policy, self.clock())
        if len(young) >= self.half:
            self.standings.rotate()
        return 0

    cdef bytes _conversation(self, bytes what):
        """See `standings.Conversations.key`."""
        cdef Hash hash = self.begun
        _update(&hash, what, len(what))
        return _digest(&hash)

    cdef int _wanted(self, double score, bytes conversation, int least):
        """See `decision.wanted_tier`."""
        cdef int place, reached = least
        if self.fixed >= 0:
            return self.fixed
        for place in range(least, self.count):
            if _takes(&self.borders[place], score, conversation):
                reached = place + 1
        return min(max(reached, self.lowest), self.highest)


cdef str _told(Known known, double score, tuple reasons):
    """See `decision.tell`."""
    cdef Line line
    cdef double thousandths = 1000 * score + 0.5
    cdef int rounded = <int>thousandths
    cdef str said
    line.size = 0
    _add(&line, known.before)
    line.text[line.size] = c"0" + rounded // 1000
    line.text[line.size + 1] = c"."
    line.text[line.size + 2] = c"0" + rounded // 100 % 10
    line.text[line.size + 3] = c"0" + rounded // 10 % 10
    line.text[line.size + 4] = c"0" + rounded % 10
    line.size += 5
    _add(&line, known.after)
    for place, said in enumerate(reasons):
        if place:
            _add(&line, " ")
        _add(&line, said)
    if line.size > LINE - 8 or not reasons or not ALMOST < thousandths - rounded < 1 - ALMOST:
        return _tell(known.course.decision, score, reasons)  # too long, bare, or hard to round
    line.text[line.size] = c'"'
    return PyUnicode_DecodeASCII(line.text, line.size + 1, NULL)


cdef int _add(Line* line, str text) except -1:
    """Add a text in ASCII; of one that is too long nothing, but that there is no room any more."""
    cdef Py_ssize_t size = len(text)
    if not PyUnicode_IS_ASCII(text) or size > LINE - 8 - line.size:
        line.size = LINE - 6
        return 0
    memcpy(line.text + line.size, PyUnicode_1BYTE_DATA(text), size)
    line.size += size
    return 0


cdef bint _takes(const Border* border, double score, const uint8_t* conversation) noexcept:
    """See `calibration.Cut.takes`."""
    cdef uint64_t number = 0
    cdef int at
    if score != border.score:
        return score > border.score
    for at in range(8):
        number = number << 8 | conversation[at]
    return not border.none and number <= border.last


if (_documents.MOST_TIERS, _calibration.EVERY) != (MOST_TIERS, EVERY):
    raise ImportError("the compiled router is of another version: build it anew")
