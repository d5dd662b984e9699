"""`/v1/batch`: every form of a submission, and results as they come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sluice.gateway.batch import statements
from sluice.gateway.batch.ids import private_id
from tests.gateway.batch.doors_site import BODY, GOOD, DoorsSite, doors_site, jsonl, request_line

OPTIONS = {
    "priority": "low",
    "completion_window": "90m",
    "callback_url": "https://example.org/done",
}
METADATA = {"project": "x"}
FORM = "application/x-www-form-urlencoded"  # what curl says of --data-binary


def check(answer: httpx2.Response, total: int = 3) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    assert job["batch_id"].startswith("batch_")
    assert job["status"] == "in_progress"
    assert job["request_counts"] == {"total": total, "completed": 0, "failed": 0}
    assert job["created_at"] <= job["estimated_completion"] <= job["expires_at"]
    return job


def check_options(job: dict[str, Any]) -> None:
    assert job["priority"] == "low"
    assert job["completion_window"] == "90m"
    assert job["metadata"] == METADATA
    assert job["callback"]["url"] == OPTIONS["callback_url"]
    assert job["expires_at"] == job["created_at"] + 5400


async def test_lines(caller: httpx2.AsyncClient, site: DoorsSite) -> None:
    query = {**OPTIONS, "metadata": json.dumps(METADATA)}
    answer = await caller.post(
        "/v1/batch", content=GOOD, params=query, headers={"content-type": FORM}
    )
    check_options(check(answer))
    assert await site.counts() == (1, 1, 3)


async def test_a_form(caller: httpx2.AsyncClient) -> None:
    fields = {**OPTIONS, "metadata": json.dumps(METADATA)}
    job = check(await caller.post("/v1/batch", data=fields, files={"file": ("j.jsonl", GOOD)}))
    check_options(job)
    file = (await caller.get(f"/v1/files/{job['input_file_id']}")).json()
    assert (file["filename"], file["purpose"], file["bytes"]) == ("j.jsonl", "batch", len(GOOD))


async def test_a_list_of_requests(caller: httpx2.AsyncClient) -> None:
    requests = [request_line("x"), {"body": BODY}, {**BODY, "user": "half a \ud83d"}]
    body = json.dumps({"requests": requests, "metadata": METADATA, **OPTIONS})
    kind = {"content-type": "application/json"}
    job = check(await caller.post("/v1/batch", content=body, headers=kind))
    check_options(job)
    content = (await caller.get(f"/v1/files/{job['input_file_id']}/content")).text
    ids = [json.loads(line)["custom_id"] for line in content.splitlines()]
    assert ids == ["x", "request-2", "request-3"]


async def test_a_repeated_call_with_a_key_makes_no_second_batch(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    key = {"idempotency-key": '"nightly"'}
    job = check(await caller.post("/v1/batch", json={"requests": [BODY]}, headers=key), 1)
    file = {"input_file_id": job["input_file_id"], "endpoint": "/v1/chat/completions"}
    made = {**file, "completion_window": "24h"}
    batch = (await caller.post("/v1/batches", json=made, headers=key)).json()
    assert batch["id"] != job["id"]
    for path, body, id in (
        ("/v1/batch", {"requests": [BODY]}, job["id"]),
        ("/v1/batches", made, batch["id"]),
    ):
        assert (await caller.post(path, json=body, headers=key)).json()["id"] == id
        other = await caller.post(path, json={**body, "priority": "low"}, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert await site.counts() == (1, 2, 2)
    async with site.bare(await site.key("other")) as others:
        theirs = await others.post("/v1/batch", json={"requests": [BODY]}, headers=key)
        assert theirs.json()["id"] != job["id"]
    for _ in range(2):  # without a key each is a call of its own
        await caller.post("/v1/batch", json={"requests": [BODY]})
    assert (await site.counts())[1] == 5


async def test_of_calls_at_once_with_a_key_one_makes_a_batch(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    key = {"idempotency-key": "nightly"}
    answers = await asyncio.gather(
        *(caller.post("/v1/batch", json={"requests": [BODY]}, headers=key) for _ in range(5))
    )
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({each.json()["id"] for each in answers if each.status_code == 200}) == 1
    assert await site.counts() == (1, 1, 1)
    assert len(site.objects()) == 1


async def test_the_same_batch_through_both_doors(caller: httpx2.AsyncClient) -> None:
    job = check(await caller.post("/v1/batch", content=GOOD))
    batch = (await caller.get(f"/v1/batches/{job['batch_id']}")).json()
    assert batch["id"] == job["batch_id"]
    assert "batch_id" not in batch
    assert [each["id"] for each in (await caller.get("/v1/batches")).json()["data"]] == [
        batch["id"]
    ]
    listed = (await caller.get("/v1/batch")).json()["data"]
    assert [each["batch_id"] for each in listed] == [batch["id"]]
    cancelled = (await caller.post(f"/v1/batch/{batch['id']}/cancel")).json()
    assert (cancelled["batch_id"], cancelled["status"]) == (batch["id"], "cancelling")


BAD = GOOD + jsonl(request_line("d", body={**BODY, "stream": True}))


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        ({"content": BAD}, 400, "Line 4: `stream`"),
        ({"files": {"file": ("a", BAD)}}, 400, "Line 4: `stream`"),
        ({"json": {"requests": [BODY, {**BODY, "stream": True}]}}, 400, "Line 2: `stream`"),
        ({"content": b""}, 400, "no requests"),
        ({"json": {"requests": []}}, 400, "no requests"),
        ({"json": {"requests": [BODY, 5]}}, 400, "Line 2: is not a valid JSON object"),
        ({"json": {"requests": [BODY], "priority": "urgent"}}, 400, "priority"),
        ({"content": GOOD, "params": {"priority": "urgent"}}, 400, "priority"),
        ({"content": GOOD, "params": {"nonsense": "1"}}, 400, "nonsense"),
        ({"content": GOOD, "params": {"metadata": "{"}}, 400, "JSON"),
        ({"content": GOOD, "params": {"metadata": "[" * 3000}}, 400, "JSON"),
        ({"content": GOOD, "params": {"endpoint": "/v1/embeddings"}}, 400, "endpoint"),
        ({"content": GOOD, "params": {"callback_url": "file:///x"}}, 400, "callback_url"),
        ({"data": {"callback_url": "file:///x"}, "files": {"file": ("a", GOOD)}}, 400, "callback"),
        ({"files": {"other": ("a", GOOD)}}, 400, "`file` is required"),
        ({"content": GOOD, "headers": {"content-type": "application/json"}}, 400, "jsonl"),
        ({"content": GOOD, "headers": {"content-encoding": "gzip"}}, 415, "Compressed"),
        ({"json": {"requests": [{**BODY, "x": "y" * 100_000}]}}, 413, "as lines"),
        ({"json": {"requests": [{**BODY, "model": "nonsense"}]}}, 404, "nonsense"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    caller: httpx2.AsyncClient, site: DoorsSite, sent: dict[str, Any], status: int, message: str
) -> None:
    answer = await caller.post("/v1/batch", **sent)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert message in f"{error['message']} {error['param']}"
    assert await site.counts() == (0, 0, 0)


async def test_no_key(site: DoorsSite) -> None:
    assert (await site.http.post("/v1/batch", content=GOOD)).status_code == 401


def lines(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("application/jsonl")
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_results_while_it_runs_and_from_where_one_was(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    many = jsonl(*(request_line(str(number)) for number in range(1, 121)))
    url = f"/v1/batch/{check(await caller.post('/v1/batch', content=many), 120)['batch_id']}"
    id = url.rpartition("/")[2]
    assert lines(await caller.get(f"{url}/results")) == []
    for line in range(1, 121):
        await site.answer(id, line, ok=line != 60)
    first = lines(await caller.get(f"{url}/results"))
    assert [each["custom_id"] for each in first] == [str(n) for n in range(1, 121) if n != 60]
    assert [each["custom_id"] for each in lines(await caller.get(f"{url}/errors"))] == ["60"]
    rest = lines(await caller.get(f"{url}/results", params={"after": first[99]["sequence"]}))
    assert rest == first[100:]
    job = (await caller.get(url)).json()
    assert job["request_counts"] == {"total": 120, "completed": 119, "failed": 1}
    assert (job["cost_nano_usd"], job["cost_usd"]) == (180_000, "0.00018")
    assert (await caller.get(f"{url}/results?after=-1")).status_code == 400
    assert (await caller.get(f"{url}/results?after=x")).status_code == 400
    assert (await caller.get(f"{url}/results?after={2**63}")).status_code == 400


async def test_results_that_are_large_are_read_one_by_one(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    id = check(await caller.post("/v1/batch", content=GOOD))["batch_id"]
    for line in (1, 2, 3):
        await site.answer(id, line)
    await site.pool.execute(
        "UPDATE batch_results SET result = left(result, -1) || ',\"x\":\"' || repeat('x', 9000000)"
        " || '\"}' WHERE batch_id = $1",
        private_id("batch_", id),
    )
    rows = await site.pool.fetch(statements.RESULTS, private_id("batch_", id), True, 0)
    assert len(rows) == 1
    found = lines(await caller.get(f"/v1/batch/{id}/results"))
    assert [each["custom_id"] for each in found] == ["1", "2", "3"]


async def test_results_are_followed_to_the_end(caller: httpx2.AsyncClient, site: DoorsSite) -> None:
    id = check(await caller.post("/v1/batch", content=GOOD))["batch_id"]
    await site.answer(id, 1)
    following = asyncio.create_task(caller.get(f"/v1/batch/{id}/results?follow=true"))
    await asyncio.sleep(0)
    await site.answer(id, 2)
    await site.end(id)
    assert [each["custom_id"] for each in lines(await following)] == ["1", "2"]
    job = (await caller.get(f"/v1/batch/{id}")).json()
    assert (job["status"], job["estimated_completion"]) == ("completed", None)


async def test_another_teams_results_are_not_there(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    id = check(await caller.post("/v1/batch", content=GOOD))["batch_id"]
    async with site.bare(await site.key("other")) as other:
        for method, path in (
            ("GET", ""),
            ("GET", "/results"),
            ("GET", "/errors"),
            ("POST", "/cancel"),
        ):
            answer = await other.request(method, f"/v1/batch/{id}{path}")
            assert answer.status_code == 404
        assert (await other.get("/v1/batch")).json()["data"] == []


async def test_a_quota(doors_database: str, tmp_path: Path) -> None:
    async with (
        doors_site(doors_database, tmp_path, team_bytes=2 * len(GOOD)) as site,
        site.bare(await site.key()) as caller,
    ):
        together = await asyncio.gather(*(caller.post("/v1/batch", content=GOOD) for _ in range(4)))
        assert sorted(answer.status_code for answer in together) == [200, 200, 429, 429]
        assert await site.counts() == (2, 2, 6)


async def test_an_upload_that_breaks_off_leaves_nothing(
    caller: httpx2.AsyncClient, site: DoorsSite
) -> None:
    messages = iter(
        [
            {"type": "http.request", "body": GOOD, "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in caller.headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/batch", "headers": headers}
    await site.app({**scope, "query_string": b"", "http_version": "1.1"}, receive, send)
    assert sent[0]["status"] == 400
    assert await site.counts() == (0, 0, 0)
    assert site.objects() == []
