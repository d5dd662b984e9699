"""Uploads and lines with an `Idempotency-Key`: however often they come, there is one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from tests.gateway.batch.doors_site import GOOD, DoorsSite, jsonl, request_line

KEY = {"idempotency-key": "nightly"}
OTHER = jsonl(request_line("a"), request_line("b"), request_line("d"))
BAD = GOOD + b"{}\n"


async def lines(
    caller: httpx2.AsyncClient, content: bytes = GOOD, query: str = ""
) -> httpx2.Response:
    return await caller.post(f"/v1/batch{query}", content=content, headers=KEY)


async def form(
    caller: httpx2.AsyncClient, content: bytes = GOOD, name: str = "a.jsonl", **fields: str
) -> httpx2.Response:
    """Each has another boundary."""
    file = {"file": (name, content)}
    return await caller.post("/v1/batch", data=fields, files=file, headers=KEY)


async def upload(
    caller: httpx2.AsyncClient, content: bytes = GOOD, name: str = "a.jsonl", **fields: str
) -> httpx2.Response:
    data = {"purpose": "batch", **fields}
    return await caller.post("/v1/files", data=data, files={"file": (name, content)}, headers=KEY)


WAYS: list[Any] = [lines, form, upload]


@pytest.mark.parametrize("send", WAYS)
async def test_a_repetition_makes_no_second_one(
    caller: httpx2.AsyncClient, site: DoorsSite, send: Any
) -> None:
    first = (await send(caller)).json()
    for _ in range(2):
        again = await send(caller)
        assert (again.status_code, again.json()["id"]) == (200, first["id"])
    batches = 0 if send is upload else 1
    assert await site.counts() == (1, batches, 3 * batches)
    assert len(site.objects()) == 1


@pytest.mark.parametrize(
    ("send", "changes"),
    [
        (lines, {"content": OTHER}),
        (lines, {"content": GOOD + b"\n"}),
        (lines, {"content": BAD}),
        (lines, {"query": "?priority=low"}),
        (form, {"content": OTHER}),
        (form, {"name": "b.jsonl"}),
        (form, {"priority": "low"}),
        (upload, {"content": OTHER}),
        (upload, {"name": "b.jsonl"}),
        (upload, {"purpose": "user_data"}),
    ],
)
async def test_another_body_is_refused(
    caller: httpx2.AsyncClient, site: DoorsSite, send: Any, changes: dict[str, Any]
) -> None:
    await send(caller)
    before = await site.counts()
    refused = await send(caller, **changes)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert await site.counts() == before
    assert len(site.objects()) == 1


async def test_lines_and_forms_are_other_bodies(caller: httpx2.AsyncClient) -> None:
    await lines(caller)
    assert (await form(caller)).status_code == 422


@pytest.mark.parametrize("send", WAYS)
async def test_of_calls_at_once_the_quickest_makes_what_all_are_answered_with(
    caller: httpx2.AsyncClient, site: DoorsSite, send: Any
) -> None:
    answers = await asyncio.gather(*(send(caller) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert (await site.counts())[0] == 1
    assert len(site.objects()) == 1


@pytest.mark.parametrize("send", WAYS)
async def test_of_other_bodies_at_once_one_is_made(
    caller: httpx2.AsyncClient, site: DoorsSite, send: Any
) -> None:
    answers = await asyncio.gather(send(caller), send(caller, content=OTHER))
    assert sorted(answer.status_code for answer in answers) == [200, 422]
    assert (await site.counts())[0] == 1
    assert len(site.objects()) == 1


@pytest.mark.parametrize("send", WAYS)
async def test_a_failure_frees_the_key(caller: httpx2.AsyncClient, send: Any) -> None:
    assert (await send(caller, content=BAD)).status_code == 400
    assert (await send(caller)).status_code == 200


@pytest.mark.parametrize("send", WAYS)
async def test_a_key_is_one_teams_own(
    caller: httpx2.AsyncClient, site: DoorsSite, send: Any
) -> None:
    mine = (await send(caller)).json()["id"]
    async with site.bare(await site.key("other")) as others:
        theirs = await send(others, content=OTHER)
        assert (theirs.status_code, theirs.json()["id"] == mine) == (200, False)


async def test_the_key_of_a_deleted_file_is_free(caller: httpx2.AsyncClient) -> None:
    first = (await upload(caller)).json()["id"]
    await caller.delete(f"/v1/files/{first}")
    again = await upload(caller, content=OTHER)
    assert (again.status_code, again.json()["id"] == first) == (200, False)


async def test_a_repetition_is_as_large_as_what_it_repeats(caller: httpx2.AsyncClient) -> None:
    await upload(caller, purpose="user_data")
    endless = await upload(caller, content=b"x" * 310_000, purpose="user_data")
    assert endless.status_code == 413


async def test_a_bad_key_is_refused(caller: httpx2.AsyncClient) -> None:
    answer = await caller.post("/v1/batch", content=GOOD, headers={"idempotency-key": ""})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
