"""What can be counted of a request: sixteen signals between 0 and 1.

Each is kept as one byte, so that a stored request and a live one have the same values.
"""

from __future__ import annotations

from collections.abc import Set
from math import log, log1p

from sluice.router.complexity.view import RequestView

#: Their names, in the order in which they are stored. Stored features and model files depend on
#: the order and on what each means: a change of either needs a new `features.VERSION`.
SIGNALS = (
    "length",  # of the text, logarithmic
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
    "factual",  # who, when, where, which in a short text: looked up, not worked out
    "foreign",  # share of text that is not ASCII
    "tools",
    "schema",
    "images",
)

#: Characters of a text at which `length` is 0, and 1.
_SHORTEST, _LONGEST = 40, 1000

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
_FACTUAL = frozenset(
    b"""actor album author band birth born capital cast city country define defined film founded
    game known located meaning movie name named played player president released season sang
    show sings song stands team term tv was were when where which who whom whose won year
    """.split()
)


def count_signals(view: RequestView, tokens: list[bytes], distinct: Set[bytes]) -> bytes:
    """The signals of a request, a byte each.

    Args:
        view: the request.
        tokens: of its text, in order; see `features.extract`.
        distinct: the same without repetitions.
    """
    text = view.text
    maths = 2.0 * len(distinct & _MATHS) + sum(map(text.count, ("\\", "^", "=", "$", "√", "∫")))
    code = 0.5 * len(distinct & _CODE) + sum(map(text.count, ("():", ";", "{", "==", "_", "```")))
    values = (
        log(max(len(text), _SHORTEST) / _SHORTEST) / log(_LONGEST / _SHORTEST),
        log1p(view.length) / log1p(1_000_000),
        log1p(view.turns - 1) / log1p(31),
        log1p(text.count("\n")) / log1p(200),
        _saturating(maths, 4),
        _saturating(code, 4),
        _saturating(sum(map(bytes.isdigit, tokens)), 3),
        _saturating(len(distinct & _QUANTITIES), 2),
        _saturating(len(distinct & _REASONING), 2),
        _saturating(len(distinct & _WRITING), 2),
        _saturating(len(distinct & _CONSTRAINTS), 4),
        _saturating(len(distinct & _FACTUAL), 1) * max(1 - len(tokens) / 30, 0),
        1 - len(text) / max(len(text.encode("utf-8", "replace")), 1),
        float(view.tools),
        float(view.schema),
        float(view.images),
    )
    return bytes(min(max(round(255 * value), 0), 255) for value in values)


def _saturating(count: float, half: float) -> float:
    """0 for none, one half at `half`, towards 1."""
    return count / (count + half)
