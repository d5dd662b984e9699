"""The scorer: a rule until there are labels, then a linear model of hashed words.

    scorer = Scorer()                      # the rule, for the cold start
    scorer = Scorer.of_model(model_bytes)  # what training made
    view, scored = scorer.read(request.members)
    scored.score, scored.reasons, scored.features

Pure and deterministic: the same request has the same score in every process. Time and memory
are bounded whatever the prompt's length.

Requests are read and scored by `_native`, which is compiled. Where it could not be built, the
Python that it was made after does the same, to the last bit, and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import exp, sqrt
from operator import add, getitem, itemgetter, mul

from sluice.router.complexity import features
from sluice.router.complexity.model import Model, fingerprint, unpack
from sluice.router.complexity.rule import rule
from sluice.router.complexity.scored import Scored
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView, read_view
from sluice.wire.objects import RawObject

try:
    from sluice.router.complexity._native import Compiled
except ImportError:
    COMPILED = False
else:
    COMPILED = True

#: A reason is told when it moves the score by so many standard deviations, and how many are.
_LEAST_REASON = 0.1
_MOST_REASONS = 3
#: Where the logistic function is as good as 0 or 1, so that exp doesn't overflow.
_EXTREME = 40.0

_NAMES = (*SIGNALS, "wording")

#: Minus the strength of a reason, its place among all, and its words: their order is the order in
#: which they are told.
_Reason = tuple[float, int, str]


class Scorer:
    """Scores requests by the rule or by one model.

    Attributes:
        name: `rule`, or `linear-` and the first 12 hex digits of the model file's SHA-256.
        quantiles: 101 scores, ascending: the score below which so many percent of the prompts
            lie that the scorer was calibrated on. To send a share c of such traffic to the
            strong model, take `quantiles[round(100 * (1 - c))]` as threshold. The rule's are a
            guess, as it has seen no traffic.
        native: the same, compiled; None where it is not.
    """

    def __init__(
        self, model: Model | None = None, name: str = "rule", *, compiled: bool = COMPILED
    ) -> None:
        """Args:
        model: what to score by; None: the rule.
        name: of the scorer.
        compiled: whether requests are read and scored by the compiled code.
        """
        model = model or rule()
        self.name = name
        self.quantiles = model.quantiles
        self._model = model
        # Stored signals are bytes.
        self._weights = [weight / 255 for weight in model.signals]
        #: Of each signal, what each of its values gives as a reason, if any.
        self._telling = [
            [self._reason(place, self._moved(place, value)) for value in range(256)]
            for place in range(len(SIGNALS))
        ]
        self.native = self._compile() if compiled else None

    @classmethod
    def of_model(cls, data: bytes, *, compiled: bool = COMPILED) -> Scorer:
        """The scorer of a model file, as `training.fit.train` makes it.

        Raises:
            InvalidModel: it is none, of another version, or damaged.
        """
        return cls(unpack(data), f"linear-{fingerprint(data)[:12]}", compiled=compiled)

    def read(self, members: RawObject) -> tuple[RequestView, Scored]:
        """Read a request, and score it.

        Args:
            members: the request's, of JSON that was checked (`wire.request.Request.members`).
        """
        if self.native is not None:
            return self.native.read(members)
        view = read_view(members)
        return view, self.score(view)

    def score(self, view: RequestView) -> Scored:
        """Score a request that was read."""
        if self.native is not None:
            return self.native.score(view)
        signals, words = features.seen(view)
        wording = self._wording(words) if self._model.table else 0.0
        return Scored(
            self._score(signals, wording),
            self._reasons(signals, wording),
            features.packed(signals, words),
        )

    def score_features(self, found: bytes) -> float:
        """The score of a request of which only `Scored.features` is known, whichever scorer
        made them.

        Raises:
            ValueError: the bytes are no features, or of another version.
        """
        return self._score(features.signals_of(found), self._wording(features.words_of(found)))

    def benefit(self, found: bytes) -> float:
        """By how much the strong model's outcome is expected to exceed the weak one's, of a
        request's features; the rule's is in units of its own. Other than scores, benefits of
        models that were fitted apart can be compared.

        Raises:
            ValueError: the bytes are no features, or of another version.
        """
        return self._benefit(features.signals_of(found), self._wording(features.words_of(found)))

    def _compile(self) -> Compiled:
        telling = [["" if each is None else each[2] for each in told] for told in self._telling]
        return Compiled(self._model, telling, _LEAST_REASON, _EXTREME)

    def _wording(self, words: Sequence[int]) -> float:
        """What the words amount to."""
        table = self._model.table
        if not table or not words:
            return 0.0
        if len(words) == 1:  # of which a getter makes no tuple
            return table[words[0]]
        weights: tuple[float, ...] = itemgetter(*words)(table)
        return _total(weights) / sqrt(len(words))

    def _score(self, signals: bytes, wording: float) -> float:
        logit = (self._benefit(signals, wording) - self._model.centre) / self._model.scale
        if not -_EXTREME < logit < _EXTREME:
            logit = _EXTREME if logit > 0 else -_EXTREME
        return 1 / (1 + exp(-logit))

    def _benefit(self, signals: bytes, wording: float) -> float:
        return self._model.bias + _total(map(mul, self._weights, signals)) + wording

    def _reasons(self, signals: bytes, wording: float) -> tuple[str, ...]:
        told = list(filter(None, map(getitem, self._telling, signals)))
        by = (wording - self._model.usual_wording) / self._model.scale
        if (reason := self._reason(len(SIGNALS), by)) is not None:
            told.append(reason)
        told.sort()
        return tuple([words for _, _, words in told[:_MOST_REASONS]])

    def _moved(self, place: int, value: int) -> float:
        """By how many standard deviations a signal's value moves the score's logit."""
        model = self._model
        return (value / 255 - model.usual[place]) * model.signals[place] / model.scale

    def _reason(self, place: int, by: float) -> _Reason | None:
        """None: it moves too little to be told."""
        return (-abs(by), place, f"{_NAMES[place]}={by:+.2f}") if abs(by) >= _LEAST_REASON else None


def _total(terms: Iterable[float]) -> float:
    """Their sum, rounded at each step; `sum` is more exact from Python 3.12 on."""
    return reduce(add, terms, 0.0)
