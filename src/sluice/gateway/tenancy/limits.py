"""Limits: what an organisation, a team or a key may do and spend, and what of it binds a caller.

Each level may set any of them; the tightest binds. Values only, nothing here counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from sluice.backends.base import Endpoint
from sluice.billing.prices import nano_usd

Level = Literal["organisation", "team", "key"]

#: What of a level is counted by itself; `all` is everything that isn't.
Part = Literal["all", "budgets", "batch"]
Period = Literal["day", "week", "month"]
Priority = Literal["high", "normal", "low"]

#: Largest budget of a period, in USD. Counters are kept as doubles by the scripts that check them
#: atomically, and doubles count nano-USD exactly up to 2**53, which is a little more.
MAX_BUDGET_USD = 9_000_000

#: From the least urgent on.
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high")


def less_urgent(one: Priority, other: Priority) -> Priority:
    """Of two priorities the less urgent."""
    return min(one, other, key=PRIORITIES.index)


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Bound = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00\s]+$(?!\n)")]


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Money for a calendar period, in the organisation's time zone. Weeks begin on Monday.

    Attributes:
        period: `day`, `week` or `month`.
        limit_usd: the hard stop; None: there is only the alert.
        alert_usd: crossing it is told (log, metric, `GET /v1/limits`), and stops nothing.
    """

    period: Period
    limit_usd: Decimal | None = None
    alert_usd: Decimal | None = None

    def __post_init__(self) -> None:
        if self.limit_usd is None and self.alert_usd is None:
            raise ValueError("a budget has a `limit_usd`, an `alert_usd`, or both")
        for given in (self.limit_usd, self.alert_usd):
            if given is not None:
                nano_usd(given)
                if given > MAX_BUDGET_USD:
                    raise ValueError(f"a budget is at most {MAX_BUDGET_USD} USD a period")

    @property
    def limit_nano_usd(self) -> int | None:
        """The hard stop in nano-USD."""
        return None if self.limit_usd is None else nano_usd(self.limit_usd)

    @property
    def alert_nano_usd(self) -> int | None:
        """The alert in nano-USD."""
        return None if self.alert_usd is None else nano_usd(self.alert_usd)


class Limits(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The limits of one level; None: this level sets none.

    Attributes:
        requests_per_minute: in any 60 seconds.
        tokens_per_minute: prompt and output tokens, in any 60 seconds.
        max_concurrent: requests in progress at the same time.
        batch_requests_per_minute, batch_tokens_per_minute, batch_max_concurrent: the same for
            requests of the batch tier. A level that sets any of them counts those by these, and
            the three above are its interactive requests' alone.
        budgets: at most one a period.
        allowed_models: names, or beginnings of names that end in `*`.
        allowed_endpoints: paths below `/v1`, such as `chat/completions`.
        default_max_tokens: bound on output for requests that give none.
        max_output_tokens: largest bound on output that may be asked for.
        max_stored_bytes: what a team may keep in files; the configuration's where none is set.
        priority: how urgent the requests are where they have to wait.
        isolate_prefix_cache: a prefix cache entry that this team made serves no other team, and
            its time to first token tells no other team what was cached.
        keep_prompts: the text of prompts may be kept with what judges made of the answers; a level
            that says no is not overruled.
    """

    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    max_concurrent: _Count | None = None
    batch_requests_per_minute: _Count | None = None
    batch_tokens_per_minute: _Count | None = None
    batch_max_concurrent: _Count | None = None
    budgets: tuple[Budget, ...] = ()
    allowed_models: tuple[_Name, ...] | None = None
    allowed_endpoints: tuple[Endpoint, ...] | None = None
    default_max_tokens: _Bound | None = None
    max_output_tokens: _Bound | None = None
    max_stored_bytes: _Bytes | None = None
    priority: Priority | None = None
    isolate_prefix_cache: bool | None = None
    keep_prompts: bool | None = None

    def __post_init__(self) -> None:
        periods = [budget.period for budget in self.budgets]
        if len(periods) != len(set(periods)):
            raise ValueError("`budgets` has a period twice")

    @property
    def counted(self) -> bool:
        """Whether a request has to be counted against this level."""
        return (
            self.requests_per_minute is not None
            or self.tokens_per_minute is not None
            or self.max_concurrent is not None
            or bool(self.budgets)
        )

    @property
    def batch(self) -> Limits | None:
        """Those that count batch requests by themselves; None: this level has none."""
        given = Limits(
            requests_per_minute=self.batch_requests_per_minute,
            tokens_per_minute=self.batch_tokens_per_minute,
            max_concurrent=self.batch_max_concurrent,
        )
        return given if given.counted else None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Scope:
    """One level of one caller, with its limits.

    Attributes:
        id: of the organisation, team or key.
        name: for people.
        time_zone: the organisation's, by its IANA name; where its budgets' periods begin.
        part: what of the level's limits these are.
    """

    level: Level
    id: str
    name: str
    limits: Limits
    time_zone: str = "UTC"
    part: Part = "all"

    def counted(self, batch: bool) -> Iterator[Scope]:
        """What a request is counted against: the level as a whole; or, where it counts batch
        requests by themselves, its budgets and what is left of it for the request's tier."""
        apart, limits = self.limits.batch, self.limits
        if apart is None:
            if limits.counted:
                yield self
            return
        rates = replace(self, limits=msgspec.structs.replace(limits, budgets=()))
        tier = replace(self, limits=apart, part="batch") if batch else rates
        if tier.limits.counted:
            yield tier
        if limits.budgets:
            yield replace(self, limits=Limits(budgets=limits.budgets), part="budgets")


@dataclass(frozen=True, slots=True)
class Policy:
    """What binds a caller, of all its levels together.

    Attributes:
        scopes: the levels, from the organisation down to the key.
        counted, counted_batch: what interactive and batch requests are counted against.
        default_max_tokens: the nearest one that is set.
        max_output_tokens, max_stored_bytes: the smallest one that is set.
        endpoints: those that every level allows; None: all.
        priority: the least urgent one that is set, else normal.
        keep_prompts: some level says yes, and none says no.
        models: the patterns of models that each level allows, of those that don't allow all.
    """

    scopes: tuple[Scope, ...] = ()
    counted: tuple[Scope, ...] = ()
    counted_batch: tuple[Scope, ...] = ()
    default_max_tokens: int | None = None
    max_output_tokens: int | None = None
    max_stored_bytes: int | None = None
    endpoints: frozenset[Endpoint] | None = None
    priority: Priority = "normal"
    isolate_prefix_cache: bool = False
    keep_prompts: bool = False
    models: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, scopes: Iterable[Scope]) -> Policy:
        """Of levels given from the organisation down."""
        scopes = tuple(scopes)
        limits = [scope.limits for scope in scopes]
        largest = [each.max_output_tokens for each in limits if each.max_output_tokens is not None]
        stored = [each.max_stored_bytes for each in limits if each.max_stored_bytes is not None]
        allowed = [each.allowed_endpoints for each in limits if each.allowed_endpoints is not None]
        given = [each.priority for each in limits if each.priority is not None]
        return cls(
            scopes=scopes,
            counted=tuple(part for scope in scopes for part in scope.counted(batch=False)),
            counted_batch=tuple(part for scope in scopes for part in scope.counted(batch=True)),
            default_max_tokens=next(
                (
                    each.default_max_tokens
                    for each in reversed(limits)
                    if each.default_max_tokens is not None
                ),
                None,
            ),
            max_output_tokens=min(largest, default=None),
            max_stored_bytes=min(stored, default=None),
            endpoints=frozenset.intersection(*map(frozenset, allowed)) if allowed else None,
            priority=min(given, key=PRIORITIES.index, default="normal"),
            isolate_prefix_cache=any(each.isolate_prefix_cache for each in limits),
            keep_prompts=any(each.keep_prompts for each in limits)
            and all(each.keep_prompts is not False for each in limits),
            models=tuple(each.allowed_models for each in limits if each.allowed_models is not None),
        )

    def allows_model(self, name: str) -> bool:
        """Whether every level allows a model."""
        return not self.models or all(
            any(_matches(name, pattern) for pattern in level) for level in self.models
        )

    def allows_endpoint(self, endpoint: Endpoint) -> bool:
        """Whether every level allows an operation."""
        return self.endpoints is None or endpoint in self.endpoints


NO_POLICY = Policy()


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern
