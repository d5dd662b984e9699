"""The scorer: a rule until there are labels, then a linear model of hashed words.

    scorer = Scorer()                      # the rule, for the cold start
    scorer = Scorer.of_model(model_bytes)  # what training made
    scored = scorer.score(read_view(request.members))
    scored.score, scored.reasons, scored.features

Pure and deterministic: the same request has the same score in every process. Time and memory
are bounded whatever the prompt's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from operator import mul

from sluice.router.complexity import features
from sluice.router.complexity.model import Model, fingerprint, unpack
from sluice.router.complexity.rule import rule
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView

#: A reason is told when it moves the score by so many standard deviations, and how many are.
_LEAST_REASON = 0.1
_MOST_REASONS = 3
#: Where the logistic function is as good as 0 or 1, so that exp doesn't overflow.
_EXTREME = 40.0


@dataclass(frozen=True, slots=True)
class Scored:
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


class Scorer:
    """Scores requests by the rule or by one model.

    Attributes:
        name: `rule`, or `linear-` and the first 12 hex digits of the model file's SHA-256.
        quantiles: 101 scores, ascending: the score below which so many percent of the prompts
            lie that the scorer was calibrated on. To send a share c of such traffic to the
            strong model, take `quantiles[round(100 * (1 - c))]` as threshold. The rule's are a
            guess, as it has seen no traffic.
    """

    def __init__(self, model: Model | None = None, name: str = "rule") -> None:
        """Args:
        model: what to score by; None: the rule.
        name: of the scorer.
        """
        model = model or rule()
        self.name = name
        self.quantiles = model.quantiles
        self._model = model
        # Stored signals are bytes.
        self._weights = [weight / 255 for weight in model.signals]

    @classmethod
    def of_model(cls, data: bytes) -> Scorer:
        """The scorer of a model file, as `training.fit.train` makes it.

        Raises:
            InvalidModel: it is none, of another version, or damaged.
        """
        return cls(unpack(data), f"linear-{fingerprint(data)[:12]}")

    def score(self, view: RequestView) -> Scored:
        """Score a request."""
        found = features.extract(view)
        signals = features.signals_of(found)
        wording = self._wording(found)
        return Scored(self._score(signals, wording), self._reasons(signals, wording), found)

    def score_features(self, found: bytes) -> float:
        """The score of a request of which only `Scored.features` is known, whichever scorer
        made them.

        Raises:
            ValueError: the bytes are no features, or of another version.
        """
        return self._score(features.signals_of(found), self._wording(found))

    def benefit(self, found: bytes) -> float:
        """By how much the strong model's outcome is expected to exceed the weak one's, of a
        request's features; the rule's is in units of its own. Other than scores, benefits of
        models that were fitted apart can be compared.

        Raises:
            ValueError: the bytes are no features, or of another version.
        """
        return self._benefit(features.signals_of(found), self._wording(found))

    def _wording(self, found: bytes) -> float:
        """What the words amount to."""
        table = self._model.table
        if not table:
            return 0.0
        words = features.words_of(found)
        return sum(map(table.__getitem__, words)) / sqrt(max(len(words), 1))

    def _score(self, signals: bytes, wording: float) -> float:
        logit = (self._benefit(signals, wording) - self._model.centre) / self._model.scale
        return 1 / (1 + exp(-min(max(logit, -_EXTREME), _EXTREME)))

    def _benefit(self, signals: bytes, wording: float) -> float:
        counted: float = sum(map(mul, self._weights, signals))
        return self._model.bias + counted + wording

    def _reasons(self, signals: bytes, wording: float) -> tuple[str, ...]:
        model = self._model
        moved = [
            ((value / 255 - usual) * weight / model.scale, name)
            for name, value, usual, weight in zip(
                SIGNALS, signals, model.usual, model.signals, strict=True
            )
        ]
        moved.append(((wording - model.usual_wording) / model.scale, "wording"))
        told = [reason for reason in moved if abs(reason[0]) >= _LEAST_REASON]
        told.sort(key=lambda reason: -abs(reason[0]))
        return tuple(f"{name}={by:+.2f}" for by, name in told[:_MOST_REASONS])
