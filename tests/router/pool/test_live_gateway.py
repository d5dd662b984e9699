"""A gateway before a pool of simulated replicas, all of them processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.router.pool.simulated import SimulatedReplica

SYSTEM = {"role": "system", "content": "You answer questions about ships. " * 120}


class Pool:
    """Three replicas and a gateway."""

    def __init__(self, replicas: list[SimulatedReplica], gateway: Gateway) -> None:
        self.replicas = replicas
        self.gateway = gateway
        self.http = httpx.Client(
            base_url=gateway.url, headers={"authorization": f"Bearer {TEAM_KEY}"}, timeout=30
        )

    def body(self, question: str, **more: Any) -> dict[str, Any]:
        messages = [SYSTEM, {"role": "user", "content": question}]
        return {"model": "pooled", "messages": messages, "max_tokens": 5, **more}

    def ask(self, question: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        return self.http.post(
            "/v1/chat/completions", json=self.body(question, **more), headers=headers
        )

    def state(self, replica: SimulatedReplica) -> float:
        return self.gateway.metric("gw_pool_replica_state", replica=replica.name)


@pytest.fixture(scope="module")
def pool(start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    directory = tmp_path_factory.mktemp("pool")
    engine = ("--kv-blocks", "2000", "--prefill-rate", "20000")
    replicas = [SimulatedReplica(directory, number, *engine) for number in range(3)]
    for replica in replicas:
        replica.start()
    config = {
        "providers": {
            "pool": {
                "kind": "vllm",
                "replicas": [replica.url for replica in replicas],
                "pool": {
                    "replica_header": "name",
                    "health": {"ejection_seconds": 0.5, "metrics_seconds": 0.2},
                },
            }
        },
        "models": [model("pooled", {"provider": "pool", "model": "sim"})],
    }
    made = Pool(replicas, start_gateway("pooled", config))
    yield made
    made.http.close()
    for replica in replicas:
        replica.kill()


def test_a_shared_prefix_meets_its_cache(pool: Pool) -> None:
    answers = [pool.ask(f"question {number}", stream=number % 2 == 0) for number in range(10)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-replica"] for answer in answers}) == 1
    assert all(int(answer.headers["x-queue-ms"]) < 1000 for answer in answers)
    cached = json.loads(answers[-1].content)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 500


def test_what_replicas_say_of_themselves_is_shown(pool: Pool) -> None:
    pool.ask("who are you?")
    gateway = pool.gateway
    eventually(lambda: gateway.metric("gw_pool_replica_prefix_hits", pool="pool") > 0)
    assert gateway.metric("gw_pool_replica_state", pool="pool") == 3
    assert gateway.metric("gw_pool_queue_seconds_count", pool="pool", tier="interactive") > 0


def test_the_batch_tier_has_its_own_class(pool: Pool) -> None:
    assert pool.ask("later", headers={"x-tier": "batch", "x-priority": "low"}).status_code == 200
    metric = "gw_pool_queue_seconds_count"
    assert pool.gateway.metric(metric, tier="batch", priority="low") == 1


def test_a_priority_that_there_is_not_is_refused(pool: Pool) -> None:
    answer = pool.ask("now!", headers={"x-priority": "urgent"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-priority"


def test_a_killed_replica_is_replaced_and_comes_back(pool: Pool) -> None:
    victim = next(r for r in pool.replicas if r.name == pool.ask("x").headers["x-replica"])
    victim.kill()
    answers = [pool.ask(f"after {number}") for number in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert victim.name not in {answer.headers["x-replica"] for answer in answers}
    eventually(lambda: pool.state(victim) == 3)
    victim.start()
    eventually(lambda: pool.state(victim) == 1)


def test_a_hung_replica_takes_no_requests_and_loses_none(pool: Pool) -> None:
    victim = next(r for r in pool.replicas if r.name == pool.ask("x").headers["x-replica"])
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(8) as crowd:
            answers = list(crowd.map(lambda n: pool.ask(f"hung {n}", stream=True), range(16)))
        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.content.endswith(b"[DONE]\n\n") for answer in answers)
        eventually(lambda: pool.state(victim) == 3, 3)
        assert pool.ask("and now?").headers["x-replica"] != victim.name
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    eventually(lambda: pool.state(victim) == 1)


def test_clients_that_leave_free_their_replicas(pool: Pool) -> None:
    seen = threading.Semaphore(0)

    def leave(number: int) -> None:
        body = pool.body(f"leaving {number}", stream=True, max_tokens=1000)
        with pool.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_bytes())
        seen.release()

    with ThreadPoolExecutor(8) as crowd:
        list(crowd.map(leave, range(30)))
    outstanding = "gw_pool_replica_outstanding"
    eventually(lambda: pool.gateway.metric(outstanding, pool="pool") == 0)
    eventually(lambda: sum(map(_running, pool.replicas)) == 0)


def _running(replica: SimulatedReplica) -> float:
    for line in httpx.get(f"{replica.url}/metrics").text.splitlines():
        if line.startswith("vllm:num_requests_running"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError("no such metric")
