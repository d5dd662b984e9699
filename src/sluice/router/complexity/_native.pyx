# cython: boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""The scorer, compiled: `view`, `signals`, `features` and the arithmetic of `scorer` in one piece.

The Python modules say what is counted and why. Here the same comes out to the byte, and to the
last bit of a score; a request that is out of the ordinary is read by them. What makes the
difference is not so much the arithmetic as that one call touches little code and little memory,
which a loaded gateway's processor has long put out of its caches when the next request comes.
It is one file because it is one unit of compilation: what is in another could not be inlined.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport exp, fabs, log1p, rint, sqrt
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from sluice.router.complexity import features as _features
from sluice.router.complexity import signals as _signals
from sluice.router.complexity import view as _view
from sluice.router.complexity.scored import Scored

cdef extern from "string.h":
    void* memmem(const void* text, size_t size, const void* sign, size_t length) nogil

cdef extern from *:
    """
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif

    static inline unsigned int marked(const uint8_t *bytes, uint8_t byte)
    {
    #ifdef __SSE2__
        __m128i block = _mm_loadu_si128((const __m128i *)bytes);
        return (unsigned int)_mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8((char)byte)));
    #else
        unsigned int bits = 0;
        for (int at = 0; at < 16; at++)
            bits |= (unsigned int)(bytes[at] == byte) << at;
        return bits;
    #endif
    }
    """
    # Which of 16 bytes are this one: a bit each, the lowest for the first.
    unsigned int marked(const uint8_t* bytes, uint8_t byte) nogil
    int __builtin_ctz(unsigned int bits) nogil

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const uint8_t* PyUnicode_1BYTE_DATA(object text)

cdef object _RequestView = _view.RequestView


# Sizes that C has to know before it runs; `_load` compares them with the Python modules'.
cdef enum:
    FIRST = 70  # words that are looked at, of the beginning and of the end
    LAST = 150
    MOST_WORDS = FIRST + LAST
    MOST_HASHES = 2 * MOST_WORDS  # words, the pairs of them, the system message
    BUCKETS = 1 << 18
    HEAD_BYTES = 1 + SIGNALS
    SETS = 8
    MOST_REASONS = 3
    SLOTS = 1024
    SLOT_BYTES = SLOTS // 8  # with a bit a slot
    LETTERS = 4096
    ROOM = 1024  # for a text that was cut, in ASCII
    LOOKED_AT = 8
    LAST_TEXTS = 3
    BLOCK = 16
    STRING_ROOM = 8000  # for the inside of a string that isn't long


# Tables ---------------------------------------------------------------------------------------

cdef enum Kind:  # of a byte, as a word's first one
    NOTHING = 0
    LETTER = 1
    SYMBOL = 2
    LEAD = 3  # of a character of other scripts

cdef enum Mark:  # what else a byte is, of what is counted one by one
    BREAK = 1
    MATHS = 2
    CODE = 4

cdef struct Known:
    # A word of `signals._COUNTS`. No counts: the slot is free.
    uint64_t counts
    uint32_t crc
    uint16_t at
    uint16_t size

cdef uint8_t kinds[256]
cdef uint8_t marks[256]
cdef uint32_t crcs[256]
cdef Known known[SLOTS]
cdef uint8_t letters[LETTERS]
cdef uint8_t escapes[256]  # what a letter behind a backslash stands for

# The bytes of the Python modules' own tables, which live as long as those do.
cdef const uint8_t* at_1 = _signals._AT_1
cdef const uint8_t* at_2 = _signals._AT_2
cdef const uint8_t* at_4 = _signals._AT_4
cdef const uint8_t* at_8 = _signals._AT_8
cdef const uint8_t* lengths = _signals._LENGTH
cdef const uint8_t* contexts = _signals._CONTEXT
cdef const uint8_t* turn_bytes = _signals._TURNS
cdef const uint8_t* line_bytes = _signals._LINES
cdef Py_ssize_t longest = _signals._LONGEST
cdef Py_ssize_t usual_context = len(_signals._CONTEXT)
cdef double most_context = _signals._MOST_CONTEXT
cdef uint32_t system_seed = _features._SYSTEM_SEED
cdef uint8_t version = _features.VERSION
cdef Py_ssize_t long_prompt = _view._LONG
cdef Py_ssize_t long_string = 2 * _view._PIECE
cdef Py_ssize_t head = _view.HEAD
cdef Py_ssize_t tail = _view.TAIL
cdef Py_ssize_t plain_head = _view._PLAIN_HEAD
cdef Py_ssize_t plain_tail = _view._PLAIN_TAIL
cdef Py_ssize_t short_text = _view._SHORT
cdef Py_ssize_t most_turns = _view._MOST_TURNS
cdef Py_ssize_t beginning = _view._BEGINNING
cdef Py_ssize_t last_bytes = _view._END
cdef Py_ssize_t lately = _view._LATELY
cdef Py_ssize_t piece = _view._PIECE
cdef Py_ssize_t opening_piece = _view._OPENING
cdef Py_ssize_t marked_end = _view._MARKED_END
cdef Py_ssize_t system_head = _view._SYSTEM_HEAD


cdef int _load() except -1:
    """Fill the tables."""
    cdef int byte, bit
    cdef uint32_t crc
    sizes = len(_signals.SIGNALS), _features._FIRST, _features._LAST, _features.BUCKETS
    looked_at = _view._MOST_LOOKED_AT, _view._LAST_TEXTS, 2 * _view._PIECE
    if sizes != (SIGNALS, FIRST, LAST, BUCKETS) or looked_at != (LOOKED_AT, LAST_TEXTS, STRING_ROOM):
        raise ImportError("the compiled scorer is of another version: build it anew")
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        crcs[byte] = crc
        kinds[byte] = _kind(byte)
        marks[byte] = BREAK if byte == c"\n" else 0
        escapes[byte] = 0
    for byte in _signals._MATHS_SIGNS:
        marks[byte] |= MATHS
    for byte in _signals._CODE_SIGNS:
        marks[byte] |= CODE
    for letter, meant in zip(b'"\\\\/bfnrt', b'"\\\\/\b\f\n\r\t', strict=True):
        escapes[letter] = meant
    _load_known()
    return 0


cdef Kind _kind(int byte) noexcept:
    """See `features._TOKEN`."""
    if c"a" <= byte <= c"z" or c"0" <= byte <= c"9" or 0x80 <= byte <= 0xBF or 0xC2 <= byte <= 0xE1:
        return LETTER
    if 0xE2 <= byte <= 0xF4:
        return LEAD
    return NOTHING if byte >= 0x80 or _is_space(byte) else SYMBOL


cdef inline bint _is_space(int byte) noexcept nogil:
    return byte == c" " or c"\t" <= byte <= c"\r"


cdef int _load_known() except -1:
    """The words that count, by their CRCs, which a request's words have got anyway."""
    cdef Py_ssize_t at = 0, place
    cdef uint32_t crc
    cdef bytes word
    for word, counts in _signals._COUNTS.items():
        crc = _crc(0, word, len(word))
        place = crc % SLOTS
        while known[place].counts:
            place = (place + 1) % SLOTS
        known[place] = Known(counts, crc, <uint16_t>at, <uint16_t>len(word))
        memcpy(letters + at, <const uint8_t*>word, len(word))
        at += len(word)
    return 0


# Words ----------------------------------------------------------------------------------------

cdef struct Words:
    Py_ssize_t count
    const uint8_t* begin[MOST_WORDS]
    Py_ssize_t size[MOST_WORDS]
    uint32_t crc[MOST_WORDS]


cdef uint32_t _crc(uint32_t begun, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """CRC-32 as zlib's: of data, continued from that of what came before."""
    cdef uint32_t crc = ~begun
    cdef Py_ssize_t at
    for at in range(size):
        crc = crcs[(crc ^ data[at]) & 0xFF] ^ (crc >> 8)
    return ~crc


cdef inline const uint8_t* _word_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Behind the word that begins at a byte; see `features._TOKEN`."""
    cdef Kind kind = <Kind>kinds[at[0]]
    at += 1
    if kind == LEAD:
        while at < end and 0x80 <= at[0] <= 0xBF:
            at += 1
    else:
        while at < end and kinds[at[0]] == kind:
            at += 1
    return at


cdef Py_ssize_t _take_words(
    Words* words, const uint8_t* text, Py_ssize_t size, Py_ssize_t passed
) noexcept nogil:
    """Take the first words of a text, and those of the end behind a number that are passed over.
    Gives how many it has in all."""
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef const uint8_t* begin
    cdef Py_ssize_t seen = 0, place
    while at < end:
        if kinds[at[0]] == NOTHING:
            at += 1
            continue
        begin, at = at, _word_end(at, end)
        place = seen if seen < FIRST else seen - passed
        if (seen < FIRST or place >= FIRST) and place < MOST_WORDS:
            words.begin[place] = begin
            words.size[place] = at - begin
        seen += 1
    return seen


cdef void _find_words(Words* words, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place, all_words = _take_words(words, text, size, 0)
    if all_words > MOST_WORDS:
        _take_words(words, text, size, all_words - MOST_WORDS)
    words.count = min(all_words, MOST_WORDS)
    for place in range(words.count):
        words.crc[place] = _crc(0, words.begin[place], words.size[place])


cdef Py_ssize_t _hash(Words* words, object system, uint32_t* hashes) except -1:
    """The hashes of words, pairs and system message, ascending and distinct; gives their number."""
    cdef Py_ssize_t place, count = words.count, kept = 0
    cdef bytes text
    for place in range(words.count):
        hashes[place] = words.crc[place] % BUCKETS
    for place in range(1, words.count):
        hashes[count] = (
            _crc(words.crc[place - 1], words.begin[place], words.size[place]) % BUCKETS
        )
        count += 1
    if system:
        text = (<str>system).encode("utf-8", "replace")
        hashes[count] = _crc(system_seed, text, len(text)) % BUCKETS
        count += 1
    _sort(hashes, count)
    for place in range(count):
        if kept == 0 or hashes[kept - 1] != hashes[place]:
            hashes[kept] = hashes[place]
            kept += 1
    return kept


cdef void _sort(uint32_t* numbers, Py_ssize_t count) noexcept nogil:
    """Shell's sort: there are a few dozen of them, and some 440 at most."""
    cdef Py_ssize_t gap = 121, place, free
    cdef uint32_t number
    while gap:
        for place in range(gap, count):
            number, free = numbers[place], place
            while free >= gap and numbers[free - gap] > number:
                numbers[free] = numbers[free - gap]
                free -= gap
            numbers[free] = number
        gap //= 3


# Signals --------------------------------------------------------------------------------------

cdef inline uint8_t _byte(double value) noexcept nogil:
    return <uint8_t>min(max(rint(255 * value), 0.0), 255.0)


cdef Py_ssize_t _count(
    const uint8_t* text, Py_ssize_t size, const char* sign, Py_ssize_t length
) noexcept nogil:
    """How often a sign is in a text, as `bytes.count` counts."""
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef Py_ssize_t found = 0
    while True:
        at = <const uint8_t*>memchr(at, sign[0], end - at)
        if at == NULL or end - at < length:
            return found
        if memcmp(at, sign, length) == 0:
            found += 1
            at += length
        else:
            at += 1


cdef Py_ssize_t _choices(const Text* text, Py_ssize_t* first) noexcept nogil:
    """How many answers a text lists, and where the first one begins; see `signals._CHOICE`."""
    cdef const uint8_t* end = text.bytes + text.size
    cdef const uint8_t* line = text.bytes
    cdef const uint8_t* at
    cdef Py_ssize_t found = 0
    while True:
        line = <const uint8_t*>memchr(line, c"\n", end - line)
        if line == NULL:
            return found
        at = line + 1
        while at < end and (at[0] == c" " or at[0] == c"\t"):
            at += 1
        if at < end and at[0] == c"(":
            at += 1
        if (
            end - at >= 3
            and c"a" <= at[0] <= c"j"
            and (at[1] == c"." or at[1] == c")" or at[1] == c":")
            and _is_space(at[2])
        ):
            if found == 0:
                first[0] = line - text.bytes
            found += 1
            line = at + 3
        else:
            line += 1


cdef uint64_t _known_words(const Words* words) noexcept nogil:
    """The counts of all sets, a byte each: how many of its words there are, each counted once."""
    cdef uint8_t counted[SLOT_BYTES]
    cdef uint64_t counts = 0
    cdef Py_ssize_t place
    cdef uint32_t slot
    cdef const Known* word
    memset(counted, 0, sizeof(counted))
    for place in range(words.count):
        slot = words.crc[place] % SLOTS
        while known[slot].counts:
            word = &known[slot]
            if (
                word.crc == words.crc[place]
                and word.size == words.size[place]
                and memcmp(letters + word.at, words.begin[place], word.size) == 0
            ):
                if not counted[slot >> 3] >> (slot & 7) & 1:
                    counted[slot >> 3] |= 1 << (slot & 7)
                    counts += word.counts
                break
            slot = (slot + 1) % SLOTS
    return counts


cdef bint _is_number(const uint8_t* word, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(size):
        if not c"0" <= word[at] <= c"9":
            return False
    return True


cdef void _count_signals(
    const Text* text, const Facts* facts, const Words* words, uint8_t* signals
) noexcept nogil:
    """See `signals.count_signals`."""
    cdef Py_ssize_t breaks = 0, maths = 0, code = 0, numbers = 0, at, first = 0
    cdef Py_ssize_t stem = text.characters
    cdef bint choices
    cdef uint64_t sets = _known_words(words)
    for at in range(text.size):
        if marks[text.bytes[at]]:
            breaks += marks[text.bytes[at]] == BREAK
            maths += marks[text.bytes[at]] == MATHS
            code += marks[text.bytes[at]] == CODE
    code += _count(text.bytes, text.size, "():", 3) + _count(text.bytes, text.size, "```", 3)
    code += _count(text.bytes, text.size, "==", 2)
    choices = breaks >= 3 and _choices(text, &first) >= 3
    if choices:
        stem = min(first, stem)
    if text.foreign >= 0:
        maths += _count(text.bytes, text.size, "\xe2\x88\x9a", 3)  # √
        maths += _count(text.bytes, text.size, "\xe2\x88\xab", 3)  # ∫
    maths += 2 * (sets & 0xFF)
    code = 2 * code + (sets >> 8 & 0xFF)
    for at in range(words.count):
        numbers += _is_number(words.begin[at], words.size[at])
    signals[0] = lengths[min(stem, longest)]
    signals[1] = _context(facts.length)
    signals[2] = turn_bytes[min(facts.turns, 32) - 1]
    signals[3] = line_bytes[min(breaks, 200)]
    signals[4] = at_4[min(maths, 2039)]
    signals[5] = at_8[min(code, 4079)]
    signals[6] = at_1[numbers]
    signals[7] = at_2[sets >> 16 & 0xFF]
    signals[8] = at_2[sets >> 24 & 0xFF]
    signals[9] = at_2[sets >> 32 & 0xFF]
    signals[10] = at_4[sets >> 40 & 0xFF]
    signals[11] = at_2[sets >> 48 & 0xFF]
    signals[12] = 255 if choices else 0
    signals[13] = _looked_up(sets >> 56, words.count)
    signals[14] = 255 if text.characters == 0 else _byte(max(text.foreign, 0.0))
    signals[15] = 255 if facts.tools else 0
    signals[16] = 255 if facts.schema else 0
    signals[17] = 255 if facts.images else 0


cdef uint8_t _context(Py_ssize_t length) noexcept nogil:
    if length < usual_context:
        return contexts[length]
    return <uint8_t>min(rint(255 * (log1p(<double>length) / most_context)), 255.0)


cdef uint8_t _looked_up(uint64_t factual, Py_ssize_t words) noexcept nogil:
    cdef double count = <double>factual
    return _byte(count / (count + 1) * max(1 - <double>words / 30, 0.0))


# The model ------------------------------------------------------------------------------------

@cython.final
cdef class Compiled:
    """Reads and scores requests by one model."""

    def __init__(self, model, list telling, double least_reason, double extreme):
        """Args:
        model: the `Model`.
        telling: of each signal, what each of its values gives as a reason, if any.
        least_reason, extreme: of `scorer`.
        """
        if len(model.table) not in (0, BUCKETS):
            raise ValueError("the table of weights has another size")
        self.bias, self.centre, self.scale = model.bias, model.centre, model.scale
        self.usual_wording = model.usual_wording
        self.least_reason, self.extreme = least_reason, extreme
        self.table, self.telling = model.table, telling
        for place in range(SIGNALS):
            self.weights[place] = model.signals[place] / 255
            self.slopes[place] = model.signals[place]
            self.usual[place] = model.usual[place]

    def read(self, dict members):
        """See `Scorer.read`."""
        cdef Reading reading = self.reading(members)
        return reading.view(), reading.scored()

    def score(self, view):
        """See `Scorer.score`."""
        cdef Reading reading = _of_view(view)
        self._measure(reading)
        return reading.scored()

    cdef Reading reading(self, dict members):
        """The same as `read`, in one object."""
        cdef Reading reading = _read(members)
        self._measure(reading)
        return reading

    cdef int _measure(self, Reading reading) except -1:
        """Score what was read."""
        cdef Text text
        cdef uint8_t room[ROOM]
        cdef str given = reading.text
        cdef bytes lower
        cdef Py_ssize_t at
        text.characters, text.foreign = len(given), -1
        if PyUnicode_IS_ASCII(given) and text.characters <= ROOM:
            text.bytes, text.size = room, text.characters
            _lower(PyUnicode_1BYTE_DATA(given), text.size, room)
            return self._score_text(&text, reading)
        lower = given.lower().encode("utf-8", "replace")
        text.bytes, text.size = lower, len(lower)
        if not PyUnicode_IS_ASCII(given):
            at = len(given.encode("utf-8", "replace"))
            text.foreign = 1 - <double>text.characters / <double>at
        return self._score_text(&text, reading)

    cdef int _score_text(self, const Text* text, Reading reading) except -1:
        cdef Words words
        cdef uint32_t hashes[MOST_HASHES]
        cdef uint8_t signals[SIGNALS]
        cdef Py_ssize_t count
        cdef double wording
        _find_words(&words, text.bytes, text.size)
        count = _hash(&words, reading.system, hashes)
        _count_signals(text, &reading.facts, &words, signals)
        wording = self._wording(hashes, count)
        reading.score = self._score(signals, wording)
        reading.reasons = self._reasons(signals, wording)
        reading.features = _packed(signals, hashes, count)
        return 0

    cdef double _wording(self, const uint32_t* hashes, Py_ssize_t count) noexcept:
        """What the words amount to; see `Scorer._wording`."""
        cdef double total = 0
        cdef Py_ssize_t place
        if len(self.table) == 0 or count == 0:
            return 0
        for place in range(count):
            total += self.table.data.as_floats[hashes[place]]
        return total / sqrt(<double>count)

    cdef double _score(self, const uint8_t* signals, double wording) noexcept:
        cdef double counted = 0, logit
        cdef Py_ssize_t place
        for place in range(SIGNALS):
            counted += self.weights[place] * signals[place]
        logit = (self.bias + counted + wording - self.centre) / self.scale
        if not -self.extreme < logit < self.extreme:
            logit = self.extreme if logit > 0 else -self.extreme
        return 1 / (1 + exp(-logit))

    cdef tuple _reasons(self, const uint8_t* signals, double wording):
        """What moved the score most: the strongest first, and of two as strong the first."""
        cdef double moved[SIGNALS + 1]
        cdef Py_ssize_t told[MOST_REASONS]
        cdef Py_ssize_t count = 0, place, free
        for place in range(SIGNALS):
            moved[place] = (
                (<double>signals[place] / 255 - self.usual[place]) * self.slopes[place] / self.scale
            )
        moved[SIGNALS] = (wording - self.usual_wording) / self.scale
        for place in range(SIGNALS + 1):
            if not fabs(moved[place]) >= self.least_reason:
                continue
            free = count
            while free and fabs(moved[told[free - 1]]) < fabs(moved[place]):
                if free < MOST_REASONS:
                    told[free] = told[free - 1]
                free -= 1
            if free < MOST_REASONS:
                told[free] = place
                count = min(count + 1, MOST_REASONS)
        return tuple([self._reason(told[place], signals, moved) for place in range(count)])

    cdef object _reason(self, Py_ssize_t place, const uint8_t* signals, const double* moved):
        if place == SIGNALS:
            return f"wording={moved[place]:+.2f}"
        return self.telling[place][signals[place]]


cdef void _lower(const uint8_t* text, Py_ssize_t size, uint8_t* lower) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(size):
        lower[at] = text[at] | 0x20 if c"A" <= text[at] <= c"Z" else text[at]


cdef bytes _packed(const uint8_t* signals, const uint32_t* hashes, Py_ssize_t count):
    """See `features.packed`."""
    cdef bytes features = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + 4 * count)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(features)
    cdef Py_ssize_t place, byte
    at[0] = version
    memcpy(at + 1, signals, SIGNALS)
    at += HEAD_BYTES
    for place in range(count):
        for byte in range(4):
            at[byte] = <uint8_t>(hashes[place] >> 8 * byte)
        at += 4
    return features


# The view -------------------------------------------------------------------------------------

cdef struct Span:
    # Of a JSON text; empty where there is nothing.
    const uint8_t* begin
    const uint8_t* end

cdef struct Names:
    # Of the members of an object that are looked at: what it is, if that matters, and what it
    # holds.
    const char* kind
    Py_ssize_t kind_size
    const char* content
    Py_ssize_t content_size

cdef struct Object:
    # A message, or a part of one's content.
    Span whole  # without an end where the text ended before
    Span kind
    Span content
    bint images  # whether there are any in it

cdef struct Parts:
    # Of a content in parts: how many have a text, the first of those, and the last in a ring.
    Py_ssize_t count  # < 0: they are unusual
    bint images  # whether there are any in them
    Span first
    Span last[LAST_TEXTS]

cdef struct Said:
    # What a message says: its content, and of a list the parts.
    Span content
    Parts parts

cdef struct Turns:
    # Of the messages of a request that were read: how many they are, how many are the user's, and
    # the last of those, in a ring.
    Py_ssize_t count
    Py_ssize_t spoken
    Said last[LOOKED_AT]
    Span first_role  # of the first message of all
    Said first
    Said asked  # the user's first one
    Span opening  # the user's first one; without an end where the text ended before
    bint continued  # whether more follows
    const uint8_t* read  # up to where it was read
    bint images  # whether there are any before

cdef Names of_message = Names("role", 4, "content", 7)
cdef Names of_part = Names(NULL, 0, "text", 4)


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Reading:
    """A request that was read, and what it scored."""

    cdef object view(self):
        cdef Facts facts = self.facts
        return _RequestView(
            self.text,
            facts.length,
            self.system,
            facts.turns,
            facts.tools,
            facts.schema,
            facts.images,
            self.opening,
            facts.continued,
        )

    cdef object scored(self):
        return Scored(self.score, self.reasons, self.features)


cdef Reading _of_view(view):
    cdef Reading reading = Reading.__new__(Reading)
    reading.text, reading.system, reading.opening = view.text, view.system, view.opening
    reading.facts.length, reading.facts.turns = max(view.length, 0), max(view.turns, 1)
    reading.facts.tools, reading.facts.schema = view.tools, view.schema
    reading.facts.images, reading.facts.continued = view.images, view.continued
    return reading


cdef Reading _read(dict members):
    """See `view.read_view`."""
    cdef Py_buffer prompt
    cdef Reading reading = None
    messages = members.get("messages")
    if messages is None:
        messages = members.get("input")
    if messages is not None:
        PyObject_GetBuffer(messages, &prompt, PyBUF_SIMPLE)
        try:
            reading = _of_messages(members, messages, &prompt)
        finally:
            PyBuffer_Release(&prompt)
    return _of_view(_view.read_view(members)) if reading is None else reading


cdef Reading _of_messages(dict members, object messages, const Py_buffer* prompt):
    """A reading of messages that are what they should be; None for others."""
    cdef Span text = Span(<const uint8_t*>prompt.buf, <const uint8_t*>prompt.buf + prompt.len)
    cdef bint whole = prompt.len <= long_prompt
    cdef Turns turns
    cdef Reading reading = Reading.__new__(Reading)
    if prompt.len == 0 or text.begin[0] != c"[":
        return None
    if not _read_turns(text.begin, min(text.end, text.begin + beginning), whole, &turns):
        return None
    if whole:
        reading.text = _last_turns(&turns, &turns.asked)
        reading.opening = _opening(text.begin, &turns, prompt.len)
        reading.facts.turns = min(max(turns.spoken, 1), most_turns)
        reading.facts.images = turns.images
        reading.facts.continued = turns.continued
    elif not _read_end(reading, text, &turns):
        return None
    tools = members.get("tools")
    reading.system = _system(members, &turns)
    reading.facts.length = prompt.len
    reading.facts.tools = tools is not None and len(memoryview(tools)) > 2
    reading.facts.schema = (
        "response_format" in members or "text" in members
    ) and _view._wants_json(members)
    return reading


cdef bint _read_end(Reading reading, Span prompt, const Turns* begun) except -1:
    """Read the end of long messages, of which is known how they begin; False where it is
    unusual."""
    cdef const uint8_t* cut = min(prompt.begin + beginning, prompt.end)
    cdef Span end = Span(prompt.end - last_bytes, prompt.end)
    cdef const uint8_t* user = _message_of_user(end)
    cdef Turns turns
    reading.facts.images = (
        begun.images or _has_images(begun.read, cut) or _has_images(end.begin, end.end)
    )
    reading.facts.turns = 1
    _begin(reading, prompt, begun)
    if user != NULL:
        if not _read_turns(user - 1, end.end, True, &turns) or not _is_last(turns.read, end.end):
            return False
        reading.text = _last_turns(&turns, &begun.asked)
        reading.facts.turns = min(turns.spoken, most_turns)
    elif begun.continued and _is_of_others(Span(prompt.end - lately, prompt.end)):
        reading.text = _cut(_content(&begun.asked))
    else:
        reading.text = _cut(_last_piece(end) or _content(&begun.asked))
    return True


cdef int _begin(Reading reading, Span prompt, const Turns* begun) except -1:
    """See `view._begun` and `view._begun_late`."""
    cdef Span first = begun.opening
    cdef const uint8_t* cut = min(prompt.begin + beginning, prompt.end)
    cdef Span end = Span(max(cut, prompt.end - last_bytes), prompt.end)
    if first.begin == NULL or first.end != NULL:
        reading.opening = _opening(prompt.begin, begun, prompt.end - prompt.begin)
        reading.facts.continued = begun.continued
    elif _message_of_user(Span(first.begin, min(first.begin + last_bytes, end.end))) == first.begin:
        reading.opening = _ends(Span(prompt.begin, first.begin)) + _ends(Span(first.begin, cut))
        reading.facts.continued = _find(end, b'"role"', 6) != NULL
    else:
        reading.opening = _ends(prompt)
    return 0


cdef const uint8_t* _message_of_user(Span text) noexcept nogil:
    """Where the first message of a user begins in JSON; NULL if there is none. See `view._USER`."""
    cdef const uint8_t* found = text.begin
    cdef const uint8_t* at
    while True:
        found = _find(Span(found, text.end), b'"user"', 6)
        if found == NULL:
            return NULL
        found += 6
        at = _before(text.begin, found, b'"user"', 6)
        at = _before(text.begin, at, b":", 1)
        at = _before(text.begin, at, b'"role"', 6)
        if at != NULL and at > text.begin and (at - 1)[0] == c",":
            at = _before(text.begin, at, b",", 1)
            at = _before(text.begin, at, b'"message"', 9)
            at = _before(text.begin, at, b":", 1)
            at = _before(text.begin, at, b'"type"', 6)
        if at != NULL and at > text.begin and (at - 1)[0] == c"{":
            return at - 1


cdef bint _is_last(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Whether a list ends here, and all with it."""
    at = _past_space(at, end)
    return at < end and at[0] == c"]" and _past_space(at + 1, end) == end


cdef bint _is_of_others(Span end) noexcept nogil:
    """See `view._is_of_others`."""
    cdef const uint8_t* at = end.end
    while at > end.begin:
        at -= 1
        if _is_at(at, end.end, b'"tool_result"', 13):
            return True
        if _is_at(at, end.end, b'"function_call_output"', 22):
            return True
        if _is_at(at, end.end, b'"role"', 6):
            at = _value_of(at + 6, end.end)
            return at < end.end and at[0] == c'"' and not _is_at(at, end.end, b'"user"', 6)
    return False


cdef str _last_piece(Span end):
    """The last texts of a message in parts, or the end of one; see `view._last_messages`."""
    cdef const uint8_t* at = end.end
    cdef Span text
    cdef list texts = []
    while at > end.begin and len(texts) < LAST_TEXTS:
        at -= 1
        if _is_at(at, end.end, b'"text"', 6):
            text.begin = _value_of(at + 6, end.end)
            if text.begin < end.end and text.begin[0] == c'"':
                text.end = _string_end(text.begin, end.end)
                text.end = end.end if text.end == NULL else text.end - 1
                texts.append(_bytes(Span(text.begin + 1, text.end)))
    if texts:
        return _inside(b"\\n".join(reversed(texts)))
    at = _whole(end, end.end - piece)
    return _inside(_bytes(Span(at, end.end)).rstrip(b" \n]}").removesuffix(b'"'))


cdef str _inside(bytes inner):
    """What the inside of a JSON string says, which may be more than that."""
    cdef bytes string = b'"%b"' % inner
    cdef Span span = Span(<const uint8_t*>string, <const uint8_t*>string + len(string))
    if _string_end(span.begin, span.end) == span.end:
        return _string(span)
    return _view._string(memoryview(string))


cdef inline bint _is_at(
    const uint8_t* at, const uint8_t* end, const char* sign, Py_ssize_t size
) noexcept nogil:
    return end - at >= size and at[0] == sign[0] and memcmp(at, sign, size) == 0


cdef inline const uint8_t* _value_of(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Where the value of a member begins, behind whose name this is; the end if there is none."""
    at = _past_space(at, end)
    return _past_space(at + 1, end) if at < end and at[0] == c":" else end


cdef inline const uint8_t* _find(Span text, const char* sign, Py_ssize_t size) noexcept nogil:
    """Where a sign is first in a text; NULL if it is not."""
    if text.begin >= text.end:
        return NULL
    return <const uint8_t*>memmem(text.begin, text.end - text.begin, sign, size)


cdef bint _has_images(const uint8_t* begin, const uint8_t* end) noexcept nogil:
    """See `view._IMAGE`. Its last letters are looked for: there may be a type in every part."""
    return _has_type(begin, end, b'image"', 6) or _has_type(begin, end, b'image_url"', 10)


cdef inline bint _is_image(Span kind) noexcept nogil:
    """Whether a type is that of an image; see `view._IMAGE`."""
    return (
        _is(kind, "image", 5)
        or _is(kind, "image_url", 9)
        or _is(kind, "input_image", 11)
        or _is(kind, "input_image_url", 15)
    )


cdef inline bint _holds_images(Span value, const uint8_t* end) noexcept nogil:
    """Whether there are images in a value, which has no end where the text ends before. Strings,
    which may be long, need not be looked through."""
    if value.begin >= end or value.begin[0] != c"[" and value.begin[0] != c"{":
        return False
    return _has_images(value.begin, end if value.end == NULL else value.end)


cdef bint _has_type(
    const uint8_t* begin, const uint8_t* end, const char* name, Py_ssize_t size
) noexcept nogil:
    """Whether there is a type of this name, perhaps with `input_` before it."""
    cdef const uint8_t* found = begin
    cdef const uint8_t* at
    while True:
        found = _find(Span(found, end), name, size)
        if found == NULL:
            return False
        at = _before(begin, found, b'"', 1)
        if at == NULL:
            at = _before(begin, found, b'"input_', 7)
        at = _before(begin, at, b":", 1)
        if _before(begin, at, b'"type"', 6) != NULL:
            return True
        found += size


cdef const uint8_t* _before(
    const uint8_t* begin, const uint8_t* at, const char* sign, Py_ssize_t size
) noexcept nogil:
    """Where a sign begins that ends here, and the space before it; NULL if it doesn't end here, or
    there is no place."""
    if at == NULL or at - begin < size or memcmp(at - size, sign, size) != 0:
        return NULL
    at -= size
    while at > begin and _is_space((at - 1)[0]):
        at -= 1
    return at


cdef bint _read_turns(
    const uint8_t* at, const uint8_t* end, bint whole, Turns* turns
) noexcept nogil:
    """Read a list of messages from behind a byte on, or of its beginning the first one of the
    user; False where it is not plainly one."""
    cdef Object turn
    cdef Said said
    memset(turns, 0, sizeof(Turns))
    while True:
        at = _past_space(at + 1, end)
        if at < end and at[0] != c"{":  # no object, or an empty list
            return False
        if not _read_object(at, end, &of_message, &turn, &said.parts):
            return False
        turns.read = turn.whole.end if turn.whole.end != NULL else end
        turns.images = turns.images or turn.images
        if turn.whole.end == NULL:
            turns.opening = turn.whole
            return not whole
        at = _past_space(turn.whole.end, end)
        said.content = turn.content
        if turns.count == 0:
            turns.first, turns.first_role = said, turn.kind
        turns.count += 1
        if _is(turn.kind, "user", 4):
            if turns.spoken == 0:
                turns.opening, turns.asked = turn.whole, said
                turns.continued = at < end and at[0] == c","
                if not whole:
                    return True
            turns.last[turns.spoken % LOOKED_AT] = said
            turns.spoken += 1
        if at == end:
            turns.opening = Span(end, NULL)
            return not whole
        if at[0] == c"]":
            return True


cdef bint _read_object(
    const uint8_t* at, const uint8_t* end, const Names* names, Object* read, Parts* parts
) noexcept nogil:
    """Read the message or the part that begins here, and of a message the parts; False where it is
    unusual."""
    cdef Span key, value
    cdef bint holds
    memset(read, 0, sizeof(Object))
    read.whole.begin = at
    while True:
        at = _past_space(at + 1, end)
        if at >= end:
            return True
        if at[0] == c"}":  # it has no members
            read.whole.end = at + 1
            return True
        if at[0] != c'"':
            return False
        key.begin, key.end = at, _string_end(at, end)
        if key.end == NULL:
            return True
        at = _past_space(key.end, end)
        if at == end:
            return True
        if at[0] != c":":
            return False
        value.begin = _past_space(at + 1, end)
        holds = _is(key, names.content, names.content_size)
        if holds and parts != NULL and value.begin < end and value.begin[0] == c"[":
            value.end = _read_parts(value.begin, end, parts)
            read.images = read.images or parts.images
        else:
            value.end = _value_end(value.begin, end)
            read.images = read.images or _holds_images(value, end)
        if value.end == NULL:
            return True
        if holds:
            read.content = value
        if _is(key, "type", 4):
            read.images = read.images or _is_image(value)
        if names.kind != NULL and _is(key, names.kind, names.kind_size):
            if value.begin[0] != c'"' or _is_escaped(value):
                return False
            read.kind = value
        elif not holds and _is_escaped(key):  # it may be one of those
            return False
        at = _past_space(value.end, end)
        if at == end:
            return True
        if at[0] == c"}":
            read.whole.end = at + 1
            return True
        if at[0] != c",":
            return False


cdef const uint8_t* _read_parts(
    const uint8_t* begin, const uint8_t* end, Parts* parts
) noexcept nogil:
    """Read the list of parts that begins here; gives what is behind it, or NULL if it has no
    end."""
    cdef Object part
    cdef const uint8_t* at = begin
    memset(parts, 0, sizeof(Parts))
    while True:
        at = _past_space(at + 1, end)
        if at < end and at[0] != c"{":
            break
        if not _read_text(at, end, &part) and not _read_object(at, end, &of_part, &part, NULL):
            break
        parts.images = parts.images or part.images
        if part.whole.end == NULL:
            return NULL
        if part.content.end - part.content.begin > 2:
            if parts.count == 0:
                parts.first = part.content
            parts.last[parts.count % LAST_TEXTS] = part.content
            parts.count += 1
        at = _past_space(part.whole.end, end)
        if at < end and at[0] == c"]":
            return at + 1
    at = _value_end(begin, end)
    parts.count, parts.images = -1, _holds_images(Span(begin, at), end)
    return at


cdef bint _read_text(const uint8_t* at, const uint8_t* end, Object* part) noexcept nogil:
    """Read the part that begins here, if it is a text as nearly every client writes it; False for
    any other."""
    cdef Py_ssize_t before
    if _is_at(at, end, b'{"type":"text","text":"', 23):
        before = 22
    elif _is_at(at, end, b'{"type":"input_text","text":"', 29):
        before = 28
    else:
        return False
    memset(part, 0, sizeof(Object))
    part.content.begin = at + before
    part.content.end = _string_end(part.content.begin, end)
    if part.content.end == NULL or part.content.end == end or part.content.end[0] != c"}":
        return False
    part.whole = Span(at, part.content.end + 1)
    return True


cdef inline const uint8_t* _past_space(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and _is_space(at[0]):
        at += 1
    return at


cdef const uint8_t* _string_end(const uint8_t* begin, const uint8_t* end) noexcept nogil:
    """Behind the string that begins here; NULL if it has no end."""
    cdef const uint8_t* at = begin + 1
    cdef unsigned int quotes, backslashes, escaped = 0
    while end - at >= BLOCK:
        quotes, backslashes = marked(at, c'"'), marked(at, c"\\")
        escaped = _escaped(backslashes, escaped >> BLOCK)
        quotes &= ~escaped
        if quotes:
            return at + __builtin_ctz(quotes) + 1
        at += BLOCK
    at += escaped >> BLOCK
    while at < end and at[0] != c'"':
        at += 2 if at[0] == c"\\" else 1
    return at + 1 if at < end else NULL


cdef inline unsigned int _escaped(unsigned int backslashes, unsigned int first) noexcept nogil:
    """Which bytes of a block are escaped, by its backslashes and whether the first byte is. The
    bit above them stands for the byte behind."""
    cdef unsigned int escaped = backslashes << 1 | first
    cdef unsigned int left, lowest
    if not backslashes & escaped:
        return escaped
    escaped, left = first, backslashes & ~first
    while left:
        lowest = left & (0 - left)
        escaped |= lowest << 1
        left &= ~(lowest | lowest << 1)
    return escaped


cdef const uint8_t* _value_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Behind the value that begins here, of JSON that is known to be valid; NULL if it has none."""
    cdef Py_ssize_t depth = 0
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        if byte == c'"':
            at = _string_end(at, end)
            if at == NULL or depth == 0:
                return at
            continue
        if byte == c"[" or byte == c"{":
            depth += 1
        elif depth == 0 and (byte == c"," or byte == c"]" or byte == c"}" or _is_space(byte)):
            return at
        elif byte == c"]" or byte == c"}":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef inline bint _is_escaped(Span string) noexcept nogil:
    return memchr(string.begin, c"\\", string.end - string.begin) != NULL


cdef inline bint _is(Span string, const char* text, Py_ssize_t length) noexcept nogil:
    """Whether a string without escapes, in its quotes, is this text."""
    return (
        string.end - string.begin == length + 2 and memcmp(string.begin + 1, text, length) == 0
    )


cdef str _last_turns(const Turns* turns, const Said* asked):
    """See `view._last_turns`; where there is nothing, what the user said first, which is asked."""
    cdef str text, last = None
    cdef Py_ssize_t back, characters = 0, found = 0
    for back in range(1, min(turns.spoken, LOOKED_AT) + 1):
        text = _content(&turns.last[(turns.spoken - back) % LOOKED_AT])
        if text:
            found += 1
            if found == 1:
                last = text
            elif found == 2:
                last = f"{text}\n{last}"
            characters += len(text)
        if characters >= short_text:
            break
    return _cut(_content(asked) if found == 0 else last)


cdef inline str _cut(str text):
    return text if len(text) <= longest else _view.cut(text)


cdef str _content(const Said* said):
    """See `view._content`."""
    cdef Span content = said.content
    if content.begin == content.end or content.begin[0] != c"[":
        return _string(content)
    if said.parts.count < 0:
        return _view._content(_bytes(content))
    return _texts(&said.parts)


cdef str _texts(const Parts* parts):
    """See `view._texts`."""
    cdef Py_ssize_t back
    cdef list texts = []
    if parts.count > LAST_TEXTS:
        texts.append(_string(parts.first))
    for back in range(min(parts.count, LAST_TEXTS), 0, -1):
        texts.append(_string(parts.last[(parts.count - back) % LAST_TEXTS]))
    return "\n".join(texts)


cdef str _string(Span string):
    """See `view._string`."""
    cdef Py_ssize_t size = string.end - string.begin
    cdef Span inner
    cdef str text, end
    if size < 2 or string.begin[0] != c'"':
        return ""
    inner = Span(string.begin + 1, string.end - 1)
    if size <= long_string:
        text = _unescaped(inner)
    else:
        text = _unescaped(Span(inner.begin, _whole(inner, inner.begin + plain_head)))
        end = _unescaped(Span(_whole(inner, inner.end - plain_tail), inner.end))
        if text is not None and end is not None:
            return f"{text[:head]}\n{end[-tail:]}"
        text = None
    return _view._string(memoryview(_bytes(string))) if text is None else text


cdef const uint8_t* _whole(Span inner, const uint8_t* at) noexcept nogil:
    """See `view._whole`."""
    cdef const uint8_t* run = at
    while run > inner.begin and (run - 1)[0] == c"\\":
        run -= 1
    if (at - run) % 2:
        return at + 1
    while at < inner.end and 0x80 <= at[0] <= 0xBF:
        at += 1
    return at


cdef str _unescaped(Span inner):
    """What the inside of a JSON string says; None where it has escapes by number, or is unusual."""
    cdef uint8_t room[STRING_ROOM]
    cdef const uint8_t* at = inner.begin
    cdef Py_ssize_t size = inner.end - inner.begin
    if size > STRING_ROOM:  # of no characters, or it would have been cut before
        return None
    if memchr(at, c"\\", size) != NULL:
        size = _unescape(inner, room)
        at = room
    if size < 0:
        return None
    try:
        return PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
    except UnicodeDecodeError:
        return None


cdef Py_ssize_t _unescape(Span inner, uint8_t* to) noexcept nogil:
    """Write what the inside of a JSON string says, and give its size; < 0 where that is unusual."""
    cdef const uint8_t* at = inner.begin
    cdef Py_ssize_t size = 0
    while at < inner.end:
        to[size] = at[0]
        if at[0] == c"\\":
            at += 1
            if at == inner.end or not escapes[at[0]]:
                return -1
            to[size] = escapes[at[0]]
        at += 1
        size += 1
    return size


cdef bytes _opening(const uint8_t* begin, const Turns* turns, Py_ssize_t size):
    """See `view._begun`."""
    cdef Span before = Span(begin, turns.opening.begin)
    if turns.opening.begin == NULL:  # the user has said nothing
        return _ends(Span(begin, begin + size))
    if _is_marked(turns.opening):
        return _ends(before) + _view._ends(_view._unmarked(memoryview(_bytes(turns.opening))))
    if turns.opening.end - begin <= 2 * opening_piece:
        return _bytes(Span(begin, turns.opening.end))
    return _ends(before) + _ends(turns.opening)


cdef bint _is_marked(Span message) noexcept nogil:
    """Whether there may be a cache mark at its end."""
    cdef const uint8_t* at = message.end - min(marked_end, message.end - message.begin)
    while at != NULL and message.end - at >= 16:
        if memcmp(at, b'"cache_control"', 15) == 0:
            return True
        at = <const uint8_t*>memchr(at + 1, c'"', message.end - at - 1)
    return False


cdef bytes _ends(Span text):
    """See `view._ends`."""
    cdef Py_ssize_t size = text.end - text.begin
    if size <= 2 * opening_piece:
        return _bytes(text)
    return b"%d%b%b" % (size, text.begin[:opening_piece], (text.end - opening_piece)[:opening_piece])


cdef str _system(dict members, const Turns* turns):
    """See `view._system`."""
    if "system" in members or "instructions" in members:
        return _view._system(members, ())
    if not _is(turns.first_role, "system", 6) and not _is(turns.first_role, "developer", 9):
        return ""
    return _content(&turns.first)[:system_head]


cdef bytes _bytes(Span span):
    return PyBytes_FromStringAndSize(<const char*>span.begin, span.end - span.begin)


_load()
