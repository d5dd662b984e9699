"""Labels become rows to train on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from uuid import UUID

from sluice.router.complexity.features import signals_of, words_of
from sluice.router.complexity.signals import SIGNALS
from sluice.router.training.rows import Row

#: How much a row counts of which there is a cheap signal only.
SIGNAL_WEIGHT = 0.3

#: Two requests of a conversation that share so much of their words ask the same.
SAME_QUESTION = 0.6

_TURNS, _TOOLS = SIGNALS.index("turns"), SIGNALS.index("tools")


@dataclass(frozen=True, slots=True)
class Opinion:
    """One label.

    Attributes:
        source: see the table `route_labels`.
        score: of the answer that was given; None for a comparison.
        strong, weak: of both tiers' answers; None but for a comparison.
    """

    source: str
    score: float | None = None
    strong: float | None = None
    weak: float | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """A routed request and all that is known of it.

    Attributes:
        strong: whether the strong tier answered.
        conversation: that it is part of.
    """

    request_id: UUID
    time: datetime
    features: bytes
    strong: bool
    conversation: bytes
    opinions: Sequence[Opinion]

    def given(self) -> float | None:
        """How good the answer was that was given: what callers said, else what the judge did;
        None where there are only signals."""
        said = [each.score for each in self.opinions if _is_feedback(each)]
        if said:
            return fmean(score for score in said if score is not None)
        judged = next((each for each in self.opinions if each.source == "judge"), None)
        return None if judged is None else judged.strong if self.strong else judged.weak


def row_of(labelled: Labelled) -> Row | None:
    """The row of a request; None where nothing is known of it.

    Of the answer that was given, callers know best. Of the other tier's, only the judge knows.
    Signals are heard where nobody else said anything.
    """
    judged = next((each for each in labelled.opinions if each.source == "judge"), None)
    strong = None if judged is None else judged.strong
    weak = None if judged is None else judged.weak
    given, weight = labelled.given(), 1.0
    if given is None:
        signals = [each.score for each in labelled.opinions if each.score is not None]
        if not signals:
            return None
        given, weight = min(signals), SIGNAL_WEIGHT
    if labelled.strong:
        strong = given
    else:
        weak = given
    return Row(labelled.features, strong, weak, weight, labelled.conversation.hex())


def rows_of(labelled: Iterable[Labelled]) -> list[Row]:
    """The rows of requests. Those with the same features are one: who puts the same prompts to
    both tiers, `auto:economy` and `auto:quality`, and says how it went, has compared them."""
    alike: dict[bytes, list[Row]] = {}
    for each in labelled:
        if (row := row_of(each)) is not None:
            alike.setdefault(row.features, []).append(row)
    return [rows[0] if len(rows) == 1 else _merged(rows) for rows in alike.values()]


def asks_again(before: bytes, after: bytes) -> bool:
    """Whether a request puts its predecessor's question again, in the same or in other words.

    The very same request once more is a program's retry, or a button's, and no sign of anything.
    Neither is an agent's next one, which has what its tools found, but no new words of the user.

    Args:
        before, after: features of two requests of one conversation.
    """
    one, other = set(words_of(before)), set(words_of(after))
    if one == other and not _spoken_since(signals_of(before), signals_of(after)):
        return False
    return bool(one) and len(one & other) >= SAME_QUESTION * len(one | other)


def _spoken_since(before: bytes, after: bytes) -> bool:
    """Whether the user has said something between two requests of the same words, to go by their
    signals; where there are tools, it may be that only they have."""
    return after[_TURNS] > before[_TURNS] and not after[_TOOLS]


def _merged(rows: Sequence[Row]) -> Row:
    strong = [(row.strong, row.weight) for row in rows if row.strong is not None]
    weak = [(row.weak, row.weight) for row in rows if row.weak is not None]
    weight = max(sum(each for _, each in strong), sum(each for _, each in weak))
    return Row(rows[0].features, _mean(strong), _mean(weak), weight, rows[0].group)


def _mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    if not weighted:
        return None
    return sum(value * weight for value, weight in weighted) / sum(each for _, each in weighted)


def _is_feedback(opinion: Opinion) -> bool:
    return opinion.source.startswith("feedback:") and opinion.score is not None
