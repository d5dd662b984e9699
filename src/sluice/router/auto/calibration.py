"""Calibration: which score gives a tier its share of a team's own traffic.

Scores say which of two requests needs a strong model more, and not how much: a threshold that
sends a third of one team's requests to the strong model sends nearly all of another's. So it is
taken from the scores of the team's own last requests. Until there are enough of them the scorer's
own calibration stands in.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sluice.router.auto.documents import AutoPolicy

#: Scores that are kept of an alias and team.
WINDOW = 1_000

#: Fewer of them say less than the scorer's own calibration.
ENOUGH = 100

#: A window is looked at again after so many new scores.
EVERY = 100

#: Windows that are kept in all; the one goes first that was asked for least recently.
_WINDOWS = 4_096


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a tier begins.

    Attributes:
        score: the least one that belongs to it.
        part: of the requests with just this score, the part that belongs to it, 0 to 1. Where many
            requests have one score no threshold alone would give the share.
        below: what the first 8 bytes of the conversations of that part are below, as a number.
    """

    score: float
    part: float = 1.0
    below: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "below", math.ceil(self.part * 2**64))

    def takes(self, score: float, conversation: bytes) -> bool:
        """Whether a request is at or above the cut.

        Args:
            score: the request's.
            conversation: what stands for its conversation, which decides among equals.
        """
        if score != self.score:
            return score > self.score
        return int.from_bytes(conversation[:8]) < self.below


def cut_at(scores: Sequence[float], share: float) -> Cut:
    """The cut that leaves a share of some scores at or above it.

    Args:
        scores: in ascending order, one at least.
        share: 0 to 1.
    """
    if share <= 0:
        return Cut(1.0, 0.0)
    count = len(scores)
    wanted = share * count
    score = scores[max(0, count - math.ceil(wanted))]
    above = count - bisect_right(scores, score)
    equal = count - above - bisect_left(scores, score)
    return Cut(score, min(1.0, max(0.0, (wanted - above) / equal)))


def cuts_of(policy: AutoPolicy, scores: Sequence[float]) -> tuple[Cut, ...]:
    """Where each tier but the first begins.

    Args:
        policy: the tiers.
        scores: of the traffic, in ascending order.
    """
    cuts: list[Cut] = []
    above = sum(tier.share or 0.0 for tier in policy.tiers)
    for tier in policy.tiers[1:]:
        if tier.from_score is not None:
            cuts.append(Cut(tier.from_score))
        else:
            cuts.append(cut_at(scores, above))
            above -= tier.share or 0.0
    return tuple(cuts)


class Window:
    """The last scores of an alias and team, and the cuts that follow from them.

    Attributes:
        scorer: the name of what scored; scores of another say nothing.
    """

    __slots__ = ("_count", "_cuts", "_policy", "_scores", "scorer")

    def __init__(self, scorer: str) -> None:
        """Args:
        scorer: see the attribute.
        """
        self.scorer = scorer
        self._scores = array("d")
        self._count = 0
        self._policy: AutoPolicy | None = None
        self._cuts: tuple[Cut, ...] = ()

    def seed(self, scores: Iterable[float]) -> None:
        """Take in the scores of earlier requests, the oldest first."""
        self.take(list(scores))
        self._policy = None

    @property
    def left(self) -> int:
        """How many more scores are taken in until the cuts are looked at again."""
        return 0 if self._policy is None else EVERY - self._count % EVERY

    def cuts(self, policy: AutoPolicy, quantiles: Sequence[float], score: float) -> tuple[Cut, ...]:
        """Where tiers begin for a request, whose score is taken in.

        Args:
            policy: the tiers.
            quantiles: the scorer's own calibration, in ascending order.
            score: the request's.
        """
        if self._policy is not policy:
            enough = len(self._scores) >= ENOUGH
            cuts = cuts_of(policy, sorted(self._scores) if enough else quantiles)
            if cuts != self._cuts:  # the same ones stay, and what was decided by them
                self._cuts = cuts
            self._policy = policy
        self.take((score,))
        return self._cuts

    def take(self, scores: Sequence[float]) -> None:
        """Take in the scores of requests for which the cuts were known."""
        for at, score in enumerate(scores, self._count):
            if at < WINDOW:
                self._scores.append(score)
            else:
                self._scores[at % WINDOW] = score
        if self._count % EVERY + len(scores) >= EVERY:
            self._policy = None  # look again
        self._count += len(scores)


class Calibration:
    """The windows of every alias and team."""

    def __init__(self) -> None:
        """Of none."""
        self._windows: OrderedDict[tuple[str, str], Window] = OrderedDict()

    def window(self, alias: str, team: str, scorer: str) -> Window:
        """The window of an alias and team; a new one where another scorer begins.

        Args:
            alias, team: whose traffic it is.
            scorer: the name of what scores it.
        """
        known = self._windows.get((alias, team))
        if known is None or known.scorer != scorer:
            known = self._windows[alias, team] = Window(scorer)
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end((alias, team))
        return known
