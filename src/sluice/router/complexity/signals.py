"""What can be counted of a request: eighteen signals between 0 and 1.

Each is kept as one byte, so that a stored request and a live one have the same values.
"""

from __future__ import annotations

import re
from math import log, log1p

from sluice.router.complexity.view import RequestView

#: Their names, in the order in which they are stored. Stored features and model files depend on
#: the order and on what each means: a change of either needs a new `features.VERSION`.
SIGNALS = (
    "length",  # of the text without the answers it lists, logarithmic
    "context",  # of the whole prompt, logarithmic
    "turns",
    "lines",
    "maths",
    "code",
    "numbers",
    "quantities",  # words of arithmetic in prose: each, twice, how many
    "reasoning",  # why, prove, explain, compare
    "writing",  # write, implement, draft
    "constraints",  # must, exactly, without
    "connectives",  # because, although, if, until: statements that bear on one another
    "choices",  # lists three answers or more: the right one is recognised, not worked out
    "factual",  # who, when, where, which in a short text: looked up, not worked out
    "foreign",  # share of text that is not ASCII
    "tools",
    "schema",
    "images",
)

#: Characters of a text at which `length` is 0, and 1.
_SHORTEST, _LONGEST = 40, 700

_MATHS = frozenset(
    b"""algebra angle area arithmetic circle coefficient compute cosine cube degree denominator
    derivative determinant digits divided divisible eigenvalue ellipse equation evaluate exponent
    expression factor factorial fraction function geometric graph inequality infinite integer
    integers integral intersection interval inverse limit linear log logarithm matrix maximum
    mean median minimum mod modulo multiple multiplied permutation perimeter perpendicular
    polygon polynomial positive prime probability product quadratic quotient radius ratio
    rational real rectangle remainder root roots sequence series simplify sine slope solve sphere
    square sqrt sum tangent theorem triangle variable vector vertex volume frac cdot pi
    theta calculate velocity acceleration mass energy pressure temperature voltage resistance
    moles molar equilibrium density frequency""".split()
)
_CODE = frozenset(
    b"""algorithm api array assert async await bash boolean bug byte class code compile compiler
    config const css database debug def dict docker elif else enum error exception false
    for fn function git golang html http implement import input int java javascript json kotlin
    kubernetes lambda len let linux list loop method module null numpy object output pandas
    parameter print program public python query range react recursion refactor regex return rust
    schema script self sql static str string struct syntax test throw true tuple tuples
    typescript undefined unittest var void while xml yaml""".split()
)
_QUANTITIES = frozenset(
    b"""altogether average cents cost costs day days dollar dollars double each earn earns every
    fewer gave half hour hours left less many minutes month months more much pay per percent
    price remaining sold spend spends third times total triple twice week weeks year years
    """.split()
)
_REASONING = frozenset(
    b"""analyse analyze argue assess compare conclude contrast critique deduce demonstrate derive
    design determine diagnose estimate evaluate explain hence hypothesis implication imply
    infer justify optimal optimise optimize plan predict proof prove reason recommend show
    strategy suppose therefore thus tradeoff why""".split()
)
_WRITING = frozenset(
    b"""article blog build compose create design develop draft email essay generate implement
    letter outline paragraph poem report rewrite story summarise summarize translate write
    """.split()
)
_CONSTRAINTS = frozenset(
    b"""avoid between both exactly except following given incorrect least most must never no not
    only requires same should unless until valid without""".split()
)
_CONNECTIVES = frozenset(
    b"""after although because before but despite however if instead since so then therefore though
    thus unless until when whereas while yet""".split()
)
_FACTUAL = frozenset(
    b"""actor album author band birth born capital cast city country define defined film founded
    game known located meaning movie name named played player president released season sang
    show sings song stands team term tv was were when where which who whom whose won year
    """.split()
)


#: In the order of the bytes in `_COUNTS`.
_SETS = (
    _MATHS,
    _CODE,
    _QUANTITIES,
    _REASONING,
    _WRITING,
    _CONSTRAINTS,
    _CONNECTIVES,
    _FACTUAL,
)
_KNOWN: frozenset[bytes] = frozenset().union(*_SETS)
#: Which sets a word is in, a byte a set: sums of them are the counts of all sets at once.
_COUNTS = {
    word: sum((word in words) << 8 * place for place, words in enumerate(_SETS)) for word in _KNOWN
}

#: `A. `, `b) ` or `(C) ` at the beginning of a line.
_CHOICE = re.compile(rb"\n[ \t]*\(?[a-j][.):]\s")
_FEWEST_CHOICES = 3


def _others(kept: bytes) -> bytes:
    """All bytes but some: what `translate` takes away to leave those."""
    return bytes(set(range(256)) - set(kept))


_MATHS_SIGNS, _CODE_SIGNS = b"=\\^$", b";{_"
_NO_MATHS, _NO_CODE = _others(_MATHS_SIGNS), _others(_CODE_SIGNS)
#: What prose without figures has none of; with the beginnings of longer signs.
_UNMARKED = _others(b"\n0123456789(`" + _MATHS_SIGNS + _CODE_SIGNS)


def _byte(value: float) -> int:
    return min(max(round(255 * value), 0), 255)


def _saturating(count: float, half: float) -> float:
    """0 for none, one half at `half`, towards 1."""
    return count / (count + half)


def _saturated(half: int) -> bytes:
    """The byte of each count, until nothing changes any more."""
    return bytes(_byte(_saturating(count, half)) for count in range(510 * half))


_AT_1, _AT_2, _AT_4, _AT_8 = map(_saturated, (1, 2, 4, 8))
_LENGTH = bytes(
    _byte(log(max(length, _SHORTEST) / _SHORTEST) / log(_LONGEST / _SHORTEST))
    for length in range(_LONGEST + 1)
)
_MOST_CONTEXT = log1p(1_000_000)


def _context_byte(length: int) -> int:
    return min(round(255 * (log1p(length) / _MOST_CONTEXT)), 255)


#: Of prompts of a usual length.
_CONTEXT = bytes(map(_context_byte, range(2_048)))
_TURNS = bytes(_byte(log1p(turns) / log1p(31)) for turns in range(32))
_LINES = bytes(_byte(log1p(breaks) / log1p(200)) for breaks in range(201))


def count_signals(view: RequestView, text: bytes, tokens: list[bytes]) -> bytes:
    """The signals of a request, a byte each.

    Args:
        view: the request.
        text: its text in lower case, in UTF-8.
        tokens: of that, in order; see `features.extract`.
    """
    characters, length = len(view.text), view.length
    stem, choices, breaks, numbers, maths, code = characters, False, 0, 0, 0, 0
    if marks := text.translate(None, _UNMARKED):  # else there is none of all this
        breaks = marks.count(b"\n")
        stem, choices = _stem(text, characters, breaks)
        numbers = sum(map(bytes.isdigit, tokens))
        maths = len(marks.translate(None, _NO_MATHS))
        # In halves, of which a symbol counts two.
        code = 2 * (len(marks.translate(None, _NO_CODE)) + text.count(b"():") + text.count(b"```"))
        code += 2 * text.count(b"==")
    foreign = 0
    if not view.text.isascii():
        maths += text.count("√".encode()) + text.count("∫".encode())
        foreign = _byte(1 - characters / len(view.text.encode("utf-8", "replace")))
    quantities = reasoning = writing = constraints = connectives = factual = 0
    if known := _KNOWN.intersection(tokens):
        words = sum(map(_COUNTS.__getitem__, known)).to_bytes(len(_SETS), "little")
        maths += 2 * words[0]
        code += words[1]
        quantities, reasoning, writing = _AT_2[words[2]], _AT_2[words[3]], _AT_2[words[4]]
        constraints, connectives = _AT_4[words[5]], _AT_2[words[6]]
        if words[7]:
            factual = _looked_up(words[7], len(tokens))
    return bytes(
        (
            _LENGTH[min(stem, _LONGEST)],
            _CONTEXT[length] if length < len(_CONTEXT) else _context_byte(length),
            _TURNS[min(view.turns, 32) - 1],
            _LINES[min(breaks, 200)],
            _AT_4[min(maths, 2039)] if maths else 0,
            _AT_8[min(code, 4079)] if code else 0,
            _AT_1[numbers],
            quantities,
            reasoning,
            writing,
            constraints,
            connectives,
            255 if choices else 0,
            factual,
            foreign if characters else 255,
            255 if view.tools else 0,
            255 if view.schema else 0,
            255 if view.images else 0,
        )
    )


def _stem(text: bytes, characters: int, breaks: int) -> tuple[int, bool]:
    """The characters before the answers that a text lists, and whether it lists any."""
    if breaks < _FEWEST_CHOICES:
        return characters, False
    marks = _CHOICE.findall(text)
    if len(marks) < _FEWEST_CHOICES:
        return characters, False
    return min(text.find(marks[0]), characters), True


def _looked_up(factual: int, tokens: int) -> int:
    """Of a long text, a word that asks for a fact says nothing."""
    return _byte(_saturating(factual, 1) * max(1 - tokens / 30, 0))
