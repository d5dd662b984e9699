"""The life of a replica, at every edge."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.restarts import RestartPolicy
from sluice.backends.worker.worker import ExitCode
from tests.backends.worker.conftest import FAST, Site, alive
from tests.harness.polling import eventually_async


async def test_it_joins_with_limits_and_load_and_leaves_when_asked(site: Site) -> None:
    running = site.run()
    ready = await site.until_ready()
    assert ready.problem is None
    assert (ready.limits.kv_blocks, ready.limits.block_size) == (1000, 128)
    assert ready.limits.context_length == 2048
    assert ready.limits.priority
    await site.tell(running=3, waiting=2, kv_usage=0.5)
    busy = await site.until(lambda each: each.load.running == 3)
    assert (busy.load.waiting, busy.load.kv_usage) == (2, 0.5)
    await site.tell(running=0, waiting=0)
    site.stop.signal()
    assert await running is ExitCode.STOPPED
    assert await site.announced() is None


async def test_it_is_not_ready_before_the_engine_has_made_a_token(site: Site) -> None:
    site.run()
    starting = await site.until(lambda each: each.problem == "its engine starts")
    assert starting.state == "joining"


async def test_a_changed_weights_file_is_refused(site: Site) -> None:
    content = bytearray((site.weights / "model.safetensors").read_bytes())
    content[1000] ^= 1
    (site.weights / "model.safetensors").write_bytes(content)
    assert await site.run() is ExitCode.WEIGHTS_REFUSED
    told = await site.announced()
    assert told is not None
    assert told.state == "joining"
    assert told.problem == (
        "weights refused: `model.safetensors` has another SHA-256 than the manifest"
    )
    assert site.starts() == []


async def test_a_crashed_engine_is_out_at_once_and_comes_back(site: Site) -> None:
    site.run()
    await site.until_ready()
    [(engine, _)] = site.starts()
    os.kill(engine, signal.SIGKILL)
    out = await site.until(lambda each: each.state == "joining")
    assert out.restarts == 1
    back = await site.until(lambda each: each.state == "ready")
    assert back.id == out.id
    assert len(site.starts()) == 2


async def test_what_a_crashed_engine_leaves_behind_is_ended(site: Site) -> None:
    site.run()
    await site.until_ready()
    [(engine, child)] = site.starts()
    os.kill(engine, signal.SIGKILL)
    await site.until(lambda each: each.restarts == 1)

    async def gone() -> bool:
        return not alive(child)

    await eventually_async(gone)


async def test_an_engine_that_crashes_again_and_again_is_given_up(site: Site) -> None:
    site.engine_options.append("--crash")
    assert await site.run() is ExitCode.ENGINE_FAILED
    assert len(site.starts()) == 3
    told = await site.announced()
    assert told is not None
    assert told.state == "joining"
    assert told.problem == "its engine exited with status 9"


async def test_an_engine_that_was_well_for_long_is_forgiven(site: Site) -> None:
    running = site.run()
    for crashes in range(4):  # one more than it takes to give up
        await site.until_ready(restarts=crashes)
        await asyncio.sleep(0.25)  # being ready for that long is what is tested
        os.kill(site.starts()[-1][0], signal.SIGKILL)
    await site.until_ready(restarts=4)
    assert not running.done()


async def test_a_program_that_is_not_there_is_said(site: Site) -> None:
    code = await site.run(command=["/no/such/engine"])
    assert code is ExitCode.ENGINE_FAILED
    told = await site.announced()
    assert told is not None
    assert told.problem == "`/no/such/engine` can't be run; see its output above"


async def test_an_engine_that_never_answers_is_not_waited_for_for_ever(site: Site) -> None:
    site.engine_options.append("--mute")
    running = site.run(
        watch=replace(FAST, start=0.2), restarts=RestartPolicy(first=0.01, attempts=2)
    )
    assert await running is ExitCode.ENGINE_FAILED
    told = await site.announced()
    assert told is not None
    assert told.problem == "its engine did not answer within 0.2 s"


async def test_the_memory_of_the_gpus_is_told(site: Site) -> None:
    cuda = SimpleNamespace(
        device_count=lambda: 1,
        get_device_properties=lambda _: SimpleNamespace(total_memory=80),
        device_memory_used=lambda _: 70,
    )
    site.run(GpuMemory(cuda))
    load = (await site.until_ready()).load
    assert (load.gpu_memory_used, load.gpu_memory_total) == (70, 80)


async def test_who_is_asked_to_stop_before_it_has_begun_starts_nothing(site: Site) -> None:
    site.stop.signal()
    assert await site.run() is ExitCode.STOPPED
    assert site.starts() == []


async def test_a_stopped_process_takes_no_requests_and_is_replaced(site: Site) -> None:
    site.run()
    await site.until_ready()
    [(engine, _)] = site.starts()
    os.kill(engine, signal.SIGSTOP)
    silent = await site.until(lambda each: each.state == "joining")
    assert silent.problem == "the engine does not answer"
    back = await site.until_ready(restarts=1)
    assert back.problem is None


async def test_a_pause_is_no_hang(site: Site) -> None:
    site.run()
    await site.until_ready()
    [(engine, _)] = site.starts()
    os.kill(engine, signal.SIGSTOP)
    await site.until(lambda each: each.state == "joining")
    os.kill(engine, signal.SIGCONT)
    await site.until_ready(restarts=0)


async def test_an_engine_that_answers_but_makes_no_token_is_hung(site: Site) -> None:
    site.run()
    await site.until_ready()
    await site.tell(stuck=True)
    await site.until_ready(restarts=1)
    assert len(site.starts()) == 2


async def test_an_engine_behind_which_the_core_died_is_replaced(site: Site) -> None:
    site.run()
    await site.until_ready()
    await site.tell(dead=True)
    await site.until_ready(restarts=1)


async def test_draining_waits_for_running_and_waiting_requests(site: Site) -> None:
    running = site.run()
    await site.until_ready()
    await site.tell(running=1, waiting=1)
    await site.until(lambda each: each.load.running == 1)
    site.stop.signal()
    await site.until(lambda each: each.state == "draining")
    await site.tell(running=0)
    await site.until(lambda each: each.load.running == 0)
    assert not running.done()
    await site.tell(waiting=0)
    assert await running is ExitCode.STOPPED


async def test_a_drain_has_an_end(site: Site) -> None:
    running = site.run(drain=0.2)
    await site.until_ready()
    await site.tell(running=1)
    await site.until(lambda each: each.load.running == 1)
    site.stop.signal()
    assert await running is ExitCode.DRAIN_CUT
    assert await site.announced() is None


async def test_a_second_signal_ends_at_once(site: Site) -> None:
    site.engine_options.append("--deaf")
    running = site.run(drain=600.0, grace=600.0)
    await site.until_ready()
    await site.tell(running=1)
    await site.until(lambda each: each.load.running == 1)
    site.stop.signal()
    await site.until(lambda each: each.state == "draining")
    site.stop.signal()
    async with asyncio.timeout(10):
        assert await running is ExitCode.DRAIN_CUT


async def test_an_engine_that_is_deaf_to_sigterm_is_killed(site: Site) -> None:
    site.engine_options.append("--deaf")
    running = site.run(grace=0.1)
    await site.until_ready()
    site.stop.signal()
    assert await running is ExitCode.STOPPED


async def test_a_crash_while_draining_ends_it(site: Site) -> None:
    running = site.run(drain=600.0)
    await site.until_ready()
    await site.tell(running=1)
    await site.until(lambda each: each.load.running == 1)
    site.stop.signal()
    await site.until(lambda each: each.state == "draining")
    os.kill(site.starts()[-1][0], signal.SIGKILL)
    assert await running is ExitCode.DRAIN_CUT
    assert len(site.starts()) == 1


async def test_a_stop_while_the_engine_starts_does_not_wait_for_it(site: Site) -> None:
    running = site.run()
    await site.until(lambda each: each.problem == "its engine starts")
    site.stop.signal()
    assert await running is ExitCode.STOPPED


async def test_a_stop_between_two_starts_is_heard(site: Site) -> None:
    site.engine_options.append("--crash")
    running = site.run(restarts=RestartPolicy(first=600.0, longest=600.0))
    await site.until(lambda each: each.restarts == 1)
    site.stop.signal()
    assert await running is ExitCode.STOPPED


async def test_the_guard_killed_takes_the_engine_along(site: Site) -> None:
    site.run()
    await site.until_ready()
    [(engine, child)] = site.starts()
    stat = await asyncio.to_thread(Path(f"/proc/{engine}/stat").read_text)
    guard = int(stat.rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    await site.until(lambda each: each.restarts == 1)

    async def gone() -> bool:
        return not alive(engine) and not alive(child)

    await eventually_async(gone)
