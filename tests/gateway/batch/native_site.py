"""Native batches without a gateway: a database with batches, both providers, and what works."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import asyncpg

from sluice.backends.anthropic import ANTHROPIC_DIALECT
from sluice.backends.openai import OPENAI_DIALECT
from sluice.billing.ledger import Ledger
from sluice.billing.prices import Price
from sluice.gateway.auth import KeyRing, Principal
from sluice.gateway.batch.batches import Batch
from sluice.gateway.batch.items import Items
from sluice.gateway.batch.native.anthropic_batches import AnthropicBatches
from sluice.gateway.batch.native.openai_batches import OpenAIBatches
from sluice.gateway.batch.native.preparation import Preparation
from sluice.gateway.batch.native.provider import NativeProvider
from sluice.gateway.batch.native.records import NativeRecords
from sluice.gateway.batch.native.rules import NativePolicy, NativeRules
from sluice.gateway.batch.native.submitter import Submitter
from sluice.gateway.batch.native.watcher import Watcher
from sluice.gateway.quotas.admission import Admission, AdmissionRefused
from sluice.gateway.quotas.needs import Need, Needs, TokenEstimates
from sluice.gateway.tenancy.limits import NO_POLICY, Policy
from sluice.router.catalog import Catalog, Deployment, Model
from sluice.router.credentials import Credentials
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.harness.provider_batches import AnthropicProvider, OpenAIProvider

PRICE = Price.of_usd(Decimal(3), Decimal(15))
#: What one item costs: 1000 tokens in, 10 out, at half the price.
ITEM_NANO_USD = (1000 * 3000 + 10 * 15_000) // 2

POLICY = NativePolicy(min_items=2, live_time=timedelta(hours=2), poll_seconds=1.0)


class FakeAdmission:
    """Notes what is admitted and charged; refuses what costs more than there is.

    Attributes:
        left: nano-USD; None: no end of it.
        dimension: of the limit that refuses.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.dimension = "budget"
        self.asked: list[int] = []
        self.charged: list[int] = []

    async def admit(self, policy: Policy, need: Need, batch: bool) -> str:
        assert batch
        self.asked.append(need.nano_usd)
        if self.left is not None and need.nano_usd > self.left:
            refused: Any = type("Refused", (), {"dimension": self.dimension})()
            raise AdmissionRefused(refused, need)
        return "reservation"

    def settle(self, reservation: str, tokens: int, nano_usd: int) -> None:
        assert (tokens, nano_usd) == (0, 0)

    def charge(self, policy: Policy, time_us: int, nano_usd: int) -> None:
        self.charged.append(nano_usd)

    def now_us(self) -> int:
        return int(datetime.now(UTC).timestamp() * 1e6)


class FakeKeys:
    """Knows whose every key is, until told otherwise."""

    def __init__(self) -> None:
        self.principal: Callable[[str], Principal | None] = lambda key_id: Principal(
            "", "team", "name", key_id, NO_POLICY
        )

    def holder(self, key_id: str) -> Principal | None:
        return self.principal(key_id)


class Clock:
    """A time that goes on, from where it is set."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class NativeSite:
    """See the module. `gpt` is the model of the one provider, `claude` of the other."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        jobs: JobsSite,
        openai: OpenAIProvider,
        anthropic: AnthropicProvider,
    ) -> None:
        self.pool = pool
        self.jobs = jobs
        self.openai = openai
        self.anthropic = anthropic
        self.clock = Clock()
        self.admission = FakeAdmission()
        self.keys = FakeKeys()
        self.observed: list[tuple[str, str, int]] = []
        self.credentials = {
            "openai": Credentials(["openai-key-1", "openai-key-2"]),
            "anthropic": Credentials(["anthropic-key"]),
        }
        self.records = NativeRecords(pool)
        self.items = Items(pool, Ledger(pool))
        self.catalog = Catalog(
            [model("gpt", "openai"), model("claude", "anthropic"), model("sim", "other")], 0
        )
        self.providers = {
            "openai": NativeProvider(OpenAIBatches(openai.url), POLICY, self.credentials["openai"]),
            "anthropic": NativeProvider(
                AnthropicBatches(anthropic.url), POLICY, self.credentials["anthropic"]
            ),
        }
        self.submitter, self.watcher = self.another()

    def another(self) -> tuple[Submitter, Watcher]:
        """What another process has."""
        rules = NativeRules(self.catalog, {name: POLICY for name in self.providers})
        dialects = {"openai": OPENAI_DIALECT, "anthropic": ANTHROPIC_DIALECT}
        prices = {"gpt": PRICE, "claude": PRICE}
        preparation = Preparation(self.catalog, dialects, Needs(prices, TokenEstimates()))
        common: dict[str, Any] = {
            "records": self.records,
            "providers": self.providers,
            "preparation": preparation,
            "storage": self.jobs.storage,
            "keys": cast("KeyRing", self.keys),
            "admission": cast("Admission", self.admission),
            "clock": self.clock,
        }
        submitter = Submitter(rules=rules, **common)
        watcher = Watcher(
            submitter=submitter,
            items=self.items,
            prices=prices,
            gateway="worker-1",
            observe=lambda *seen: self.observed.append(seen),
            **common,
        )
        return submitter, watcher

    async def submit(
        self, model: str = "gpt", count: int = 3, window: timedelta = timedelta(hours=24)
    ) -> Batch:
        """A batch, decided upon."""
        batch = await self.jobs.submit(chat_lines(count, model), window=window)
        await self.decide()
        return batch

    async def decide(self) -> None:
        """Decide of all batches, and hand over what goes."""
        await self.submitter.decide_all()
        await self.submitter.idle()

    async def look(self) -> None:
        """Look at everything now, whenever it was to be looked at."""
        await self.pool.execute("UPDATE native_batches SET next_at = now()")
        while await self.watcher.look():
            pass

    async def states(self, batch_id: UUID) -> list[str]:
        """The items' states, by line."""
        rows = await self.pool.fetch(
            "SELECT state FROM batch_items WHERE batch_id = $1 ORDER BY line", batch_id
        )
        return [row["state"] for row in rows]

    async def natives(self) -> list[asyncpg.Record]:
        """All records of batches at providers, oldest first."""
        return await self.pool.fetch("SELECT * FROM native_batches ORDER BY id")

    async def usage(self) -> list[asyncpg.Record]:
        """All usage records."""
        return await self.pool.fetch("SELECT * FROM usage_records ORDER BY request_id")


def model(name: str, provider: str) -> Model:
    """A model with one deployment."""
    return Model(
        name=name,
        context_length=100_000,
        capabilities=frozenset({"chat"}),
        tiers=frozenset({"interactive", "batch"}),
        deployments=(Deployment(provider, f"upstream-{name}"),),
    )
