"""The rule: what is scored by while there are no labels.

Its weights were set by hand, not fitted. They say where strong models were seen to gain most,
which is exact work in several steps: mathematics, reading code, arithmetic in prose. Least is
gained where something is only looked up. Length counts a little.
"""

from __future__ import annotations

from array import array
from math import exp
from statistics import NormalDist

from sluice.router.complexity.model import Model
from sluice.router.complexity.signals import SIGNALS

#: Those not named count nothing. What the request carries besides text (tools, a schema,
#: images) and how long a conversation is are guesses: no outcomes were at hand.
WEIGHTS = {
    "maths": 1.0,
    "code": 1.0,
    "numbers": 0.8,
    "quantities": 0.6,
    "length": 0.6,
    "reasoning": 0.2,
    "constraints": 0.2,
    "writing": 0.1,
    "factual": -0.5,
    "turns": 0.2,
    "tools": 0.2,
    "schema": 0.1,
    "images": 0.1,
}

#: The signals' means over questions of several kinds.
_USUAL = {
    "maths": 0.25,
    "code": 0.2,
    "numbers": 0.25,
    "quantities": 0.15,
    "length": 0.45,
    "reasoning": 0.1,
    "constraints": 0.1,
    "writing": 0.05,
    "factual": 0.05,
}
_SPREAD = 0.7


def rule() -> Model:
    """The rule as a model without words."""
    weights = tuple(WEIGHTS.get(name, 0.0) for name in SIGNALS)
    usual = tuple(_USUAL.get(name, 0.0) for name in SIGNALS)
    # Of a normal distribution, since there is no traffic yet to take them from.
    percents = (NormalDist().inv_cdf(min(max(at / 100, 0.005), 0.995)) for at in range(101))
    return Model(
        bias=0.0,
        signals=weights,
        usual=usual,
        usual_wording=0.0,
        centre=sum(w * u for w, u in zip(weights, usual, strict=True)),
        scale=_SPREAD,
        quantiles=tuple(1 / (1 + exp(-at)) for at in percents),
        table=array("f"),
    )
