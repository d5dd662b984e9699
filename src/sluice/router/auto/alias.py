"""An alias as a team asks for it: what follows from documents and models alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from sluice.router.auto.calibration import Cut, Window
from sluice.router.auto.decision import Decision
from sluice.router.auto.documents import AutoPolicy
from sluice.router.auto.standings import Conversations
from sluice.router.catalog import Model
from sluice.router.plan import Route

#: Decisions that are remembered of an alias.
_DECISIONS = 1_000


class Alias:
    """What one name stands for when one team asks for it, until a document or a model changes.

    Where no tier has a second model, a decision depends on nothing but the tier and a few kinds of
    request: it is made once for each, until the cuts move.

    Attributes:
        name: of the alias, without the word after it.
        mode: that word, or None.
        policy: its tiers.
        team: the team's id.
        conversations: the team's.
        window: of its scores; None until one is asked for.
    """

    def __init__(
        self,
        name: str,
        mode: str | None,
        team: str,
        policy: AutoPolicy,
        find: Callable[[str], Model | None],
    ) -> None:
        """Args:
        name, mode, team, policy: see the attributes.
        find: a model by its name.
        """
        self.name = name
        self.mode = mode
        self.policy = policy
        self.team = team
        self.conversations = Conversations(team, name)
        self.window: Window | None = None
        models = [model for each in policy.models() if (model := find(each)) is not None]
        self._room = min((model.context_length for model in models), default=0)
        self._alike = all(len(tier.models) == 1 for tier in policy.tiers) and not any(
            model.canary for model in models
        )
        self._cuts: Sequence[Cut] = ()
        self._decisions: dict[Hashable, tuple[Decision, Route]] = {}

    def known(
        self, cuts: Sequence[Cut], kind: Hashable, tokens: int
    ) -> tuple[Decision, Route] | None:
        """What was decided of such requests, if it holds for this one.

        Args:
            cuts: where its tiers begin; other ones are another time's.
            kind: the tier it is to have, and whatever else decides which models may serve it.
            tokens: that it needs; one that any model has room for is like all others.
        """
        if cuts is not self._cuts:
            self._cuts, self._decisions = cuts, {}
        return self._decisions.get(kind) if tokens <= self._room else None

    def remember(self, kind: Hashable, tokens: int, decided: tuple[Decision, Route]) -> None:
        """Remember what was decided, if it holds for all such requests; see `known`."""
        if self._alike and tokens <= self._room and len(self._decisions) < _DECISIONS:
            self._decisions[kind] = decided
