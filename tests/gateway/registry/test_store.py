"""Versions in a real Postgres, and the catalogue that follows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import msgspec
import pytest

from sluice.gateway.registry.prices import PriceBook
from sluice.gateway.registry.stages import Promotion
from sluice.gateway.registry.store import Registry, changed_versions
from sluice.gateway.registry.sync import RegistrySync
from sluice.gateway.registry.versions import ModelVersion
from sluice.gateway.tenancy.pages import Turn
from sluice.gateway.tenancy.refusals import Conflict, Missing, Outdated
from sluice.migrations import migrate
from sluice.router.catalog import Catalog, Timeouts
from tests.gateway.registry.samples import new
from tests.harness.polling import eventually_async

POOLS = {"blue": Timeouts(), "green": Timeouts()}


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=4) as made:
        yield made


class Notes:
    """The journal, as a list of who, what and which version."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    async def __call__(
        self,
        connection: Any,
        by: str,
        verb: str,
        before: ModelVersion | None,
        after: ModelVersion,
    ) -> None:
        assert connection.is_in_transaction()
        assert (before is None) == (verb == "create")
        self.lines.append((by, verb, after.version))


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def registry(pool: asyncpg.Pool, notes: Notes) -> Registry[str]:
    return Registry(pool, notes)


def raw(**members: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}


async def test_what_is_registered_is_found_whole(registry: Registry[str], notes: Notes) -> None:
    given = new(
        sampling={"temperature": 0.5, "top_k": 20},
        price={"input_per_mtok": "0.1"},
        engine={"max_num_seqs": 8},
        parallelism={"tensor": 4, "pipeline": 2},
        default_max_tokens=64,
    )
    made = await registry.create(given, "ann")
    for name in given.__struct_fields__:
        assert getattr(made, name) == getattr(given, name)
    assert (made.stage, made.share, made.staged_at) == (None, None, None)
    assert await registry.find("llama", "1") == made
    assert notes.lines == [("ann", "create", "1")]


async def test_a_version_is_registered_once(registry: Registry[str]) -> None:
    await registry.create(new(), "ann")
    with pytest.raises(Conflict) as caught:
        await registry.create(new(), "bob")
    assert caught.value.param == "version"


@pytest.mark.parametrize("name", ["nope", "", "ll\0ama"])
async def test_what_is_not_there_is_missing(registry: Registry[str], name: str) -> None:
    with pytest.raises(Missing):
        await registry.find(name, "prod")


async def test_promotion_changes_who_is_in_prod_in_one_moment(
    registry: Registry[str], notes: Notes
) -> None:
    await registry.create(new(version="1", pool="blue"), "ann")
    await registry.create(new(version="2", pool="green"), "ann")
    first = await registry.promote("llama", "1", Promotion(), None, "ann")
    assert first.stage == "prod"
    assert first.staged_at is not None
    await registry.promote("llama", "2", Promotion(stage="canary", share=5.0), None, "ann")
    assert (await registry.find("llama", "canary")).version == "2"
    second = await registry.promote("llama", "canary", Promotion(), None, "bob")
    assert (second.version, second.stage, second.share) == ("2", "prod", None)
    assert (await registry.find("llama", "1")).stage is None
    assert notes.lines[-2:] == [("bob", "retire", "1"), ("bob", "promote", "2")]
    back = await registry.promote("llama", "1", Promotion(), None, "bob")
    assert (await registry.find("llama", "prod")) == back


async def test_a_shadow_has_a_share_and_leaves_by_promotion(registry: Registry[str]) -> None:
    await registry.create(new(version="1", pool="blue"), "ann")
    await registry.create(new(version="2", pool="green"), "ann")
    await registry.promote("llama", "1", Promotion(), None, "ann")
    half = Promotion(stage="shadow", share=0.5)
    assert (await registry.promote("llama", "2", half, None, "ann")).share == 0.5
    with pytest.raises(Conflict):
        await registry.retire("llama", "1", None, "ann")
    assert (await registry.promote("llama", "2", Promotion(), None, "ann")).share is None


async def test_a_retired_version_serves_nobody(registry: Registry[str]) -> None:
    await registry.create(new(), "ann")
    await registry.promote("llama", "1", Promotion(), None, "ann")
    assert (await registry.retire("llama", "prod", None, "ann")).stage is None
    with pytest.raises(Missing):
        await registry.find("llama", "prod")


async def test_terms_change_and_what_an_engine_loads_does_not(
    registry: Registry[str], notes: Notes
) -> None:
    made = await registry.create(new(price={"input_per_mtok": "1"}), "ann")
    changed = await registry.update(
        "llama", "1", raw(price={"input_per_mtok": "2"}, default_max_tokens=10), None, "bob"
    )
    assert changed.price is not None
    assert str(changed.price.input_per_mtok) == "2"
    assert changed.default_max_tokens == 10
    assert changed.revision > made.revision
    assert (await registry.update("llama", "1", raw(price=None), None, "bob")).price is None
    same = await registry.update("llama", "1", raw(default_max_tokens=10), None, "bob")
    assert notes.lines == [("ann", "create", "1"), ("bob", "update", "1"), ("bob", "update", "1")]
    assert same.default_max_tokens == 10
    with pytest.raises(msgspec.ValidationError):
        await registry.update("llama", "1", raw(weights="/elsewhere"), None, "bob")
    with pytest.raises(Conflict):
        await registry.update("llama", "1", raw(default_max_tokens=100_000), None, "bob")


async def test_a_change_of_another_revision_is_refused(registry: Registry[str]) -> None:
    made = await registry.create(new(), "ann")
    other = frozenset({made.revision + 1})
    with pytest.raises(Outdated):
        await registry.update("llama", "1", raw(price=None), other, "bob")
    with pytest.raises(Outdated):
        await registry.promote("llama", "1", Promotion(), other, "bob")
    with pytest.raises(Outdated):
        await registry.retire("llama", "1", other, "bob")


async def test_promotions_at_once_leave_one_version_in_prod(registry: Registry[str]) -> None:
    for number in range(6):
        await registry.create(new(version=str(number), pool=f"pool-{number}"), "ann")
    await asyncio.gather(
        *(registry.promote("llama", str(n), Promotion(), None, "ann") for n in range(6))
    )
    page = await registry.page("llama", Turn())
    assert [each.stage for each in page.data].count("prod") == 1
    assert sum(each.stage is None for each in page.data) == 5


async def test_pages_are_turned(registry: Registry[str]) -> None:
    for number in range(3):
        await registry.create(new(version=str(number)), "ann")
    await registry.create(new(name="other"), "ann")
    first = await registry.page("llama", Turn(2))
    assert [each.version for each in first.data] == ["0", "1"]
    second = await registry.page("llama", Turn.of(2, first.next))
    assert [each.version for each in second.data] == ["2"]
    assert not second.has_more
    assert len((await registry.page(None, Turn())).data) == 4
    assert (await registry.page("\0", Turn())).data == []


async def test_the_catalogue_follows(registry: Registry[str], pool: asyncpg.Pool) -> None:
    catalog, prices = Catalog([], created=0), PriceBook({})
    changes: list[frozenset[str]] = []
    sync = RegistrySync(
        partial(changed_versions, pool),
        catalog,
        prices,
        POOLS,
        lambda: changes.append(catalog.deployments()),
        poll_seconds=0.02,
    )
    await registry.create(new(pool="blue", price={"input_per_mtok": "1"}), "ann")
    await sync.start()
    try:
        assert catalog.models() == []
        await registry.promote("llama", "1", Promotion(), None, "ann")

        async def served() -> bool:
            return catalog.get("llama") is not None

        await eventually_async(served, 2.0)
        assert prices["llama"].input == 1_000_000_000
        assert changes[-1] == {"blue/llama"}
        await registry.retire("llama", "1", None, "ann")

        async def gone() -> bool:
            return catalog.get("llama") is None

        await eventually_async(gone, 2.0)
        assert prices["llama"].input == 1_000_000_000
        assert changes[-1] == frozenset()
    finally:
        await sync.stop()


async def test_a_catalogue_without_news_is_left_alone(pool: asyncpg.Pool) -> None:
    catalog = Catalog([], created=0)
    sync = RegistrySync(
        partial(changed_versions, pool), catalog, PriceBook({}), POOLS, lambda: None
    )
    await sync.refresh()
    assert catalog.generation == 0
