"""Auto routing, as a stage of the request's path: from a request to a route, and why."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import msgspec

from sluice.backends.base import Endpoint
from sluice.router.auto.alias import Alias
from sluice.router.auto.calibration import Calibration, Cut
from sluice.router.auto.choice import AutoChoice, Course
from sluice.router.auto.decision import (
    BY_SCORE,
    Ask,
    Decision,
    NoModelFits,
    decide,
    tell,
    wanted_tier,
)
from sluice.router.auto.documents import split_mode
from sluice.router.auto.needs import CAPABILITIES, needs_of
from sluice.router.auto.scorers import Scorers
from sluice.router.auto.standings import Standings
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Model, Tier
from sluice.router.plan import Route
from sluice.router.policy import Router, RoutingRefused, conversation_of
from sluice.wire.request import Request

try:
    from sluice.router.auto._native import Choosing
except ImportError:
    COMPILED = False
else:
    COMPILED = True

#: Routes that are remembered; there are as many as orders of models.
_ROUTES = 1_000

#: Aliases that are remembered, of all teams.
_ALIASES = 4_096


class Caller(Protocol):
    """Whose request it is, as far as that decides on its models."""

    @property
    def models(self) -> Hashable:
        """Stands for what the caller may use: callers with the same may use the same."""

    def allows_model(self, name: str) -> bool:
        """Whether the caller may use a model."""


class AutoAsk(msgspec.Struct, frozen=True, gc=False):
    """A request for an alias; see `AutoRouter.route`."""

    request: Request
    endpoint: Endpoint
    tier: Tier
    session: bytes | None
    conversation: bytes | None
    id: str
    caller: Caller


class AutoRouter:
    """Routes the requests of `auto` aliases."""

    def __init__(
        self,
        catalog: Catalog,
        table: RoutingTable,
        router: Router,
        scorers: Scorers,
        calibration: Calibration,
        standings: Standings,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._router = router
        self._scorers = scorers
        self._calibration = calibration
        self._standings = standings
        self._routes: dict[tuple[tuple[str, ...], Endpoint, Tier, str | None], Route] = {}
        self._aliases: dict[tuple[str, str], Alias] = {}
        self._generation = -1

    def alias_of(self, name: str, team: str) -> str | None:
        """The alias that a name stands for; None where it is a model's, or nobody's."""
        found = self.find(name, team)
        return None if found is None else found.name

    def find(self, name: str, team: str) -> Alias | None:
        """The same, as the team asks for it."""
        if self._catalog.get(name) is not None:
            return None
        self._follow()
        known = self._aliases.get((name, team))
        if known is not None:
            return known
        alias, mode = split_mode(name)
        policy = self._table.auto(alias, team)
        if policy is None:
            return None
        if len(self._aliases) >= _ALIASES:
            self._generation = -1
            self._follow()
        scorer = self._scorers.of(alias)
        window = self._calibration.window(alias, team, scorer.name)
        known = Alias(alias, mode, team, policy, scorer, window, self._catalog.get)
        if COMPILED and scorer.native is not None and known.alike:
            known.choosing = Choosing(
                known, scorer.native, self._standings, CAPABILITIES, AutoChoice
            )
        self._aliases[name, team] = known
        return known

    def _follow(self) -> None:
        """What was derived from other documents, models or scorers is forgotten."""
        # Each of them only grows, and so does their sum.
        generation = self._catalog.generation + self._table.generation + self._scorers.generation
        if self._generation != generation:
            for each in self._aliases.values():
                each.settle()
            self._aliases, self._routes, self._generation = {}, {}, generation

    def route(
        self,
        alias: Alias,
        request: Request,
        endpoint: Endpoint,
        tier: Tier,
        session: bytes | None,
        conversation: bytes | None,
        id: str,
        caller: Caller,
    ) -> AutoChoice:
        """Where a request for an alias goes, and why.

        Args:
            alias: of `find`, for the request's team.
            request: the request.
            endpoint: that it came to.
            tier: its tier.
            session: the client's name of the conversation, or None.
            conversation: what stands for it (`AutoChoice.conversation`) where no session is named
                and it is known which one the request continues.
            id: the request's own.
            caller: whose it is.

        Raises:
            RoutingRefused: no model of the alias can serve it.
        """
        if alias.choosing is not None:
            known = alias.choosing.choose(
                request, endpoint, tier, session, conversation, caller.models
            )
            if known is not None:
                return known
        ask = AutoAsk(request, endpoint, tier, session, conversation, id, caller)
        return self._route(alias, ask)

    def _route(self, alias: Alias, ask: AutoAsk) -> AutoChoice:
        """The same, of a request that may be like none before it."""
        policy, scorer = alias.policy, alias.scorer
        view, scored = scorer.read(ask.request.readable)
        conversation, named = ask.conversation, (ask.session, ask.conversation) != (None, None)
        if ask.session or conversation is None:
            conversation = alias.conversations.key(ask.session, view)
        score, least = scored.score, 0
        # The first request of a conversation may be another's too: it has nothing to keep to.
        if policy.sticky and (view.continued or named):
            standing = self._standings.get(conversation, policy)
            if standing is not None:
                score, least = max(score, standing[0]), standing[1]
        cuts = alias.cuts(score)
        needs = needs_of(ask.endpoint, ask.request, view, ask.tier)
        asked = Ask(score, needs, conversation, alias.mode, least)
        wanted = wanted_tier(policy, cuts, asked)
        kind = (wanted, ask.endpoint, ask.tier, needs.capabilities, ask.caller.models)
        course = alias.courses.get(kind) if needs.tokens <= alias.room else None
        if course is None:
            course = self._decide(alias, cuts, asked, ask)
            alias.remember(kind, needs.tokens, course)
        decision = course.decision
        if policy.sticky and decision.mode == BY_SCORE:
            self._standings.put(conversation, score, decision.position, policy)
        return AutoChoice(
            course,
            score,
            scored.reasons,
            scored.features,
            needs.tokens,
            conversation,
            tell(decision, score, scored.reasons),
        )

    def _decide(self, alias: Alias, cuts: Sequence[Cut], asked: Ask, ask: AutoAsk) -> Course:
        """The models in order, and the route over them."""

        def find(name: str) -> Model | None:
            return self._catalog.get(name) if ask.caller.allows_model(name) else None

        try:
            decision = decide(alias.policy, cuts, asked, find)
        except NoModelFits as error:
            raise RoutingRefused(
                f"No model of `{alias.name}` {error.what}", error.param, "unsupported_model"
            ) from None
        return Course(
            alias.name,
            alias.scorer.name,
            asked.needs.capabilities,
            decision,
            self._joined(decision, alias.team, ask),
        )

    def _joined(self, decision: Decision, team: str, ask: AutoAsk) -> Route:
        """The route over a decision's models: the same one until something changes."""
        self._follow()
        if len(self._routes) > _ROUTES:
            self._routes = {}
        key = (tuple(decision.tiers), ask.endpoint, ask.tier, self._table.distinct(team))
        known = self._routes.get(key)
        if known is None:
            known = self._join(decision, team, ask)
            if all(model.canary is None for model in decision.models):  # else it is not all alike
                self._routes[key] = known
        return known

    def _join(self, decision: Decision, team: str, ask: AutoAsk) -> Route:
        """One route over the models in order.

        What fails goes to the next one; what does not fit a context, to those of a longer one; and
        what a provider's policy refuses where the first one's configuration says, within the tiers.
        """
        conversation = conversation_of(ask.session, ask.id)
        routes = [
            self._router.route(model.name, ask.endpoint, ask.tier, conversation, team)
            for model in decision.models
        ]
        first, *others = (model for each in routes for model in _versions(each))
        return Route(
            first,
            tuple(others),
            tuple(each for each in others if each.context_length > first.context_length),
            tuple(each for each in routes[0].content_policy if each.name in decision.tiers),
        )


def _versions(route: Route) -> tuple[Model, ...]:
    """The versions of its model that a route begins with: the one that is tried and the proven
    one, or one alone. What follows are fallbacks, whose place the tiers take."""
    return (
        route.model,
        *(each for each in route.general[:1] if each.name == route.model.name),
    )
