"""Items at providers' own batches: handed over once, ended once, charged at the discount, and
taken back in time whatever the provider does."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web

from sluice.gateway.auth import Principal
from sluice.gateway.batch.native import records
from sluice.gateway.tenancy.limits import NO_POLICY
from tests.gateway.batch.jobs_site import chat_lines
from tests.gateway.batch.native_site import ITEM_NANO_USD, NativeSite
from tests.harness.provider_batches import (
    answered,
    anthropic_end,
    chat_answer,
    not_run,
)


@pytest.fixture
def site(native_site: NativeSite) -> NativeSite:
    return native_site


def text_of(result: dict[str, Any]) -> str:
    text: str = result["response"]["body"]["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("name", ["gpt", "claude"])
async def test_a_batch_goes_to_its_provider_and_comes_back(site: NativeSite, name: str) -> None:
    batch = await site.submit(name)
    assert await site.states(batch.id) == ["native"] * 3
    server = site.openai if name == "gpt" else site.anthropic
    sent = list(server.batch.requests.values())
    assert [body["model"] for body in sent] == [f"upstream-{name}"] * 3
    assert "request-0" not in str(server.batch.requests)
    await site.look()
    assert await site.states(batch.id) == ["native"] * 3
    server.end(server.batch)
    await site.look()
    assert await site.states(batch.id) == ["done"] * 3
    results = await site.jobs.results(batch.id)
    assert [each["custom_id"] for each in results] == ["request-0", "request-1", "request-2"]
    assert [text_of(each) for each in results] == [f"echo: Say something {n}" for n in range(3)]
    assert all(each["response"]["body"]["model"] == name for each in results)
    usage = await site.usage()
    assert [row["cost_nano_usd"] for row in usage] == [ITEM_NANO_USD] * 3
    assert {str(row["request_id"]) for row in usage} == {
        each["response"]["request_id"] for each in results
    }
    assert {(row["tier"], row["status"], row["deployment"]) for row in usage} == {
        ("batch", "ok", f"{'openai' if name == 'gpt' else 'anthropic'}/upstream-{name}")
    }
    record = await site.jobs.batch(batch.id)
    assert (record["completed"], record["cost_nano_usd"]) == (3, 3 * ITEM_NANO_USD)
    assert site.admission.charged == [ITEM_NANO_USD] * 3


async def test_nothing_stays_at_the_provider(site: NativeSite) -> None:
    await site.submit("gpt")
    await site.submit("claude")
    site.openai.end(site.openai.batch)
    site.anthropic.end(site.anthropic.batch)
    await site.look()
    assert site.openai.files == {}
    assert site.anthropic.batches == {}


async def test_nothing_stays_of_a_batch_that_has_no_results(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.end(site.openai.batch, "expired")
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3
    assert site.openai.files == {}


async def test_what_goes_live_at_once(site: NativeSite) -> None:
    few = await site.submit(count=1)
    soon = await site.submit(window=timedelta(hours=3))
    other = await site.submit("sim")
    for batch in (few, soon):
        assert (await site.jobs.batch(batch.id))["live"]
        assert "native" not in await site.states(batch.id)
    assert not (await site.jobs.batch(other.id))["live"]  # nobody asks
    assert site.openai.batches == {}


async def test_a_large_batch_goes_in_parts(
    site: NativeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_ITEMS", 4)
    batch = await site.submit(count=10)
    assert [len(held.requests) for held in site.openai.batches.values()] == [4, 4, 2]
    for held in site.openai.batches.values():
        site.openai.end(held)
    await site.look()
    assert await site.states(batch.id) == ["done"] * 10


async def test_parts_span_no_more_bytes_than_may_be_held(
    site: NativeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_BYTES", 2 * len(chat_lines(1, "gpt")))
    await site.submit(count=5)
    assert [len(held.requests) for held in site.openai.batches.values()] == [2, 2, 1]


async def test_items_that_are_no_good_are_called_live(site: NativeSite) -> None:
    lines = chat_lines(4, "gpt").splitlines()
    lines[1] = lines[1].replace(b'"max_tokens": 8, ', b"")  # nothing bounds its output
    lines[2] = lines[2].replace(b'"messages"', b'"api_base": "x", "messages"')
    batch = await site.jobs.submit(b"\n".join(lines))
    await site.decide()
    assert await site.states(batch.id) == ["native", "pending", "pending", "native"]
    assert (await site.jobs.batch(batch.id))["live"]


@pytest.mark.parametrize("name", ["gpt", "claude"])
async def test_an_item_that_no_sdk_can_read_keeps_no_other(site: NativeSite, name: str) -> None:
    lines = chat_lines(3, name).splitlines()
    tool = b'{"type": "function", "function": {"name": "f", "parameters": {"x": 1e999}}}'
    lines[1] = lines[1].replace(b'"messages"', b'"tools": [' + tool + b'], "messages"')
    batch = await site.jobs.submit(b"\n".join(lines))
    await site.decide()
    assert await site.states(batch.id) == ["native", "pending", "native"]


async def test_one_broken_line_costs_nothing_and_the_rest_is_billed(site: NativeSite) -> None:
    """Case 97 (litellm#37457): an empty body or invalid UTF-8 zeroed the whole batch's cost."""
    batch = await site.submit(count=6)
    held = site.openai.batch
    names = list(held.requests)
    good = answered(names[5], chat_answer(held.requests[names[5]]))
    ends: dict[str, bytes | None] = {
        names[0]: answered(names[0], {}),
        names[1]: good.replace(b"echo", b"\xff\xfe").replace(names[5].encode(), names[1].encode()),
        names[2]: b'{"custom_id": "cut off',
        names[3]: None,
        names[4]: b'{"custom_id": "somebody-elses", "response": null}',
    }
    site.openai.end(held, ends=ends)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 5 + ["done"]
    assert [row["cost_nano_usd"] for row in await site.usage()] == [ITEM_NANO_USD]
    assert site.observed == [("openai", "ok", 1), ("openai", "live", 5)]
    assert (await site.natives())[0]["state"] == "done"


async def test_errors_and_what_was_not_run_are_called_live(site: NativeSite) -> None:
    batch = await site.submit(count=4)
    held = site.openai.batch
    names = list(held.requests)
    site.openai.end(
        held,
        "expired",
        {
            names[0]: answered(names[0], chat_answer(held.requests[names[0]])),
            names[1]: answered(names[1], {"error": {"message": "no"}}, status=400),
            names[2]: not_run(names[2], "batch_expired"),
        },
    )
    await site.look()
    assert await site.states(batch.id) == ["done", "pending", "pending", "pending"]
    rows = await site.pool.fetch("SELECT attempts FROM batch_items ORDER BY line")
    assert [row["attempts"] for row in rows] == [0, 1, 0, 0]


async def test_the_same_of_anthropic(site: NativeSite) -> None:
    batch = await site.submit("claude", count=4)
    held = site.anthropic.batch
    names = list(held.requests)
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    site.anthropic.end(
        held,
        {
            names[1]: anthropic_end(names[1], {"type": "errored", "error": error}),
            names[2]: anthropic_end(names[2], {"type": "expired"}),
            names[3]: b"\xff\xff",
        },
    )
    await site.look()
    assert await site.states(batch.id) == ["done", "pending", "pending", "pending"]
    rows = await site.pool.fetch("SELECT attempts FROM batch_items ORDER BY line")
    assert [row["attempts"] for row in rows] == [0, 1, 0, 0]


async def test_a_refused_batch_is_called_live(site: NativeSite) -> None:
    def refuse(request: web.Request) -> web.Response | None:
        if request.path != "/v1/batches":
            return None
        error = {"error": {"code": "billing_hard_limit_reached", "message": "SECRET-KEY said no"}}
        return web.json_response(error, status=400)

    site.openai.fail = refuse
    batch = await site.submit()
    assert await site.states(batch.id) == ["pending"] * 3
    assert (await site.jobs.batch(batch.id))["live"]
    (native,) = await site.natives()
    assert native["error"] == "status 400: billing_hard_limit_reached"
    assert site.openai.files == {}


async def test_a_batch_that_fails_at_the_provider_is_called_live(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.batch.status, site.openai.batch.code = "failed", "token_limit_exceeded"
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3
    assert site.openai.files == {}
    assert (await site.natives())[0]["error"] == "token_limit_exceeded"


@pytest.mark.parametrize("name", ["gpt", "claude"])
async def test_a_batch_whose_answer_was_lost_is_found_again(site: NativeSite, name: str) -> None:
    server = site.openai if name == "gpt" else site.anthropic
    await site.submit(name, count=4)
    (known,) = server.batches
    server.lose_answers = True
    batch = await site.submit(name, count=4)
    assert len(server.batches) == 2
    assert await site.states(batch.id) == ["native"] * 4
    server.lose_answers = False
    await site.look()
    assert len(server.batches) == 2
    found = [row["upstream_id"] for row in await site.natives()]
    assert found == [known, next(each for each in server.batches if each != known)]
    server.end(server.batches[found[1]])
    await site.look()
    assert await site.states(batch.id) == ["done"] * 4


async def test_a_process_that_was_killed_before_is_made_up_for(site: NativeSite) -> None:
    """Between taking the items and handing them over."""
    batch = await site.jobs.submit(chat_lines(3, "gpt"))
    await site.records.take(batch.id, "gpt", "openai/upstream-gpt", "key-gone")
    await site.decide()
    assert site.openai.batches == {}
    await site.look()
    assert len(site.openai.batch.requests) == 3
    assert await site.states(batch.id) == ["native"] * 3


async def test_anothers_batch_that_was_taken_for_ours_ends_in_live_calls(
    site: NativeSite,
) -> None:
    batch = await site.jobs.submit(chat_lines(3, "claude"))
    await site.decide()
    ours = site.anthropic.batch
    ours.requests = {f"foreign-{n}": body for n, body in enumerate(ours.requests.values())}
    site.anthropic.end(ours)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3
    assert await site.usage() == []
    assert list(site.anthropic.batches) == [ours.id]


async def test_a_provider_that_is_away_is_waited_for_and_then_not(site: NativeSite) -> None:
    site.openai.fail = lambda request: web.Response(status=503)
    batch = await site.submit()
    await site.look()
    assert await site.states(batch.id) == ["native"] * 3
    site.clock.ahead = timedelta(minutes=31)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_it_is_written_down_once_however_often_it_is_begun(site: NativeSite) -> None:
    batch = await site.submit(count=40)
    site.openai.end(site.openai.batch)
    _, other = site.another()
    await site.pool.execute("UPDATE native_batches SET next_at = now()")
    first = asyncio.create_task(site.watcher.look())
    await asyncio.sleep(0)
    await site.pool.execute("UPDATE native_batches SET next_at = now()")  # as if it were lost
    await asyncio.gather(first, other.look())
    assert await site.states(batch.id) == ["done"] * 40
    assert len(await site.usage()) == 40
    record = await site.jobs.batch(batch.id)
    assert (record["completed"], record["cost_nano_usd"]) == (40, 40 * ITEM_NANO_USD)
    assert len(site.admission.charged) == 40


async def test_when_the_deadline_nears_it_is_cancelled_and_the_rest_called_live(
    site: NativeSite,
) -> None:
    batch = await site.submit(count=4)
    held = site.openai.batch
    site.clock.ahead = timedelta(hours=21)
    await site.look()
    assert [each.cancelled for each in site.openai.batches.values()] == [False]
    site.clock.ahead = timedelta(hours=22, minutes=1)
    await site.look()
    assert [each.cancelled for each in site.openai.batches.values()] == [True]
    assert await site.states(batch.id) == ["native"] * 4
    (name, *_) = held.requests
    done = answered(name, chat_answer(held.requests[name]))
    site.openai.end(held, "cancelled", {name: done})
    await site.look()
    assert await site.states(batch.id) == ["done", "pending", "pending", "pending"]
    assert len(await site.usage()) == 1


@pytest.mark.parametrize("name", ["gpt", "claude"])
async def test_a_cancelled_batch_is_cancelled_at_the_provider(site: NativeSite, name: str) -> None:
    server = site.openai if name == "gpt" else site.anthropic
    batch = await site.submit(name)
    await site.pool.execute("UPDATE batches SET status = 'cancelling' WHERE id = $1", batch.id)
    await site.look()
    assert server.batch.cancelled
    assert await site.states(batch.id) == ["native"] * 3
    site.clock.ahead = timedelta(minutes=9)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_after_the_deadline_nobody_waits(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.fail = lambda request: web.Response(status=500)
    await site.look()
    assert await site.states(batch.id) == ["native"] * 3
    site.clock.ahead = timedelta(hours=25)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_a_key_that_was_revoked_sends_nothing_more_but_is_billed(site: NativeSite) -> None:
    batch = await site.submit()
    site.keys.principal = lambda key_id: None
    site.openai.end(site.openai.batch)
    later = await site.submit()
    await site.look()
    assert await site.states(batch.id) == ["done"] * 3
    assert await site.states(later.id) == ["pending"] * 3
    assert [row["cost_nano_usd"] for row in await site.usage()] == [ITEM_NANO_USD] * 3
    _, key_id = await site.jobs.team()
    assert {row["key_id"] for row in await site.usage()} == {key_id}


async def test_the_key_that_took_anothers_place_pays(site: NativeSite) -> None:
    await site.submit()
    successor = uuid4()
    site.keys.principal = lambda _: Principal("", "team", "name", str(successor), NO_POLICY)
    site.openai.end(site.openai.batch)
    await site.look()
    assert [row["key_id"] for row in await site.usage()] == [successor] * 3


async def test_the_key_of_a_batch_is_used_for_it_to_its_end(site: NativeSite) -> None:
    await site.submit()
    used = site.openai.batch.key
    await site.look()
    assert len({held.key for held in site.openai.batches.values()}) == 1
    assert used in ("openai-key-1", "openai-key-2")
    label = (await site.natives())[0]["credential"]
    assert site.providers["openai"].key(label) == used
    site.credentials["openai"].replace(["rotated"])
    assert site.providers["openai"].key(label) == "rotated"


async def test_no_secret_is_stored(site: NativeSite) -> None:
    await site.submit()
    rows = [dict(row.items()) for row in await site.natives()]
    assert "openai-key" not in json.dumps(rows, default=str)


async def test_a_batch_that_the_provider_has_forgotten_is_called_live(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.batches.clear()
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_a_key_that_is_refused_for_a_while_costs_nothing_but_time(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.fail = lambda request: web.Response(status=401)
    await site.look()
    assert await site.states(batch.id) == ["native"] * 3
    site.openai.fail = lambda request: None
    site.openai.end(site.openai.batch)
    await site.look()
    assert await site.states(batch.id) == ["done"] * 3


async def test_a_provider_that_refuses_to_the_end_is_not_waited_for(site: NativeSite) -> None:
    batch = await site.submit()
    site.openai.fail = lambda request: web.Response(status=401)
    site.clock.ahead = timedelta(hours=22, minutes=1)
    await site.look()
    assert (await site.natives())[0]["cancelling_at"] is not None
    assert await site.states(batch.id) == ["native"] * 3
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_a_fault_of_ours_does_not_keep_a_batch_from_running(
    site: NativeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(site.records, "take", broken)
    batch = await site.submit()
    assert (await site.jobs.batch(batch.id))["live"]


@pytest.mark.parametrize("method", ["submit", "progress"])
async def test_a_fault_of_ours_keeps_no_items_at_a_provider(
    site: NativeSite, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(site.providers["openai"].batches, method, broken)
    batch = await site.submit()
    assert await site.states(batch.id) == ["pending" if method == "submit" else "native"] * 3
    site.clock.ahead = timedelta(hours=22, minutes=1)
    await site.look()
    site.clock.ahead += timedelta(hours=1)
    await site.look()
    assert await site.states(batch.id) == ["pending"] * 3


async def test_a_slow_submission_holds_up_no_other_decision(
    site: NativeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.Event()

    async def slow(*_: object) -> None:
        await going.wait()

    monkeypatch.setattr(site.records, "take", slow)
    first = await site.jobs.submit(chat_lines(3, "gpt"))
    await site.submitter.decide_all()
    small = await site.jobs.submit(chat_lines(1, "gpt"))
    await site.submitter.decide_all()
    assert [(await site.jobs.batch(each.id))["live"] for each in (first, small)] == [False, True]
    going.set()
    await site.submitter.idle()
    assert (await site.jobs.batch(first.id))["live"]
