"""What scoring a request gives."""

from __future__ import annotations

import msgspec


class Scored(msgspec.Struct, frozen=True, gc=False):
    """What a request got.

    Attributes:
        score: 0 to 1; the higher, the more the request gains by a strong model. Its
            distribution differs from model to model and from team to team: compare it with
            thresholds that were calibrated on scores of the same scorer.
        reasons: what moved the score most, the strongest first, as short words without spaces
            and without any of the prompt's text: `maths=+0.81`, `length=-0.25`, in standard
            deviations of the score's logit. `wording` is what all words amount to.
        features: what was scored, hashed: enough to train on and to score again
            (`Scorer.score_features`), and none of the prompt's text. At most 2 kB.
    """

    score: float
    reasons: tuple[str, ...]
    features: bytes
