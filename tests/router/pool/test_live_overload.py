"""Three times what a pool can do, for a minute, from several teams: what is accepted is in time."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import ADMIN_KEY, Gateway
from tests.harness.polling import eventually
from tests.router.pool.simulated import SimulatedReplica

pytestmark = pytest.mark.slow

PREFILL_RATE, REPLICAS = 2000, 2
PROMPT_TOKENS = 400
CAPACITY = REPLICAS * PREFILL_RATE / PROMPT_TOKENS  # requests a second
SLO = 2.0
SECONDS = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, as its client saw it.

    Attributes:
        status: HTTP status.
        seconds: to the first piece, or to the refusal.
        retry_after: as told.
    """

    status: int
    seconds: float
    retry_after: int | None


@pytest.fixture(scope="module")
def gateway(
    start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("overload")
    engine = ("--kv-blocks", "20000", "--prefill-rate", str(PREFILL_RATE), "--max-num-seqs", "64")
    replicas = [SimulatedReplica(directory, number, *engine) for number in range(REPLICAS)]
    for replica in replicas:
        replica.start()
    pool = {
        "ttft_slo_seconds": {"interactive": SLO},
        "prefill_tokens_per_second": PREFILL_RATE,
        "bytes_per_token": 7,
    }
    urls = [replica.url for replica in replicas]
    config = {
        "providers": {"pool": {"kind": "vllm", "replicas": urls, "pool": pool}},
        "models": [model("pooled", {"provider": "pool", "model": "sim"})],
    }
    gateway = start_gateway("overload", config)
    eventually(lambda: gateway.metric("gw_pool_replica_state", pool="pool") == REPLICAS)
    yield gateway
    for replica in replicas:
        replica.kill()


@pytest.fixture(scope="module")
def keys(gateway: Gateway) -> list[str]:
    """Of four teams."""
    made = []
    for number in range(4):
        gateway.api("POST", "/admin/teams", {"name": f"team-{number}"}, key=ADMIN_KEY)
        path = f"/admin/teams/team-{number}/keys"
        made.append(gateway.api("POST", path, {}, key=ADMIN_KEY)["key"])
    eventually(lambda: all(gateway.request("GET", "/v1/models", key=k).is_success for k in made))
    return made


async def ask(session: aiohttp.ClientSession, key: str, number: int) -> Seen:
    draw = random.Random(number)
    words = " ".join(f"{draw.randrange(10**6):06d}" for _ in range(PROMPT_TOKENS))
    body = {
        "model": "pooled",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 4,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {key}"}
    began = time.monotonic()
    async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.content.readany()
        seconds = time.monotonic() - began
        await answer.read()
        wait = answer.headers.get("retry-after")
        return Seen(answer.status, seconds, None if wait is None else int(wait))


async def offer(gateway: Gateway, keys: list[str], rate: float, seconds: float) -> list[Seen]:
    """Requests at random times, whatever comes of those before."""
    draw = random.Random(3)
    async with aiohttp.ClientSession(
        gateway.url, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        tasks: list[asyncio.Task[Seen]] = []
        due = time.monotonic()
        ends = due + seconds
        while due < ends:
            due += draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asking = ask(session, draw.choice(keys), len(tasks))
            tasks.append(asyncio.create_task(asking))
        return await asyncio.gather(*tasks)


async def test_what_is_accepted_is_in_time(gateway: Gateway, keys: list[str]) -> None:
    began = time.monotonic()
    seen = await offer(gateway, keys, 3 * CAPACITY, SECONDS)
    seconds = time.monotonic() - began
    served = [each for each in seen if each.status == 200]
    refused = [each for each in seen if each.status != 200]
    good = sum(each.seconds <= SLO for each in served)
    print(
        f"offered {len(seen)}, served {len(served)}, good {good} of {CAPACITY * seconds:.0f};"
        f" refused after {statistics.mean(each.seconds for each in refused):.3f} s in the mean,"
        f" told to wait {statistics.mean(each.retry_after or 0 for each in refused):.1f} s;"
        f" first tokens at the deciles {_deciles(each.seconds for each in served)} s"
    )
    assert {each.status for each in refused} == {503}
    assert all(each.retry_after for each in refused)
    assert good >= 0.9 * CAPACITY * SECONDS
    assert good >= 0.95 * len(served)
    eventually(lambda: gateway.metric("gw_pool_queue_depth", pool="pool") == 0)


def _deciles(seconds: Iterable[float]) -> list[float]:
    return [round(each, 2) for each in statistics.quantiles(seconds, n=10)]
