"""`GET /v1/limits`: what a key may do and spend, level by level and all together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from sluice.backends.base import Endpoint
from sluice.billing.prices import NANO
from sluice.gateway.errors import GatewayError
from sluice.gateway.quotas.standing import BudgetState, ScopeState
from sluice.gateway.routes.access import Access
from sluice.gateway.tenancy.limits import Limits, Policy, Scope
from sluice.router.catalog import Catalog

#: Tells what has become of a caller's limits.
StateOf = Callable[[Policy], Awaitable[list[ScopeState]]]


def limit_routes(
    catalog: Catalog, access: Access, state: StateOf | None = None
) -> list[HTTPRouteHandler]:
    """Args:
    catalog: the models that there are.
    state: what remains; None: only the limits are told.
    """

    @get("/v1/limits", summary="The key's limits, and what remains", tags=["usage"])
    async def limits(request: Request[Any, Any, Any]) -> dict[str, Any]:
        principal = (await access.identify(request)).principal
        if principal is None:
            raise GatewayError.forbidden("Limits are a key's; use a team's key.")
        states = [] if state is None else await state(principal.policy)
        return {
            **levels(principal.policy, states),
            "effective": effective(principal.policy, [model.name for model in catalog.models()]),
        }

    return [limits]


def levels(policy: Policy, states: Sequence[ScopeState]) -> dict[str, Any]:
    """Each level with its own limits, and with what has become of them where that is known."""
    known = {(state.level, state.id): state for state in states}
    return {
        scope.level: _level(scope, known.get((scope.level, scope.id))) for scope in policy.scopes
    }


def effective(policy: Policy, models: Sequence[str]) -> dict[str, Any]:
    """What binds, of all levels together."""
    endpoints = [each for each in Endpoint if policy.allows_endpoint(each)]
    return {
        "requests_per_minute": _tightest(policy, "requests_per_minute"),
        "tokens_per_minute": _tightest(policy, "tokens_per_minute"),
        "max_concurrent": _tightest(policy, "max_concurrent"),
        "budgets": [
            {
                "level": scope.level,
                "period": budget.period,
                "limit_usd": _text(budget.limit_usd),
                "alert_usd": _text(budget.alert_usd),
            }
            for scope in policy.scopes
            for budget in scope.limits.budgets
        ],
        "allowed_models": [name for name in models if policy.allows_model(name)],
        "allowed_endpoints": endpoints,
        "default_max_tokens": policy.default_max_tokens,
        "max_output_tokens": policy.max_output_tokens,
        "max_stored_bytes": policy.max_stored_bytes,
        "priority": policy.priority,
        "isolate_prefix_cache": policy.isolate_prefix_cache,
        "keep_prompts": policy.keep_prompts,
    }


def _tightest(policy: Policy, name: str) -> dict[str, Any] | None:
    """The smallest limit of a kind, with the level that sets it; None: no level does."""
    given = [
        (value, scope.level)
        for scope in policy.scopes
        if (value := getattr(scope.limits, name)) is not None
    ]
    if not given:
        return None
    limit, level = min(given, key=lambda each: each[0])
    return {"limit": limit, "level": level}


def _level(scope: Scope, state: ScopeState | None) -> dict[str, Any]:
    own = {name: getattr(scope.limits, name) for name in Limits.__struct_fields__}
    shown = {"id": scope.id, "name": scope.name, **msgspec.to_builtins(own)}
    if scope.level == "organisation":
        shown["time_zone"] = scope.time_zone
    if state is not None:
        shown["state"] = {
            "requests_remaining": state.requests_remaining,
            "tokens_remaining": state.tokens_remaining,
            "in_progress": state.in_progress,
            "budgets": [_budget(budget) for budget in state.budgets],
        }
    return shown


def _budget(state: BudgetState) -> dict[str, Any]:
    return {
        "period": state.period,
        "spent_usd": _usd(state.spent_nano_usd),
        "reserved_usd": _usd(state.reserved_nano_usd),
        "starts_at": state.starts_at,
        "ends_at": state.ends_at,
        "alerted": state.alerted,
    }


def _usd(nano: int) -> str:
    return f"{(Decimal(nano) / NANO).normalize():f}"


def _text(usd: Decimal | None) -> str | None:
    return None if usd is None else str(usd)
