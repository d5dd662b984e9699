"""A preview: where the last requests of an alias would have gone by another document, and what
they would have cost.

Requests to an `auto` alias are decided again, on the scores, needs and conversations of their
records; where a new scorer is in force they are scored again by their features. Whatever rested
then, and which models single keys may use, is left aside. Tokens are taken as they were, though
another model might have said more or less.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import asyncpg
import msgspec

from sluice.billing.prices import Price, usd
from sluice.router.auto.calibration import cuts_of
from sluice.router.auto.decision import Ask, NoModelFits, decide
from sluice.router.auto.documents import AutoPolicy, RoutingDocument
from sluice.router.auto.needs import Needs
from sluice.router.auto.scorers import Scorers
from sluice.router.catalog import Capability, Catalog
from sluice.router.complexity.scorer import Scorer
from sluice.wire.usage import Usage

#: Requests that are looked at.
REQUESTS = 1_000

#: In this time, in days.
_DAYS = 30

#: The part of requests that no model would have served.
NOBODY = ""


class PreviewPart(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that go to one model, or to one deployment.

    Attributes:
        tier: of an `auto` alias; None: it is none.
        model: empty for requests that no model of the document can serve.
        deployment: None where models are chosen.
        requests: how many; with weights, how many are to be expected.
        share: of all.
        cost_usd: in USD, exactly so in `cost_nano_usd`.
    """

    tier: str | None
    model: str
    deployment: str | None
    requests: float
    share: float
    cost_nano_usd: int
    cost_usd: float


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a document would have made of the last requests.

    Attributes:
        requests: that were looked at, 1,000 at most.
        start, end: of their times; None where there are none.
        was: where they went.
        would: where they would have gone.
        cost_usd, would_cost_usd: of all, in USD; exactly so in nano-USD.
    """

    alias: str
    requests: int
    start: datetime | None
    end: datetime | None
    was: list[PreviewPart]
    would: list[PreviewPart]
    cost_nano_usd: int
    cost_usd: float
    would_cost_nano_usd: int
    would_cost_usd: float


_COLUMNS = (
    "r.time, r.team_id, r.model_used, r.deployment, r.tier AS served_as, r.input_tokens,"
    " r.cached_input_tokens, r.cache_write_tokens, r.output_tokens, r.cost_nano_usd"
)
_DECIDED = (
    f"SELECT {_COLUMNS}, d.tier_used, d.mode, d.score, d.scorer, d.features, d.needs, d.tokens,"
    " d.conversation FROM route_decisions d JOIN usage_records r USING (time, request_id)"
)
_PLAIN = f"SELECT {_COLUMNS}, r.model AS alias FROM usage_records r"

# A document of all teams is not of those that have their own.
_WHOSE = """
    WHERE {alias} = $1 AND r.time > now() - make_interval(days => $4) AND CASE
        WHEN $2::uuid IS NOT NULL THEN r.team_id = $2
        ELSE NOT EXISTS (
            SELECT 1 FROM routing_documents own WHERE own.alias = $1
            AND own.team_id = r.team_id AND own.document IS NOT NULL)
        END
    ORDER BY r.time DESC LIMIT $3
"""

Part = tuple[str | None, str, str | None]


class Previews:
    """Makes previews."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        catalog: Catalog,
        prices: Mapping[str, Price],
        scorers: Scorers,
    ) -> None:
        """Args:
        pool: the ledger.
        catalog: the models as they are.
        prices: by model name; a model without one is free.
        scorers: those in force.
        """
        self._pool = pool
        self._catalog = catalog
        self._prices = prices
        self._scorers = scorers

    async def of(self, alias: str, team_id: UUID | None, document: RoutingDocument) -> Preview:
        """What a document would have made of an alias's last requests.

        Args:
            alias: the alias.
            team_id: whose requests; None: those of all teams that have no document of their own.
            document: that is not in force.
        """
        policy = document.auto
        query, column = (_PLAIN, "r.model") if policy is None else (_DECIDED, "d.alias")
        rows = await self._pool.fetch(
            query + _WHOSE.format(alias=column), alias, team_id, REQUESTS, _DAYS
        )
        rows.reverse()
        if policy is not None:  # the loop has requests to serve meanwhile
            would = await asyncio.to_thread(self._decided, alias, policy, rows)
            was = _sums((_part(row), row["cost_nano_usd"]) for row in rows)
        else:
            would = _split(document.weights or {}, rows)
            was = _sums((_deployment(row), row["cost_nano_usd"]) for row in rows)
        return _preview(alias, rows, was, would)

    def _decided(
        self, alias: str, policy: AutoPolicy, rows: Sequence[asyncpg.Record]
    ) -> dict[Part, list[float]]:
        scorer = self._scorers.of(alias)
        scores = [_score(scorer, row) for row in rows]
        of_teams: dict[UUID, list[float]] = defaultdict(list)
        for row, score in zip(rows, scores, strict=True):
            of_teams[row["team_id"]].append(score)
        cuts = {team: cuts_of(policy, sorted(of_team)) for team, of_team in of_teams.items()}
        standing: dict[bytes, int] = {}
        parts: list[tuple[Part, int]] = []
        for row, score in zip(rows, scores, strict=True):
            needs = Needs(
                frozenset(cast("list[Capability]", row["needs"])), row["tokens"], row["served_as"]
            )
            conversation = row["conversation"]
            least = standing.get(conversation, 0) if policy.sticky else 0
            mode = None if row["mode"] == "score" else row["mode"]
            ask = Ask(score, needs, conversation, mode, least)
            try:
                decision = decide(policy, cuts[row["team_id"]], ask, self._catalog.get)
            except NoModelFits:
                parts.append(((None, NOBODY, None), 0))
                continue
            if mode is None:
                standing[conversation] = decision.position
            model = decision.models[0].name
            parts.append(((decision.tier, model, None), self._cost(model, row)))
        return _sums(parts)

    def _cost(self, model: str, row: asyncpg.Record) -> int:
        usage = Usage(
            row["input_tokens"],
            row["cached_input_tokens"],
            row["cache_write_tokens"],
            row["output_tokens"],
        )
        price = self._prices.get(model, Price())
        return price.cost(usage, batch=row["served_as"] == "batch")


def _score(scorer: Scorer, row: asyncpg.Record) -> float:
    if scorer.name == row["scorer"]:
        return float(row["score"])
    try:
        return scorer.score_features(row["features"])
    except ValueError:  # of another version
        return float(row["score"])


def _part(row: asyncpg.Record) -> Part:
    return row["tier_used"], row["model_used"], None


def _deployment(row: asyncpg.Record) -> Part:
    return None, row["model_used"], row["deployment"]


def _sums(parts: Iterable[tuple[Part, int]]) -> dict[Part, list[float]]:
    """Requests and cost of each part."""
    sums: dict[Part, list[float]] = {}
    for part, cost in parts:
        known = sums.setdefault(part, [0, 0])
        known[0] += 1
        known[1] += cost
    return sums


def _split(weights: Mapping[str, int], rows: Sequence[Any]) -> dict[Part, list[float]]:
    """What weights make of requests: all deployments of a model cost the same."""
    total, cost = sum(weights.values()), sum(row["cost_nano_usd"] for row in rows)
    if not rows:
        return {}
    model = rows[-1]["alias"]
    return {
        (None, model, name): [len(rows) * weight / total, cost * weight / total]
        for name, weight in weights.items()
    }


def _preview(
    alias: str,
    rows: Sequence[asyncpg.Record],
    was: Mapping[Part, Sequence[float]],
    would: Mapping[Part, Sequence[float]],
) -> Preview:
    cost = sum(row["cost_nano_usd"] for row in rows)
    would_cost = round(sum(part[1] for part in would.values()))
    return Preview(
        alias=alias,
        requests=len(rows),
        start=rows[0]["time"] if rows else None,
        end=rows[-1]["time"] if rows else None,
        was=_parts(was, len(rows)),
        would=_parts(would, len(rows)),
        cost_nano_usd=cost,
        cost_usd=usd(cost),
        would_cost_nano_usd=would_cost,
        would_cost_usd=usd(would_cost),
    )


def _parts(sums: Mapping[Part, Sequence[float]], total: int) -> list[PreviewPart]:
    return [
        PreviewPart(
            tier=tier,
            model=model,
            deployment=deployment,
            requests=round(requests, 3),
            share=round(requests / total, 4),
            cost_nano_usd=round(cost),
            cost_usd=usd(round(cost)),
        )
        for (tier, model, deployment), (requests, cost) in sorted(
            sums.items(), key=lambda each: (-each[1][0], str(each[0]))
        )
    ]
