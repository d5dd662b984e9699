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
from dataclasses import dataclass

from sluice.router.auto.documents import AutoPolicy

#: Scores that are kept of an alias and team.
WINDOW = 1_000

#: Fewer of them say less than the scorer's own calibration.
ENOUGH = 100

#: A window is looked at again after so many new scores.
_EVERY = 100

#: Windows that are kept in all; the least recently used one goes first.
_WINDOWS = 4_096


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a tier begins.

    Attributes:
        score: the least one that belongs to it.
        part: of the requests with just this score, the part that belongs to it, 0 to 1. Where many
            requests have one score no threshold alone would give the share.
    """

    score: float
    part: float = 1.0

    def takes(self, score: float, conversation: bytes) -> bool:
        """Whether a request is at or above the cut.

        Args:
            score: the request's.
            conversation: what stands for its conversation, which decides among equals.
        """
        if score != self.score:
            return score > self.score
        return int.from_bytes(conversation[:8]) < self.part * 2**64


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


class _Window:
    """The last scores of an alias and team, and the cuts that follow from them."""

    __slots__ = ("count", "cuts", "policy", "scorer", "scores")

    def __init__(self, scorer: str) -> None:
        self.scorer = scorer
        self.scores = array("d")
        self.count = 0
        self.policy: AutoPolicy | None = None
        self.cuts: tuple[Cut, ...] = ()

    def add(self, score: float) -> None:
        if len(self.scores) < WINDOW:
            self.scores.append(score)
        else:
            self.scores[self.count % WINDOW] = score
        self.count += 1
        if self.count % _EVERY == 0 and len(self.scores) >= ENOUGH:
            self.policy = None  # look again


class Calibration:
    """The cuts of every alias and team."""

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()

    def seed(self, alias: str, team: str, scorer: str, scores: Iterable[float]) -> None:
        """Scores of earlier requests, the oldest first."""
        window = self._window(alias, team, scorer)
        for score in scores:
            window.add(score)
        window.policy = None

    def cuts(
        self,
        policy: AutoPolicy,
        alias: str,
        team: str,
        scorer: str,
        quantiles: Sequence[float],
        score: float,
    ) -> tuple[Cut, ...]:
        """Where tiers begin for a request, whose score is taken in.

        Args:
            policy: the tiers.
            alias, team: whose traffic it is.
            scorer: the name of what scored; scores of another say nothing.
            quantiles: the scorer's own calibration, in ascending order.
            score: the request's.
        """
        window = self._window(alias, team, scorer)
        if window.policy is not policy:
            enough = len(window.scores) >= ENOUGH
            window.cuts = cuts_of(policy, sorted(window.scores) if enough else quantiles)
            window.policy = policy
        window.add(score)
        return window.cuts

    def _window(self, alias: str, team: str, scorer: str) -> _Window:
        known = self._windows.get((alias, team))
        if known is None or known.scorer != scorer:
            known = self._windows[alias, team] = _Window(scorer)
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end((alias, team))
        return known
