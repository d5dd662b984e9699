"""Models as versions, and how gateways follow them."""

from __future__ import annotations

from functools import partial

import asyncpg
import msgspec
import pytest
import uuid_utils.compat

from sluice.gateway.learning import models as models_module
from sluice.gateway.learning.models import RouterModels, changed_models
from sluice.gateway.learning.scorer_sync import ModelChange, ScorerSync
from sluice.gateway.routes.admin.router_models import MAX_REPORT_BYTES, Upload
from sluice.gateway.tenancy.audit import By
from sluice.gateway.tenancy.pages import Turn
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.router.auto.scorers import Scorers
from tests.gateway.learning.samples import ALIAS, model_file

BY = By("token:1", "somebody", uuid_utils.compat.uuid7())


async def states(pool: asyncpg.Pool) -> dict[int, str]:
    page = await RouterModels(pool).page(ALIAS, Turn())
    return {model.version: model.state for model in page.data}


async def made(pool: asyncpg.Pool, count: int) -> RouterModels:
    """So many candidates."""
    models = RouterModels(pool)
    for number in range(count):
        await models.create(ALIAS, model_file(number), "training", {"number": number}, BY)
    return models


async def test_a_models_life(pool: asyncpg.Pool) -> None:
    models = await made(pool, 3)
    assert await models.active(ALIAS) is None
    await models.promote(ALIAS, 1, BY)
    await models.promote(ALIAS, 3, BY)
    assert await states(pool) == {1: "retired", 2: "candidate", 3: "active"}
    active = await models.active(ALIAS)
    assert active is not None
    assert (active.version, active.report, await models.file(active)) == (
        3,
        {"number": 2},
        model_file(2),
    )
    assert await models.promote(ALIAS, 3, BY) == active
    actions = await pool.fetch(
        "SELECT action FROM audit_log a JOIN router_models m ON m.id = object_id ORDER BY a.id"
    )
    assert [row["action"].removeprefix("router_model.") for row in actions] == [
        *["create"] * 3,
        "promote",
        "retire",
        "promote",
    ]


async def test_the_way_back(pool: asyncpg.Pool) -> None:
    models = await made(pool, 4)
    for version in (1, 2, 3):
        await models.promote(ALIAS, version, BY)
    back = await models.roll_back(ALIAS, BY)
    assert back is not None
    assert back.version == 2
    await models.promote(ALIAS, 4, BY)
    back = await models.roll_back(ALIAS, BY)  # to what was before it, and not to what was bad
    assert back is not None
    assert back.version == 2
    back = await models.roll_back(ALIAS, BY)
    assert back is not None
    assert back.version == 1
    assert await models.roll_back(ALIAS, BY) is None
    assert await models.active(ALIAS) is None
    with pytest.raises(Missing):
        await models.roll_back(ALIAS, BY)


async def test_what_is_no_model_is_refused(pool: asyncpg.Pool) -> None:
    models = RouterModels(pool)
    with pytest.raises(Conflict) as refused:
        await models.create(ALIAS, b"nothing", "upload", {}, BY)
    assert refused.value.param == "file"
    with pytest.raises(Missing):
        await models.promote(ALIAS, 1, BY)


@pytest.mark.parametrize("value", ["\0", "x" * MAX_REPORT_BYTES])
def test_a_report_that_cannot_be_kept_is_refused(value: str) -> None:
    body = {"file": "", "report": {"said": value}}
    with pytest.raises(msgspec.ValidationError, match="report"):
        msgspec.convert(body, Upload)


async def test_old_ones_go_unless_they_are_in_use(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "KEPT", 2)
    models = await made(pool, 1)
    await models.promote(ALIAS, 1, BY)
    await made(pool, 3)
    assert await states(pool) == {1: "active", 3: "candidate", 4: "candidate"}


async def test_gateways_follow(pool: asyncpg.Pool) -> None:
    models, scorers = await made(pool, 2), Scorers()
    sync = ScorerSync(partial(changed_models, pool), scorers)
    await sync.refresh()
    assert scorers.of(ALIAS).name == "rule"
    await models.promote(ALIAS, 1, BY)
    await sync.refresh()
    first = scorers.of(ALIAS).name
    assert first.startswith("linear-")
    await models.promote(ALIAS, 2, BY)
    await sync.refresh()
    assert scorers.of(ALIAS).name not in ("rule", first)
    assert scorers.of("other").name == "rule"
    await models.roll_back(ALIAS, BY)
    await sync.refresh()
    assert scorers.of(ALIAS).name == first
    await models.roll_back(ALIAS, BY)
    await sync.refresh()
    assert scorers.of(ALIAS).name == "rule"


async def test_a_model_that_cannot_be_read_changes_nothing() -> None:
    changes = [[ModelChange(ALIAS, 1, 1, model_file())], [ModelChange(ALIAS, 2, 2, b"newer")]]

    async def changed(since: int) -> list[ModelChange]:
        return changes.pop(0)

    scorers = Scorers()
    sync = ScorerSync(changed, scorers)
    await sync.refresh()
    known = scorers.of(ALIAS)
    await sync.refresh()
    assert scorers.of(ALIAS) is known
