"""`/v1/batches`, by the official SDK. What runs a batch is not here: tests do its part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from sluice.gateway.batch.ids import private_id
from tests.gateway.batch.doors_site import (
    BODY,
    GOOD,
    DoorsSite,
    jsonl,
    request_line,
)

CHAT: Final = "/v1/chat/completions"


async def submitted(sdk: AsyncOpenAI, content: bytes = GOOD, **given: Any) -> Batch:
    file = await sdk.files.create(file=("jobs.jsonl", content), purpose="batch")
    options: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **given}
    return await sdk.batches.create(input_file_id=file.id, **options)


async def test_a_batch_is_made(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    batch = await submitted(
        sdk,
        metadata={"a": "b"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "in_progress", CHAT)
    assert batch.completion_window == "24h"
    assert batch.model == "simulated"
    assert batch.metadata == {"a": "b"}
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 0, "failed": 0}
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.errors is None
    assert batch.output_file_id is None
    assert await sdk.batches.retrieve(batch.id) == batch
    assert await site.counts() == (1, 1, 3)


async def test_its_items_are_in_the_input(site: DoorsSite) -> None:
    content = b"\xef\xbb\xbf\r\n" + GOOD.replace(b"\n", b"\r\n")
    batch = await submitted(site.sdk(await site.key()), content)
    rows = await site.pool.fetch(
        "SELECT i.*, f.object FROM batch_items i JOIN batches b ON b.id = i.batch_id"
        " JOIN files f ON f.id = b.input_file WHERE batch_id = $1 ORDER BY line",
        private_id("batch_", batch.id),
    )
    assert [(row["line"], row["custom_id"], row["state"]) for row in rows] == [
        (2, "a", "pending"),
        (3, "b", "pending"),
        (4, "c", "pending"),
    ]
    texts = [
        await site.storage.range(row["object"], row["byte_offset"], row["byte_length"])
        for row in rows
    ]
    assert texts == GOOD.splitlines()


async def test_pages(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    ids = [(await submitted(sdk)).id for _ in range(3)]
    assert [batch.id async for batch in sdk.batches.list(limit=2)] == ids[::-1]
    for wrong in ({"limit": 101}, {"after": "batch_1"}):
        with pytest.raises(openai.BadRequestError):
            await sdk.batches.list(**wrong)


async def test_cancelling(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    batch = await submitted(sdk)
    cancelled = await sdk.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
    await site.end(batch.id, "cancelled")
    assert (await sdk.batches.cancel(batch.id)).status == "cancelled"


async def test_what_has_ended_is_not_cancelled(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    batch = await submitted(sdk)
    await site.end(batch.id)
    with pytest.raises(openai.ConflictError, match="completed"):
        await sdk.batches.cancel(batch.id)


async def test_another_teams_batches_are_not_there(site: DoorsSite) -> None:
    mine, theirs = site.sdk(await site.key("mine")), site.sdk(await site.key("theirs"))
    batch = await submitted(mine)
    for call in (theirs.batches.retrieve, theirs.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(batch.id)
    with pytest.raises(openai.NotFoundError):
        await theirs.batches.create(
            input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
        )
    assert [each.id async for each in theirs.batches.list()] == []
    assert (await mine.batches.retrieve(batch.id)).status == "in_progress"


@pytest.mark.parametrize(
    ("given", "status", "param", "code"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint", "mismatched_endpoint"),
        ({"endpoint": "/v1/nonsense"}, 400, "endpoint", "invalid_value"),
        ({"completion_window": "48h"}, 400, "completion_window", "invalid_value"),
        ({"metadata": {"a": 1}}, 400, "metadata[...]", "invalid_value"),
        ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            400,
            "output_expires_after.seconds",
            "invalid_value",
        ),
        ({"extra_body": {"callback_url": "http://x:y@z/"}}, 400, "callback_url", "invalid_value"),
        ({"extra_body": {"priority": "urgent"}}, 400, "priority", "invalid_value"),
        ({"extra_body": {"nonsense": 1}}, 400, "nonsense", "invalid_value"),
    ],
)
async def test_what_is_refused(
    site: DoorsSite, given: dict[str, Any], status: int, param: str, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await submitted(site.sdk(await site.key()), **given)
    error = refused.value
    assert (error.status_code, error.param, error.code) == (status, param, code), error
    assert await site.counts() == (1, 0, 0)


async def test_a_body_that_is_no_object_has_no_member_at_fault(site: DoorsSite) -> None:
    async with site.bare(await site.key()) as http:
        answer = await http.post("/v1/batches", json=[])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, None, "invalid_value")


@pytest.mark.parametrize(
    ("model", "limits", "status", "code"),
    [
        ("nonsense", {}, 404, "model_not_found"),
        ("interactive-only", {}, 400, "unsupported_tier"),
        ("simulated", {"allowed_models": ("elsewhere",)}, 403, "model_not_allowed"),
        ("simulated", {"allowed_endpoints": ("embeddings",)}, 403, "endpoint_not_allowed"),
    ],
)
async def test_models_that_are_not_the_teams_to_use(
    site: DoorsSite, model: str, limits: dict[str, Any], status: int, code: str
) -> None:
    sdk = site.sdk(await site.key(**limits))
    with pytest.raises(openai.APIStatusError) as refused:
        await submitted(sdk, jsonl(request_line("a", body={**BODY, "model": model})))
    assert (refused.value.status_code, refused.value.code) == (status, code)
    assert await site.counts() == (1, 0, 0)


async def test_a_name_that_stands_for_models_is_taken(site: DoorsSite) -> None:
    content = jsonl(request_line("a", body={**BODY, "model": "auto"}))
    assert (await submitted(site.sdk(await site.key()), content)).model == "auto"


async def test_a_file_that_expires_while_a_batch_is_made_of_it(
    site: DoorsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = site.storage.read

    async def slow(*given: Any) -> AsyncIterator[bytes]:
        await site.pool.execute("UPDATE files SET expires_at = now()")
        async for part in read(*given):
            yield part

    monkeypatch.setattr(site.storage, "read", slow)
    with pytest.raises(openai.NotFoundError) as gone:
        await submitted(site.sdk(await site.key()))
    assert gone.value.param == "input_file_id"
    assert await site.counts() == (1, 0, 0)


async def test_a_file_of_another_purpose(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(file=("a.jsonl", GOOD), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert refused.value.param == "input_file_id"
    assert refused.value.code == "invalid_file_purpose"


async def test_a_teams_files_are_read_one_at_a_time(
    site: DoorsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, at_once, most = site.storage.read, 0, 0

    async def counted(*given: Any) -> AsyncIterator[bytes]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        async for part in read(*given):
            await asyncio.sleep(0.01)
            yield part
        at_once -= 1

    monkeypatch.setattr(site.storage, "read", counted)
    sdk = site.sdk(await site.key())
    await asyncio.gather(*(submitted(sdk) for _ in range(4)))
    assert (most, await site.counts()) == (1, (4, 4, 12))


async def test_a_batch_is_no_more_urgent_than_its_team(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key(priority="low"))
    batch = await submitted(sdk, extra_body={"priority": "high"})
    row = await site.pool.fetchrow(
        "SELECT priority FROM batches WHERE id = $1", private_id("batch_", batch.id)
    )
    assert row is not None
    assert row["priority"] == "low"


async def test_why_a_batch_failed(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    batch = await submitted(sdk)
    await site.pool.execute(
        "UPDATE batches SET status = 'failed', failed_at = now(), errors = $2 WHERE id = $1",
        private_id("batch_", batch.id),
        '[{"code": "x", "line": 2, "message": "m", "param": null}]',
    )
    failed = await sdk.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [error.line for error in failed.errors.data] == [2]
