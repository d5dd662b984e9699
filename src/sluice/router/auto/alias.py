"""An alias as a team asks for it: what follows from documents, models and scorers alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from sluice.backends.base import Endpoint
from sluice.router.auto.calibration import Cut, Window
from sluice.router.auto.choice import Course
from sluice.router.auto.documents import AutoPolicy
from sluice.router.auto.standings import Conversations
from sluice.router.catalog import Capability, Model, Tier
from sluice.router.complexity.scorer import Scorer

if TYPE_CHECKING:
    from sluice.router.auto._native import Choosing

#: Courses that are remembered of an alias.
_COURSES = 1_000

#: What decides which models may serve a request: the tier it is to have, its operation, its own
#: tier, what its model must be able to do, and what stands for what the caller may use.
Kind = tuple[int, Endpoint, Tier, frozenset[Capability], Hashable]


class Alias:
    """What one name stands for when one team asks for it, until a document, a model or a scorer
    changes.

    Where no tier has a second model, a decision depends on nothing but the kind of request: it is
    made once for each, until the cuts move.

    Attributes:
        name: of the alias, without the word after it.
        mode: that word, or None.
        team: the team's id.
        policy: its tiers.
        scorer: scores its requests.
        window: the scores that it had.
        conversations: the team's.
        alike: whether no tier has a second model.
        room: tokens for which every model has room.
        courses: what was decided, by kind, for requests that every model has room for.
        choosing: routes those that are like earlier ones; None where none are, or where it could
            not be compiled.
    """

    def __init__(
        self,
        name: str,
        mode: str | None,
        team: str,
        policy: AutoPolicy,
        scorer: Scorer,
        window: Window,
        find: Callable[[str], Model | None],
    ) -> None:
        """Args:
        name, mode, team, policy, scorer, window: see the attributes.
        find: a model by its name.
        """
        self.name = name
        self.mode = mode
        self.team = team
        self.policy = policy
        self.scorer = scorer
        self.window = window
        self.conversations = Conversations(team, name)
        models = [model for each in policy.models() if (model := find(each)) is not None]
        self.room = min((model.context_length for model in models), default=0)
        self.courses: dict[Kind, Course] = {}
        self.choosing: Choosing | None = None
        self.alike = all(len(tier.models) == 1 for tier in policy.tiers) and not any(
            model.canary for model in models
        )
        self._cuts: Sequence[Cut] = ()

    def cuts(self, score: float) -> Sequence[Cut]:
        """Where tiers begin for a request, whose score is taken in."""
        self.settle()
        cuts = self.window.cuts(self.policy, self.scorer.quantiles, score)
        if cuts is not self._cuts:  # thresholds are a part of what was decided
            self._cuts = cuts
            self.courses.clear()
        if self.choosing is not None:
            self.choosing.follow(cuts, self.window.left)
        return cuts

    def settle(self) -> None:
        """Have the window take in what is still to be."""
        if self.choosing is not None:
            self.window.take(self.choosing.take())

    def remember(self, kind: Kind, tokens: int, course: Course) -> None:
        """Remember what was decided, if it holds for all requests of a kind.

        Args:
            kind: of the request.
            tokens: that it needs.
            course: on it.
        """
        if self.alike and tokens <= self.room and len(self.courses) < _COURSES:
            self.courses[kind] = course
