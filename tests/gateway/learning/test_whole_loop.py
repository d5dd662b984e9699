"""The whole loop, from the outside: requests, outcomes, retraining, promotion, what it is good for,
and the way back."""

from __future__ import annotations

import asyncio
import base64
import random
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from sluice.router.complexity.features import BUCKETS
from tests.gateway.learning.samples import model_file
from tests.gateway.learning.synthetic import MARKER, answer, is_hard, prompts
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway, sluice
from tests.harness.polling import eventually
from tests.harness.twins import answer_all
from tests.harness.upstream import Call, Upstream

LEARNT_FROM, TRIED_ON = 240, 80
SHARE = 0.5
MODELS = "/admin/routing/auto/models"


def priced(name: str, per_mtok: str) -> dict[str, Any]:
    price = {"input_per_mtok": per_mtok, "output_per_mtok": per_mtok}
    able = ["chat", "json_schema"]
    deployment = {"provider": "scripted", "model": name}
    return model(name, deployment, price=price, capabilities=able)


def config(upstream: Upstream) -> dict[str, Any]:
    tiers = [
        {"name": "economy", "models": {"small": 1}},
        {"name": "quality", "models": {"large": 1}, "share": SHARE},
    ]
    comparisons = {"judge": "judge", "share": 100, "daily_budget_usd": "1"}
    return {
        "providers": {"scripted": {"kind": "openai", "base_url": upstream.url}},
        "models": [priced("small", "1"), priced("large", "10"), priced("judge", "0.1")],
        "routing": {"auto": {"tiers": tiers, "sticky": False}},
        "learning": {"comparisons": comparisons, "retraining": {"labels": 100}},
    }


@dataclass(frozen=True)
class Asked:
    """A prompt, and what came of it."""

    prompt: str
    request_id: str
    model_used: str
    right: bool


class Caller:
    """A team that uses `auto`, and says how it went."""

    def __init__(self, gateway: Gateway) -> None:
        self._http = httpx.Client(
            base_url=gateway.url, headers={"authorization": f"Bearer {TEAM_KEY}"}, timeout=30
        )

    def close(self) -> None:
        self._http.close()

    def ask(self, prompt: str, model: str = "auto") -> Asked:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 100,
        }
        response = self._http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        right = response.json()["choices"][0]["message"]["content"] == "right"
        headers = response.headers
        return Asked(prompt, headers["x-request-id"], headers["x-model-used"], right)

    def ask_all(self, texts: Sequence[str]) -> list[Asked]:
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(self.ask, texts))

    def say(self, asked: Asked) -> httpx.Response:
        label = "good" if asked.right else "bad"
        body = {"request_id": asked.request_id, "label": label, "source": "user"}
        return self._http.post("/v1/feedback", json=body)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    server.on(MARKER, answer)
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, upstream: Upstream) -> Gateway:
    return start_gateway("auto-loop", config(upstream))


@pytest.fixture(scope="module")
def caller(gateway: Gateway) -> Iterator[Caller]:
    made = Caller(gateway)
    yield made
    made.close()


def rows(gateway: Gateway, query: str, *values: Any) -> list[asyncpg.Record]:
    async def work() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(gateway.env["SLUICE_DATABASE_URL"])
        try:
            return await connection.fetch(query, *values)
        finally:
            await connection.close()

    return asyncio.run(work())


def retrain(gateway: Gateway) -> None:
    """Have the loop do at once what it does by itself every day."""
    config_file = gateway.command[gateway.command.index("--config") + 1]
    done = subprocess.run(
        sluice("router", "loop", "--once", "--config", config_file),
        env=gateway.env,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr + done.stdout


def judged(gateway: Gateway) -> int:
    [row] = rows(gateway, "SELECT count(*) FROM route_labels WHERE source = 'judge'")
    return int(row[0])


def compared(gateway: Gateway) -> float:
    return gateway.metric("gw_auto_comparisons_total")


def quality(asked: Sequence[Asked]) -> float:
    return fmean(each.right for each in asked)


def test_the_whole_loop(gateway: Gateway, caller: Caller) -> None:
    before = caller.ask_all(prompts(LEARNT_FROM, seed=1))
    eventually(lambda: gateway.api("GET", "/v1/usage")["routing"], 30)  # the ledger is up
    for asked in before:
        said = caller.say(asked)
        assert said.status_code == 200, said.text
        assert said.json()["score"] == float(asked.right)
    eventually(lambda: compared(gateway) == LEARNT_FROM, 30)
    assert judged(gateway) >= LEARNT_FROM / 2  # of many at a time some are dropped

    retrain(gateway)
    [made] = gateway.api("GET", MODELS, key=ADMIN_KEY)["data"]
    assert (made["version"], made["state"], made["origin"]) == (1, "active", "training")
    assert made["report"]["against_present"]["better"]

    def learnt() -> bool:
        reason = gateway.request(
            "POST",
            "/v1/chat/completions",
            {
                "model": "auto",
                "messages": [{"role": "user", "content": f"{MARKER} about tensors"}],
                "max_tokens": 100,
            },
        ).headers["x-route-reason"]
        return "wording" in reason

    eventually(learnt, 5)
    after = caller.ask_all(prompts(TRIED_ON, seed=2))
    hard = [each for each in after if is_hard(each.prompt)]
    assert fmean(each.model_used == "large" for each in hard) > 0.8
    assert quality(after) > quality(before) + 0.1
    # at no higher cost: the share is what the policy says, whoever scores
    assert fmean(each.model_used == "large" for each in after) < SHARE + 0.15

    kept = rows(gateway, "SELECT count(*) FROM route_labels WHERE prompt IS NOT NULL")
    assert kept[0][0] == 0  # nobody has agreed to that
    back = gateway.api("POST", f"{MODELS}/rollback", key=ADMIN_KEY)
    assert back == {"model": None}
    eventually(lambda: not learnt(), 5)
    entries = gateway.api("GET", "/admin/audit?object_type=router_model", key=ADMIN_KEY)["data"]
    assert [(each["action"], each["actor"]) for each in entries] == [
        ("router_model.roll_back", "environment"),
        ("router_model.promote", "router"),
        ("router_model.create", "router"),
    ]


def test_a_model_that_was_trained_elsewhere(gateway: Gateway) -> None:
    draw = random.Random(0)
    file = model_file(table=array("f", (draw.random() for _ in range(BUCKETS))))
    assert len(file) > 200_000  # which no compression makes small
    url = "/admin/routing/elsewhere/models"
    body = {"file": base64.b64encode(file).decode(), "report": {"by": "us"}}
    made = gateway.api("POST", url, body, ADMIN_KEY)
    assert (made["version"], made["state"], made["origin"]) == (1, "candidate", "upload")
    assert (made["bytes"], made["report"]) == (len(file), {"by": "us"})
    promoted = gateway.api("POST", f"{url}/1/promote", key=ADMIN_KEY)
    assert promoted["state"] == "active"
    assert gateway.api("GET", f"{url}/1", key=ADMIN_KEY) == promoted
    assert gateway.api("GET", url, key=ADMIN_KEY)["data"] == [promoted]
    nothing = gateway.request("POST", url, {"file": "bm90aGluZw=="}, ADMIN_KEY)
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (409, "file")


def test_comparisons_are_charged(gateway: Gateway, caller: Caller) -> None:
    caller.ask(prompts(1, seed=3)[0])

    def charged() -> bool:
        usage = gateway.api("GET", "/v1/usage")["by_model"]
        tiers = {(each["model_used"], each["tier"]) for each in usage}
        return {("judge", "batch")} <= tiers

    eventually(charged, 20)
    spent = rows(gateway, "SELECT cost_nano_usd FROM comparison_spend")
    assert spent[0][0] > 0


def test_prompts_are_kept_where_the_team_says_so(gateway: Gateway, caller: Caller) -> None:
    team = gateway.api("GET", "/v1/limits")["team"]["id"]
    gateway.api("PATCH", f"/admin/teams/{team}", {"keep_prompts": True}, ADMIN_KEY)
    eventually(lambda: gateway.api("GET", "/v1/limits")["effective"]["keep_prompts"], 5)
    text = prompts(1, seed=4)[0]
    asked = caller.ask(text)
    query = "SELECT prompt FROM route_labels WHERE request_id = $1 AND source = 'judge'"
    found = eventually(lambda: rows(gateway, query, asked.request_id), 20)
    assert found[0]["prompt"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_does_not_fit_its_schema(gateway: Gateway, stream: bool) -> None:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": prompts(1, seed=6 + stream)[0]}],
        "max_tokens": 100,
        "stream": stream,
        "response_format": {"type": "json_object"},
    }
    answered = gateway.request("POST", "/v1/chat/completions", body)
    assert answered.status_code == 200, answered.text
    query = "SELECT source, score FROM route_labels WHERE request_id = $1 AND source <> 'judge'"
    found = eventually(lambda: rows(gateway, query, answered.headers["x-request-id"]), 10)
    assert [tuple(row) for row in found] == [("signal:schema", 0.0)]


def test_feedback_on_the_wrong_request(gateway: Gateway, caller: Caller) -> None:
    asked = caller.ask(prompts(1, seed=5)[0])
    team = gateway.api("POST", "/admin/teams", {"name": "others"}, ADMIN_KEY)
    other = gateway.api("POST", f"/admin/teams/{team['id']}/keys", {}, ADMIN_KEY)["key"]
    body = {"request_id": asked.request_id, "score": 1}
    eventually(lambda: caller.say(asked).status_code == 200, 30)

    def foreign() -> int:
        return gateway.request("POST", "/v1/feedback", body, key=other).status_code

    assert eventually(lambda: (status := foreign()) != 401 and status, 5) == 404
    assert gateway.request("POST", "/v1/feedback", body, key=ADMIN_KEY).status_code == 403
    assert gateway.request("POST", "/v1/feedback", body, key=None).status_code == 401


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"request_id": "x", "score": 1}, "request_id"),
        ({"score": 1}, "request_id"),
        ({"score": 1.5}, "score"),
        ({"score": 1, "label": "good"}, "score"),
        ({}, "score"),
        ({"label": "fine"}, "label"),
        ({"score": 1, "source": "a b"}, "source"),
        ({"score": 1, "more": 1}, "more"),
    ],
)
def test_feedback_that_is_none(gateway: Gateway, members: dict[str, Any], param: str) -> None:
    body = {"request_id": "01890a5d-ac96-774b-bcce-b302099a8057", **members}
    if param == "request_id" and "request_id" not in members:
        del body["request_id"]
    response = gateway.request("POST", "/v1/feedback", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_a_gateway_asked_for_when_it_stops_is_charged(
    gateway: Gateway, caller: Caller, upstream: Upstream
) -> None:
    """The last one: the gateway is gone after it."""
    asked: list[str] = []

    def answer_once(call: Call) -> None:
        asked.append(call.json["model"])
        if len(asked) == 1:
            answer_all(call)
        else:
            call.wait_for_client_to_leave()

    text = f"stopping {uuid4().hex}"
    upstream.on(text, answer_once)
    caller.ask(text)
    eventually(lambda: len(asked) == 2, 10)
    gateway.stop()
    query = (
        "SELECT model_used, tier, status, estimated, input_tokens, cost_nano_usd FROM usage_records"
        " WHERE error_code = 'shutting_down'"
    )
    [charged] = eventually(lambda: rows(gateway, query), 20)
    assert tuple(charged)[:4] == (asked[1], "batch", "error", True)
    assert charged["input_tokens"] > 0
    assert charged["cost_nano_usd"] > 0
