"""SIGTERM under load: answers in progress finish, or end with an error; the books stay exact."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import httpx
import pytest

from tests.drills.load import Crowd
from tests.drills.site import DRAIN_SECONDS, Site
from tests.harness.gateway import TEAM_KEY
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow

#: What happens to requests that came after the last was answered, and that nobody has read.
LEFT_IN_THE_QUEUE = {aiohttp.ClientOSError.__name__, aiohttp.ServerDisconnectedError.__name__}

HEADERS = {"authorization": f"Bearer {TEAM_KEY}"}

#: What a client may see while the process goes: told so, or nobody listens any more.
TURNED_AWAY = {"503 server_is_overloaded", aiohttp.ClientConnectorError.__name__}


def test_answers_in_progress_finish(site: Site) -> None:
    """Again and again: whatever was begun is finished, and whatever is finished is charged."""
    asked = []
    for round_ in range(5):
        with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=30 + round_) as crowd:
            crowd.wait_for_busy()
            crowd.wait_for_more(50)
            site.gateway.terminate()
            crowd.stop_asking()
            assert site.gateway.wait(10) == 0
        begun = [answer for answer in crowd.answers if answer.status == 200]
        assert all(answer.complete for answer in begun), [a for a in begun if not a.complete][:3]
        asked += crowd.answers
        site.gateway.start()
        print(dict(crowd.faults))
        assert set(crowd.faults) <= TURNED_AWAY
    audit = site.check(asked, "shut down five times")
    assert audit.rows == audit.complete


def test_clients_that_keep_asking_see_nothing_break(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=39) as crowd:
        for _ in range(4):
            crowd.wait_for_busy()
            crowd.wait_for_more(50)
            site.gateway.terminate()
            assert site.gateway.wait(10) == 0
            site.gateway.start()
        crowd.wait_for_more(50)
    print(dict(crowd.faults))
    begun = [answer for answer in crowd.answers if answer.status == 200]
    assert all(answer.complete for answer in begun), [a for a in begun if not a.complete][:3]
    assert set(crowd.faults) <= TURNED_AWAY | LEFT_IN_THE_QUEUE
    audit = site.check(crowd.answers, "shut down four times while clients keep asking")
    assert audit.rows == audit.complete


def test_new_requests_are_turned_away_while_others_finish(site: Site) -> None:
    with stream(site, "paced", 41) as lines:
        next(lines)
        site.gateway.terminate()
        refused = eventually(lambda: _refused(site))
        assert refused is not None
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert list(lines)[-1] == "data: [DONE]"
    assert site.gateway.wait(10) == 0
    site.settle()
    # among them those that asked before the gateway was told
    assert {row["status"] for row in site.query("SELECT status FROM usage_records")} == {"ok"}


def test_a_stream_longer_than_the_drain_ends_with_an_error(site: Site) -> None:
    with stream(site, "endless", 41) as lines:
        next(lines)
        site.gateway.terminate()
        rest = list(lines)
    seen = [json.loads(line.removeprefix("data: ")) for line in rest]
    assert "data: [DONE]" not in rest
    assert seen[-1]["error"]["code"] == "server_is_overloaded"
    assert site.gateway.wait(10) == 0
    _partial_answer_is_charged(site, at_least=DRAIN_SECONDS)


def test_an_answer_longer_than_the_drain_is_refused_with_an_error(site: Site) -> None:
    answer: list[httpx.Response] = []
    body = {"model": "endless", "max_tokens": 41, "messages": [{"role": "user", "content": "hi"}]}
    caller = threading.Thread(
        target=lambda: answer.append(site.gateway.request("POST", "/v1/chat/completions", body))
    )
    caller.start()
    eventually(lambda: site.gateway.metric("gw_in_flight", model="endless") == 1)
    site.gateway.terminate()
    caller.join(15)
    assert answer[0].status_code == 503
    assert answer[0].json()["error"]["code"] == "server_is_overloaded"
    assert site.gateway.wait(10) == 0
    site.settle()
    rows = site.query("SELECT status, error_code, estimated FROM usage_records")
    assert [tuple(row) for row in rows] == [("error", "shutting_down", True)]


def test_a_second_signal_does_not_wait(site: Site) -> None:
    with stream(site, "endless", 41) as lines:
        next(lines)
        site.gateway.terminate()
        eventually(lambda: _refused(site))
        site.gateway.terminate()
        assert "data: [DONE]" not in list(lines)
    assert site.gateway.wait(2) == 0
    _partial_answer_is_charged(site, at_least=1)


def test_shutdown_without_valkey_keeps_the_charge_in_the_spool(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=50, seed=40) as crowd:
        crowd.wait_for_more(50)
        site.valkey.kill()
        crowd.wait_for_busy()
        site.gateway.terminate()
        crowd.stop_asking()
        assert site.gateway.wait(10) == 0
    assert site.spooled() > 0
    site.valkey.start()
    site.gateway.start()
    audit = site.check(crowd.answers, "shut down without valkey")
    assert audit.rows == audit.complete


@contextmanager
def stream(site: Site, model: str, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream's events, as they come."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "messages": [{"role": "user", "content": "count with me"}],
    }
    url = f"{site.gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=30) as response:
        assert response.status_code == 200
        yield (line for line in response.iter_lines() if line.startswith("data: "))


def _refused(site: Site) -> httpx.Response | None:
    body = {"model": "paced", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    response = site.gateway.request("POST", "/v1/chat/completions", body)
    return response if response.status_code == 503 else None


def _partial_answer_is_charged(site: Site, at_least: int) -> None:
    site.settle()
    [row] = site.query(
        "SELECT status, error_code, input_tokens, output_tokens, cost_nano_usd"
        " FROM usage_records WHERE model = 'endless'"
    )
    assert (row["status"], row["error_code"]) == ("error", "shutting_down")
    assert row["input_tokens"] == 3
    assert at_least <= row["output_tokens"] < 41
    assert row["cost_nano_usd"] == row["input_tokens"] * 3_000 + row["output_tokens"] * 15_000
