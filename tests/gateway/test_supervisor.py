"""The supervisor with real child processes, and with real signals where the point is a signal."""

import asyncio
import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sluice.gateway import supervisor as supervisor_module
from sluice.gateway.supervisor import Backoff, Part, PartFailedError, Supervisor

pytestmark = pytest.mark.slow

DEADLINE = 10.0
QUICK = Backoff(first=0.01, longest=0.05)
SLEEPER = "import time; time.sleep(60)"

#: Writes its name to the journal (argv 2) when it starts and when it is asked to stop.
DIARIST = """
import signal, sys, time
name, journal = sys.argv[1:3]
def write(what):
    with open(journal, "a") as file:
        file.write(f"{what} {name}\\n")
def stop(*_):
    write("stop")
    sys.exit()
signal.signal(signal.SIGTERM, stop)
write("start")
time.sleep(60)
"""

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""

#: A supervisor in a process of its own, given the parts as JSON.
DRIVER = """
import asyncio, json, logging, sys
from sluice.gateway.supervisor import Part, Supervisor
async def main():
    logging.basicConfig(level="INFO", format="%(message)s")
    async with Supervisor() as supervisor:
        for part in json.loads(sys.argv[1]):
            await supervisor.start(Part(**part))
        print(json.dumps([supervisor.pid(p["name"]) for p in json.loads(sys.argv[1])]), flush=True)
        await supervisor.wait()
asyncio.run(main())
"""

SERVERS_DRIVER = """
import asyncio, json, sys
from pathlib import Path
from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.valkey import EmbeddedValkey
from sluice.gateway.supervisor import Supervisor
async def main():
    async with Supervisor() as supervisor:
        for server in (EmbeddedPostgres(Path(sys.argv[1])), EmbeddedValkey(Path(sys.argv[1]))):
            server.prepare()
            await supervisor.start(server.part())
        print(json.dumps([supervisor.pid("postgres"), supervisor.pid("valkey")]), flush=True)
        await supervisor.wait()
asyncio.run(main())
"""


def python(
    name: str,
    code: str,
    *arguments: str,
    answers: Callable[[], Awaitable[bool]] | None = None,
    log: Path | None = None,
    start_deadline: float = DEADLINE,
    stop_deadline: float = DEADLINE,
) -> Part:
    return Part(
        name=name,
        command=(sys.executable, "-ISc", code, *arguments),
        env={},
        answers=answers,
        log=log,
        start_deadline=start_deadline,
        stop_deadline=stop_deadline,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, but the process it was handed to hasn't noticed yet


@contextlib.contextmanager
def driver(code: str, argument: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    assert isinstance(pids, list)
    return pids


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def diarists(journal: Path, *names: str) -> str:
    parts = [
        {"name": name, "command": [sys.executable, "-ISc", DIARIST, name, str(journal)], "env": {}}
        for name in names
    ]
    return json.dumps(parts)


async def test_a_part_starts_only_when_the_one_before_answers(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    async def flag_exists() -> bool:
        return flag.exists()

    slow = f"import time; time.sleep(0.2); open({str(flag)!r}, 'w').close(); time.sleep(60)"
    check = f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))"
    async with Supervisor() as supervisor:
        await supervisor.start(python("slow", slow, answers=flag_exists))
        await supervisor.run_once(python("check", check))


async def test_a_part_that_dies_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async with Supervisor(backoff=QUICK) as supervisor:
        await supervisor.start(python("gateway", SLEEPER))
        first = supervisor.pid("gateway")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: supervisor.pid("gateway") not in (None, first))
    assert "gateway was killed by SIGKILL; restarting in 0.0 s" in caplog.text


def test_delays_double_up_to_the_longest() -> None:
    assert [Backoff().delay(n) for n in (1, 2, 3, 6, 7, 5000)] == [0.1, 0.2, 0.4, 3.2, 5.0, 5.0]


async def test_a_part_that_stayed_up_is_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    backoff = Backoff(first=0.1, longest=5.0, forgive_after=0.0)
    async with Supervisor(backoff=backoff) as supervisor:
        await supervisor.start(python("flaky", "import time; time.sleep(0.6)"))
        await until(lambda: caplog.text.count("restarting") >= 2)
    assert "restarting in 0.2 s" not in caplog.text


async def test_a_part_that_cannot_run_is_named_with_its_last_words() -> None:
    output = io.BytesIO()
    with pytest.raises(PartFailedError) as raised:
        async with Supervisor(output=output, backoff=QUICK) as supervisor:
            await supervisor.start(python("billing", "raise SystemExit('no database there')"))
    assert "billing could not be started: 5 times in a row it exited with status 1" in str(
        raised.value
    )
    assert str(raised.value).endswith("no database there")
    assert output.getvalue().count(b"no database there\n") == 5


async def test_last_words_are_found_in_a_log_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "postgres.log"
    with pytest.raises(PartFailedError, match="disk full"):
        async with Supervisor(backoff=QUICK, start_attempts=1) as supervisor:
            await supervisor.start(python("postgres", "raise SystemExit('disk full')", log=log))
    assert log.read_text() == "disk full\n"


async def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(PartFailedError, match=r"gateway cannot be run: .*/no/such/program"):
        async with Supervisor() as supervisor:
            await supervisor.start(Part("gateway", ["/no/such/program"], {}))


async def test_a_part_that_never_answers_fails_at_its_deadline() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(PartFailedError, match=r"mute could not be started: no answer within 0.2 s"):
        async with Supervisor() as supervisor:
            await supervisor.start(python("mute", SLEEPER, answers=never, start_deadline=0.2))


async def test_a_one_shot_that_fails_is_reported() -> None:
    async with Supervisor(output=io.BytesIO()) as supervisor:
        with pytest.raises(PartFailedError, match=r"(?s)migrate exited with status 3.*bad column"):
            await supervisor.run_once(python("migrate", "print('bad column'); raise SystemExit(3)"))


async def test_output_passes_through_in_whole_lines() -> None:
    output = io.BytesIO()
    code = "for n in range(20000): print('{\"n\": %d}' % n)\nprint('x' * 200000, end='')"
    async with Supervisor(output=output) as supervisor:
        for name in ("one", "two"):
            await supervisor.run_once(python(name, code))
    written = output.getvalue().splitlines()
    assert len(written) == 2 * 20001
    assert all(json.loads(line) == {"n": n} for n, line in enumerate(written[:20000]))


async def test_a_log_that_grew_too_large_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_LOG_LIMIT", 10)
    log = tmp_path / "valkey.log"
    async with Supervisor() as supervisor:
        for text in ("the first run", "the second"):
            await supervisor.run_once(python("valkey", f"print({text!r})", log=log))
    assert log.read_text() == "the second\n"
    assert (tmp_path / "valkey.log.1").read_text() == "the first run\n"


async def test_nothing_of_the_environment_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/somewhere")
    async with Supervisor() as supervisor:
        check = "import os; raise SystemExit('PGDATA' in os.environ)"
        await supervisor.run_once(python("check", check))


async def test_what_a_part_forked_goes_with_it() -> None:
    output = io.BytesIO()
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'],"
        " stdin=subprocess.PIPE); print(child.pid, flush=True); child.wait()"
    )
    async with Supervisor(output=output, backoff=QUICK) as supervisor:
        await supervisor.start(python("gateway", code))
        await until(lambda: b"\n" in output.getvalue())
        forked = int(output.getvalue())
        os.kill(supervisor.pid("gateway") or 0, signal.SIGKILL)
        await until(lambda: not alive(forked))


async def test_a_stop_while_starting_ends_the_block() -> None:
    async def never() -> bool:
        return False

    async with Supervisor() as supervisor:
        asyncio.get_running_loop().call_later(0.1, supervisor.request_stop)
        await supervisor.start(python("mute", SLEEPER, answers=never))
        pytest.fail("the start should have been given up")
    assert supervisor.pid("mute") is None


async def test_a_part_that_ignores_its_stop_signal_is_killed_at_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = io.BytesIO()
    async with Supervisor(output=output) as supervisor:
        await supervisor.start(python("stubborn", STUBBORN, stop_deadline=0.2))
        await until(lambda: output.getvalue() == b"ready\n")
    assert "stubborn did not stop in time" in caplog.text


def test_ctrl_c_stops_in_reverse_order(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with driver(DRIVER, diarists(journal, "postgres", "billing", "gateway")) as process:
        first_line(process)
        wait_until(lambda: len(lines(journal)) == 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    assert lines(journal)[3:] == ["stop gateway", "stop billing", "stop postgres"]


def test_a_second_ctrl_c_kills() -> None:
    command = [sys.executable, "-ISc", STUBBORN]
    part = {"name": "stubborn", "command": command, "env": {}, "stop_deadline": 60}
    with driver(DRIVER, json.dumps([part])) as process:
        pids = first_line(process)
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "stopping stubborn\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    assert not any(alive(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of the death")
def test_a_killed_supervisor_takes_its_children_along(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with driver(DRIVER, diarists(journal, "billing", "gateway")) as process:
        pids = first_line(process)
        wait_until(lambda: len(lines(journal)) == 2)
        process.kill()
        wait_until(lambda: not any(alive(pid) for pid in pids))
    assert sorted(lines(journal)[2:]) == ["stop billing", "stop gateway"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of the death")
def test_after_a_killed_supervisor_the_servers_start_again(data_dir: Path) -> None:
    for _ in range(2):
        with driver(SERVERS_DRIVER, str(data_dir)) as process:
            pids = first_line(process)
            assert all(alive(pid) for pid in pids)
            process.kill()
            wait_until(lambda pids=pids: not any(alive(pid) for pid in pids))  # type: ignore[misc]
    log = (data_dir / "logs/postgres.log").read_text()
    assert log.count("received fast shutdown request") == 2


async def test_messages_go_to_the_logger_that_was_given() -> None:
    records: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    logger = logging.Logger("recorder")
    logger.addHandler(Recorder())
    async with Supervisor(logger=logger) as supervisor:
        await supervisor.start(python("gateway", SLEEPER))
    assert records == ["stopping gateway"]
