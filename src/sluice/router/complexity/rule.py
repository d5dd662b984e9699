"""The rule: what is scored by while there are no labels.

Its weights were set by hand, not fitted. They say where strong models were seen to gain most:
exact work in several steps (mathematics, reading code, figures), and statements that bear on one
another. Less is gained where the right answer is listed and only has to be recognised, and least
where something is looked up. Length counts a little.
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
    "connectives": 1.0,
    "maths": 0.8,
    "code": 0.8,
    "numbers": 0.8,
    "length": 0.8,
    "choices": -0.5,
    "factual": -0.5,
    "quantities": 0.2,
    "reasoning": 0.2,
    "constraints": 0.2,
    "turns": 0.2,
    "tools": 0.2,
    "schema": 0.1,
    "images": 0.1,
}

#: The signals' means over questions of several kinds.
_USUAL = {
    "connectives": 0.2,
    "maths": 0.3,
    "code": 0.2,
    "numbers": 0.4,
    "length": 0.5,
    "choices": 0.3,
    "factual": 0.02,
    "quantities": 0.15,
    "reasoning": 0.05,
    "constraints": 0.15,
}
#: The standard deviation of the rule over them.
SPREAD = 0.85


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
        scale=SPREAD,
        quantiles=tuple(1 / (1 + exp(-at)) for at in percents),
        table=array("f"),
    )
