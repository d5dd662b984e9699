"""Auto routing, as a stage of the request's path: from a request to a route, and why."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sluice.backends.base import Endpoint
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.decision import BY_SCORE, Ask, Decision, NoModelFits, decide
from sluice.router.auto.documents import AutoPolicy, split_mode
from sluice.router.auto.needs import Needs, needs_of
from sluice.router.auto.scorers import Scorers
from sluice.router.auto.standings import Standings, conversation_key
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Model, Tier
from sluice.router.complexity.view import read_view
from sluice.router.plan import Route
from sluice.router.policy import Router, RoutingRefused
from sluice.wire.request import Request

#: Routes that are remembered; there are as many as orders of models.
_ROUTES = 1_000


class AutoAsk(msgspec.Struct, frozen=True, gc=False):
    """A request for an alias.

    Attributes:
        team: the id of the caller's.
        session: the client's name of the conversation, or None.
        part: what stands for a conversation where a model's versions are tried.
        may_use: whether the caller may use a model.
    """

    endpoint: Endpoint
    request: Request
    tier: Tier
    team: str
    session: bytes | None
    part: str
    may_use: Callable[[str], bool]


class AutoChoice(msgspec.Struct, frozen=True, gc=False):
    """Why a request goes where it goes.

    Attributes:
        alias: that was asked for, without the word after it.
        decision: what was decided.
        score: that was decided on: the request's, or the highest of its conversation.
        reasons: what moved the request's own score most.
        features: what was scored, hashed.
        scorer: the name of what scored.
        needs: what its model must have.
        conversation: what stands for its conversation.
    """

    alias: str
    decision: Decision
    score: float
    reasons: tuple[str, ...]
    features: bytes
    scorer: str
    needs: Needs
    conversation: bytes

    def tier_of(self, model: str | None) -> str:
        """The tier of the model that answered; of one that is in none, the tier decided on."""
        return self.decision.tiers.get(model or "", self.decision.tier)

    def reason(self, model: str | None, calls: int) -> str:
        """For `x-route-reason`: the tier, then what led to it.

        Args:
            model: that answered, or was asked last.
            calls: upstream calls until then.
        """
        decision = self.decision
        parts = [decision.tier, f"by={decision.mode}", f"score={self.score:.3f}"]
        if decision.threshold is not None:
            parts.append(f"threshold={decision.threshold:.3f}")
        if self.reasons:
            parts.append(f'because="{" ".join(self.reasons)}"')
        used = self.tier_of(model)
        if used != decision.tier:
            parts += [f"instead={used}", "after=" + ("failure" if calls > 1 else "rest")]
        return "; ".join(parts)


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
        self._generation = (-1, -1)

    def alias_of(self, name: str, team: str) -> str | None:
        """The alias that a name stands for; None where it is a model's, or nobody's."""
        if self._catalog.get(name) is not None:
            return None
        alias, _ = split_mode(name)
        return None if self._table.auto(alias, team) is None else alias

    def route(self, alias: str, ask: AutoAsk) -> tuple[Route, AutoChoice]:
        """Where a request for an alias goes.

        Args:
            alias: of `alias_of`.
            ask: the request.

        Raises:
            RoutingRefused: no model of the alias can serve it.
        """
        policy = self._table.auto(alias, ask.team)
        if policy is None:  # it was there a moment ago
            raise RoutingRefused(f"The model `{alias}` does not exist", "model", "model_not_found")
        choice = self._choose(alias, policy, ask)
        return self._joined(choice.decision, ask), choice

    def _choose(self, alias: str, policy: AutoPolicy, ask: AutoAsk) -> AutoChoice:
        view = read_view(ask.request.members)
        scorer = self._scorers.of(alias)
        scored = scorer.score(view)
        needs = needs_of(ask.endpoint, ask.request, view, ask.tier)
        conversation = conversation_key(ask.team, alias, ask.session, ask.request)
        score, least = scored.score, 0
        # The first request of a conversation may be another's too: it has nothing to keep to.
        goes_on = policy.sticky and (view.turns > 1 or ask.session is not None)
        standing = self._standings.get(conversation, policy) if goes_on else None
        if standing is not None:
            score, least = max(score, standing.score), standing.tier
        cuts = self._calibration.cuts(policy, alias, ask.team, scorer.name, scorer.quantiles, score)
        _, mode = split_mode(ask.request.model)

        def find(name: str) -> Model | None:
            return self._catalog.get(name) if ask.may_use(name) else None

        try:
            decision = decide(policy, cuts, Ask(score, needs, conversation, mode, least), find)
        except NoModelFits as error:
            raise RoutingRefused(
                f"No model of `{alias}` {error.what}", error.param, "unsupported_model"
            ) from None
        if policy.sticky and decision.mode == BY_SCORE:
            self._standings.put(conversation, score, decision.position, policy)
        return AutoChoice(
            alias,
            decision,
            score,
            scored.reasons,
            scored.features,
            scorer.name,
            needs,
            conversation,
        )

    def _joined(self, decision: Decision, ask: AutoAsk) -> Route:
        """The route over a decision's models: the same one until something changes."""
        generation = (self._catalog.generation, self._table.generation)
        if self._generation != generation or len(self._routes) > _ROUTES:
            self._routes, self._generation = {}, generation
        key = (tuple(decision.tiers), ask.endpoint, ask.tier, self._table.distinct(ask.team))
        known = self._routes.get(key)
        if known is None:
            known = self._join(decision, ask)
            if all(model.canary is None for model in decision.models):  # else it is not all alike
                self._routes[key] = known
        return known

    def _join(self, decision: Decision, ask: AutoAsk) -> Route:
        """One route over the models in order.

        What fails goes to the next one; what does not fit a context, to those of a longer one; and
        what a provider's policy refuses where the first one's configuration says, within the tiers.
        """
        routes = [
            self._router.route(model.name, ask.endpoint, ask.tier, ask.part, ask.team)
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
