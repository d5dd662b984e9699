"""The pool as a backend, over replicas that do what a test tells them."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from sluice.backends.base import (
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    Placed,
    PoolFailed,
    UpstreamResponse,
)
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.description import described
from sluice.router.pool.membership import Event
from sluice.router.pool.placement import Prompt
from tests.router.pool.live_fakes import DONE, LOST, Harness, piece, settle

LONG = "word " * 1000  # 5,000 bytes: nine blocks


async def test_an_answer_passes_through() -> None:
    pool = Harness()
    assert await pool.ask() == piece() + DONE
    assert pool.outstanding() == 0
    assert [placed.replica for placed in pool.placed] == ["a"]


async def test_a_prompt_goes_where_its_prefix_is() -> None:
    pool = Harness("abc", placement="prefix_load")
    for _ in range(5):
        await pool.ask(LONG)
    assert len({placed.replica for placed in pool.placed}) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_is_forgotten(stream: bool) -> None:
    pool = Harness("a")
    pool["a"].hangs = True
    asking = asyncio.create_task(pool.ask(stream=stream))
    await settle()
    assert pool.outstanding() == 1
    await settle([asking])
    assert pool.outstanding() == 0


@pytest.mark.parametrize("turns", [1, 2])
async def test_who_leaves_while_a_replica_is_chosen_is_forgotten(turns: int) -> None:
    pool = Harness("a")
    asking = [asyncio.create_task(pool.ask()) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    assert pool.outstanding() == (0 if turns == 1 else 3)
    asking[0].cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert asking[0].cancelled()
    assert pool.outstanding() == 0
    assert len(pool["a"].requests) == 2


async def test_a_dropped_stream_is_closed_at_its_replica() -> None:
    pool = Harness("a")
    pool["a"].pieces = [piece(), ...]
    response = await pool.pool.send(pool.request())
    response.close()
    assert pool["a"].responses[0].closed
    assert pool.outstanding() == 0


class Asker:
    """Has the answer, and hears where it comes from."""

    def __init__(self) -> None:
        self.response: UpstreamResponse | None = None

    def placed(self, where: Placed) -> None:
        pass


async def ask_and_go(pool: Harness) -> weakref.ref[Asker]:
    asker = Asker()
    asker.response = await pool.pool.send(pool.request(placed=asker.placed))
    while await asker.response.next():
        pass
    pool["a"].requests.clear()
    return weakref.ref(asker)


async def test_an_answer_that_was_read_is_gone_without_a_collection() -> None:
    pool = Harness("a")
    gc.disable()
    try:
        asker = await asyncio.create_task(ask_and_go(pool))
        assert asker() is None
    finally:
        gc.enable()


async def test_one_that_cannot_be_reached_is_out_at_once() -> None:
    pool = Harness()
    pool["a"].error = ConnectFailed("no connection")
    await pool.ask()
    assert [placed.replica for placed in pool.placed] == ["a", "b"]
    assert pool.states() == {"a": "ejected", "b": "ready"}
    assert pool.watcher.moves == ["unreachable"]


async def test_a_connection_lost_before_the_first_token_moves_on() -> None:
    pool = Harness()
    pool["a"].pieces = [LOST]
    assert await pool.ask() == piece() + DONE
    assert pool.states()["a"] == "ready"


async def test_after_the_first_token_it_does_not() -> None:
    pool = Harness()
    pool["a"].pieces = [piece(), LOST]
    response = await pool.pool.send(pool.request())
    assert await response.next() == piece()
    with pytest.raises(ConnectionLost):
        await response.next()
    assert pool["b"].requests == []
    assert pool.outstanding() == 0


async def test_a_request_that_fells_everything_is_stopped() -> None:
    pool = Harness("abcde")
    for replica in pool.replicas.values():
        replica.pieces = [LOST]
    with pytest.raises(PoolFailed):
        await pool.ask()
    assert sum(len(replica.requests) for replica in pool.replicas.values()) == 3
    assert pool.outstanding() == 0


async def test_a_full_engine_sends_it_elsewhere() -> None:
    pool = Harness()
    pool["a"].status = 503
    assert await pool.ask() == piece() + DONE
    assert pool.states()["a"] == "ready"
    assert pool["a"].responses[0].closed


async def test_full_engines_everywhere_are_an_overload() -> None:
    pool = Harness()
    for replica in pool.replicas.values():
        replica.status, replica.headers = 503, {"retry-after": "7"}
    with pytest.raises(Overloaded) as refused:
        await pool.ask()
    assert refused.value.retry_after == 7
    assert pool.outstanding() == 0


async def test_a_500_counts_if_another_does_better() -> None:
    pool = Harness("abc")
    pool["a"].status = 500
    for _ in range(9):
        await pool.ask()
    assert pool.states() == {"a": "ejected", "b": "ready", "c": "ready"}


async def test_a_request_that_fails_everywhere_ejects_nobody() -> None:
    pool = Harness("abc")
    for replica in pool.replicas.values():
        replica.status = 500
    for _ in range(9):
        response = await pool.pool.send(pool.request())
        assert response.status == 500
        response.close()
    assert set(pool.states().values()) == {"ready"}
    assert pool.outstanding() == 0


async def test_a_hung_replica_loses_what_it_has_not_begun() -> None:
    pool = Harness()
    pool["a"].pieces = [...]
    asking = asyncio.create_task(pool.ask())
    await settle()
    for _ in range(2):
        pool.report("a", Event.PROBE_SLOW)
    assert await asking == piece() + DONE
    assert pool["a"].responses[0].closed
    assert pool.watcher.moves == ["ejected"]


async def test_a_caller_that_leaves_as_its_replica_is_ejected_has_left() -> None:
    pool = Harness()
    pool["a"].hangs = True
    asking = asyncio.create_task(pool.ask())
    await settle()
    for _ in range(2):
        pool.report("a", Event.PROBE_SLOW)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert pool["b"].requests == []
    assert pool.outstanding() == 0


async def test_an_interruption_leaves_timeouts_alone() -> None:
    pool = Harness()
    pool["a"].hangs = pool["b"].hangs = True

    async def hurried() -> None:
        async with asyncio.timeout(0.05):
            await pool.ask()

    asking = asyncio.create_task(hurried())
    await settle()
    for _ in range(2):
        pool.report("a", Event.PROBE_SLOW)
    with pytest.raises(TimeoutError):
        await asking
    assert len(pool["b"].requests) == 1


async def test_half_of_a_slow_pool_stays() -> None:
    pool = Harness("abcd")
    for name in "abcd":
        for _ in range(5):
            pool.report(name, Event.PROBE_SLOW)
    assert sum(state == "ready" for state in pool.states().values()) == 2


async def test_a_stream_that_stands_still_ejects() -> None:
    pool = Harness()
    pool["a"].pieces = [piece(), ...]
    response = await pool.pool.send(pool.request())
    await response.next()
    pool.clock.now += 31
    pool.pool.observe(pool.clock.now)
    assert pool.states()["a"] == "ejected"
    response.close()


async def test_nobody_ready_is_an_overload_until_the_first_is_back() -> None:
    pool = Harness("a")
    pool.report("a", Event.UNREACHABLE)
    pool.clock.now += 1
    with pytest.raises(Overloaded) as refused:
        await pool.ask()
    assert refused.value.retry_after == 4
    assert pool.placed[-1].replica is None


async def test_requests_wait_for_room_and_go_in_turn() -> None:
    pool = Harness("a", max_running=1)
    gate = asyncio.Event()
    pool["a"].pieces = [piece(), gate, piece(), DONE]
    tasks = [asyncio.create_task(pool.ask()) for _ in range(3)]
    await settle()
    assert len(pool["a"].requests) == 1
    pool.clock.now += 0.5
    gate.set()
    await asyncio.gather(*tasks)
    assert len(pool["a"].requests) == 3
    assert [round(placed.queued, 1) for placed in pool.placed] == [0.0, 0.5, 0.5]


async def test_who_would_wait_too_long_is_refused_and_told_when_to_come_back() -> None:
    pool = Harness("a", max_running=1, prefill_rate=1000.0)
    pool["a"].pieces = [...]
    tasks = [asyncio.create_task(pool.ask(f"{number} {LONG * 4}")) for number in range(2)]
    await settle()
    with pytest.raises(Overloaded) as refused:
        await pool.ask(f"3 {LONG * 4}")
    assert refused.value.retry_after >= 1
    assert pool.watcher.sheds == ["wait"]
    await settle(tasks)
    assert pool.outstanding() == 0


async def test_who_has_waited_too_long_is_refused() -> None:
    pool = Harness("a", max_running=1)
    pool["a"].pieces = [piece(), ...]
    tasks = [asyncio.create_task(pool.ask()) for _ in range(2)]
    await settle()
    pool.clock.now += 20
    pool.pool.tick(pool.clock.now)
    with pytest.raises(Overloaded):
        await tasks[1]
    assert pool.watcher.sheds == ["expired"]
    await settle(tasks)


async def test_who_leaves_the_queue_gives_up_the_place() -> None:
    pool = Harness("a", max_running=1)
    gate = asyncio.Event()
    pool["a"].pieces = [piece(), gate, DONE]
    tasks = [asyncio.create_task(pool.ask()) for _ in range(3)]
    await settle()
    await settle([tasks[1]])
    gate.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert len(pool["a"].requests) == 2


async def test_batch_makes_room() -> None:
    pool = Harness("a", max_running=2)
    pool["a"].hangs = True
    batch = [asyncio.create_task(pool.ask(tier="batch", stream=False)) for _ in range(2)]
    await settle()
    assert len(pool["a"].requests) == 2
    first = asyncio.create_task(pool.ask())
    await settle()
    pool["a"].hangs = False
    await pool.ask()
    assert pool.watcher.yields == 2
    assert await asyncio.gather(*batch) == [piece() + DONE] * 2  # they had another turn
    await settle([first])


async def test_a_prompt_of_a_team_above_its_share_makes_room() -> None:
    pool = Harness("a", prefill_rate=10.0, max_batched_tokens=1, interactive_slo=80.0)
    pool["a"].hangs = True
    flood: list[asyncio.Task[bytes]] = []
    for _ in range(30):
        pool.clock.now += 0.1
        flood.append(asyncio.create_task(pool.ask("much " * 8, team_id="flood")))
        await settle()
    early = len(pool["a"].requests)  # went before anybody could know that it is one
    await settle(flood[:early])
    assert len(pool["a"].requests) == early + 1
    pool["a"].hangs = False
    assert await pool.ask(team_id="small") == piece() + DONE
    assert pool.watcher.yields == 1
    for _ in range(100):  # they have another turn, one after the other
        pool.clock.now += 1.0
        pool.pool.act(pool.clock.now)
        await settle()
    assert {task.result() for task in flood[early:]} == {piece() + DONE}
    assert pool.outstanding() == 0


async def test_batch_whose_output_was_seen_stays() -> None:
    pool = Harness("a", max_running=1)
    gate = asyncio.Event()
    pool["a"].pieces = [piece(), gate, DONE]
    batch = asyncio.create_task(pool.ask(tier="batch"))
    await settle()
    asking = asyncio.create_task(pool.ask())
    await settle()
    assert pool.watcher.yields == 0
    gate.set()
    await asyncio.gather(batch, asking)


async def test_a_drained_replica_finishes_and_can_come_back() -> None:
    pool = Harness()
    gate = asyncio.Event()
    pool["a"].pieces = [piece(), gate, DONE]
    asking = asyncio.create_task(pool.ask())
    await settle()
    pool.pool.drain("a")
    for _ in range(3):
        await pool.ask()
    assert len(pool["b"].requests) == 3
    gate.set()
    await asking
    pool.pool.undrain("a")
    assert pool.states()["a"] == "joining"
    pool.report("a", Event.PROBE_OK)
    assert pool.states()["a"] == "ready"


async def test_a_team_has_its_class_and_may_ask_for_less() -> None:
    pool = Harness("a")
    config = PoolConfig("p", ("http://a",), team_priorities={"vip": "high"})
    asked = [("vip", "high"), ("vip", "low"), ("other", "high"), ("other", "low")]
    prompt = Prompt(1, (), 1)
    classes = [
        described(pool.request(team_id=team, priority=priority), config, "1", prompt, 1).priority
        for team, priority in asked
    ]
    assert classes == ["high", "low", "normal", "low"]


async def test_what_engines_report_corrects_the_index() -> None:
    pool = Harness("a", placement="prefix_load")
    usage = {"prompt_tokens": 1250, "completion_tokens": 3}
    cached = {**usage, "prompt_tokens_details": {"cached_tokens": 1200}}
    pool["a"].pieces = [piece(), piece(usage=cached), DONE]
    await pool.ask(LONG)
    size = pool.pool.scheduler.index.capacity("a")
    pool["a"].pieces = [piece(), piece(usage=usage), DONE]
    await pool.ask(LONG)  # now it says nothing, and has said before: nothing was cached
    assert pool.pool.scheduler.index.capacity("a") < size


async def test_a_whole_answer_pays_for_its_prompt_after_a_while() -> None:
    pool = Harness("a")
    pool["a"].hangs = True
    asking = asyncio.create_task(pool.ask(LONG, stream=False))
    await settle()
    load = pool.pool.scheduler.loads["a"]
    assert load.queued_prefill_tokens > 1000
    pool.clock.now += 1
    pool.pool.tick(pool.clock.now)
    assert load.queued_prefill_tokens == 0
    assert load.running == 1
    await settle([asking])


async def test_a_snapshot_tells_it_all() -> None:
    pool = Harness("ab", max_running=1)
    for replica in pool.replicas.values():
        replica.hangs = True
    tasks = [asyncio.create_task(pool.ask(priority="low")) for _ in range(3)]
    await settle()
    seen = pool.pool.snapshot()
    assert [(each.id, each.state, each.outstanding) for each in seen.replicas] == [
        ("a", "ready", 1),
        ("b", "ready", 1),
    ]
    assert {depth.priority: depth.waiting for depth in seen.queue if depth.waiting} == {"low": 1}
    await settle(tasks)
