"""`sluice up`: parts are killed and come back, data stays, ctrl-C ends everything."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.drills.load import Crowd
from tests.drills.up import PARTS, Up, alive
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, free_port, sluice
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow

KEYS = {"SLUICE_BOOTSTRAP_KEY": TEAM_KEY, "SLUICE_ADMIN_KEY": ADMIN_KEY}


@pytest.fixture
def installation(data_dir: Path) -> Iterator[Up]:
    """An installation with given keys; not started."""
    up = Up(data_dir, KEYS)
    yield up
    _end(up)


@pytest.fixture
def keyless(data_dir: Path) -> Iterator[Up]:
    """An installation that makes its keys; not started."""
    up = Up(data_dir, {})
    for name in KEYS:
        up.process.env.pop(name, None)
    yield up
    _end(up)


def test_a_part_that_is_killed_comes_back(installation: Up) -> None:
    installation.start()
    with Crowd(installation.url, TEAM_KEY, "paced", clients=100, seed=50) as crowd:
        crowd.wait_for_more(100)
        for part in ("billing", "valkey", "postgres"):
            installation.kill(part)
            crowd.wait_for_more(200)
        assert not crowd.faults
        for _ in range(2):
            installation.kill("gateway")
            crowd.wait_for_more(200)
    installation.check(crowd.answers, "parts of `up` killed in turn")
    assert installation.interrupt() == 0


def test_all_parts_are_killed_at_once_and_come_back(installation: Up) -> None:
    installation.start()
    with Crowd(installation.url, TEAM_KEY, "paced", clients=100, seed=51) as crowd:
        crowd.wait_for_more(100)
        for pid in [installation.pid_of(part) for part in PARTS]:
            os.kill(pid, signal.SIGKILL)
        crowd.wait_for_more(200, 60)
    installation.check(crowd.answers, "all parts of `up` killed")


def test_with_several_workers_one_is_killed(data_dir: Path) -> None:
    up = Up(data_dir, KEYS, "--workers", "2")
    try:
        up.start()
        with Crowd(up.url, TEAM_KEY, "paced", clients=100, seed=52) as crowd:
            crowd.wait_for_more(100)
            workers = up.workers()
            assert len(workers) == 2
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
                crowd.wait_for_more(200)
            family = up.family()
        up.check(crowd.answers, "workers of `up` killed")
        assert up.interrupt() == 0
        assert not [pid for pid in family if alive(pid)]
    finally:
        _end(up)


def test_several_workers_share_a_spool(data_dir: Path) -> None:
    """Each replays what it finds there, and none takes what another still writes."""
    up = Up(data_dir, KEYS, "--workers", "3")
    try:
        up.start()
        with Crowd(up.url, TEAM_KEY, "paced", clients=100, seed=55) as crowd:
            for _ in range(6):
                crowd.wait_for_more(100)
                up.kill("valkey")
        assert not crowd.faults
        audit = up.check(crowd.answers, "three workers, one spool")
        assert audit.rows == audit.complete == audit.sent
    finally:
        _end(up)


def test_ctrl_c_ends_everything_and_data_stays(installation: Up) -> None:
    said = installation.start()
    assert TEAM_KEY not in said
    assert ADMIN_KEY not in said
    assert "shown this once" not in said
    assert installation.ask(TEAM_KEY).status_code == 200
    family = installation.family()
    assert len(family) >= len(PARTS)
    assert installation.interrupt() == 0
    assert not [pid for pid in family if alive(pid)]
    with pytest.raises(httpx.ConnectError):
        installation.ask(TEAM_KEY)

    installation.start()
    assert installation.ask(TEAM_KEY).status_code == 200
    installation.settle()
    assert len(installation.query("SELECT FROM usage_records")) == 2
    assert "Traceback" not in installation.output()
    assert TEAM_KEY not in installation.output()
    assert ADMIN_KEY not in installation.output()


def test_ctrl_c_lets_streams_finish(installation: Up) -> None:
    installation.start()
    with Crowd(installation.url, TEAM_KEY, "paced", clients=50, seed=53) as crowd:
        crowd.wait_for_more(50)
        crowd.wait_for_busy()
        os.kill(installation.process.pid, signal.SIGINT)
        crowd.stop_asking()
        assert installation.process.wait(30) == 0
    assert all(answer.complete for answer in crowd.answers if answer.status == 200)
    installation.start()
    installation.check(crowd.answers, "ctrl-C under load")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_it(installation: Up, number: signal.Signals) -> None:
    installation.process.start()
    eventually(installation.family, 30)
    os.kill(installation.process.pid, number)
    assert installation.process.wait(30) == 0
    assert "Traceback" not in installation.output()
    installation.start()
    assert installation.ask(TEAM_KEY).status_code == 200


def test_a_kill_of_the_supervisor_leaves_no_process(installation: Up) -> None:
    installation.start()
    with Crowd(installation.url, TEAM_KEY, "paced", clients=50, seed=54) as crowd:
        crowd.wait_for_more(100)
        family = installation.family()
        installation.process.kill()
        eventually(lambda: not [pid for pid in family if alive(pid)], 30)
        installation.start()
        crowd.wait_for_more(50)
    installation.check(crowd.answers, "supervisor killed")


def test_generated_keys_are_shown_once_and_the_curl_line_works(keyless: Up) -> None:
    said = keyless.start()
    team = _shown(said, "First team's key")
    admin = _shown(said, "Admin key")
    curl = said[said.index("  curl ") :].splitlines()[0]
    assert team in curl
    result = subprocess.run(
        ["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(result.stdout)["choices"][0]["message"]["content"]
    reports = httpx.get(f"{keyless.url}/admin/teams", headers={"authorization": f"Bearer {admin}"})
    assert [row["name"] for row in reports.json()["data"]] == ["default"]
    assert keyless.interrupt() == 0

    again = keyless.start()
    assert "shown this once" not in again
    assert keyless.ask(team).status_code == 200
    assert keyless.output().count(admin) == 1
    curl = again[again.index("  curl ") :].splitlines()[0]
    env = {**os.environ, "SLUICE_KEY": team}
    result = subprocess.run(
        ["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=30, env=env
    )
    assert json.loads(result.stdout)["choices"]


def test_a_data_directory_serves_one_installation(installation: Up) -> None:
    installation.start()
    port = str(free_port())
    result = subprocess.run(
        sluice("up", "--port", port, "--data-dir", str(installation.data)),
        env=installation.process.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert "is in use by" in result.stderr
    assert "Traceback" not in result.stderr
    assert installation.ask(TEAM_KEY).status_code == 200


def _shown(said: str, what: str) -> str:
    match = re.search(rf"{what} \(shown this once\): (\S+)", said)
    assert match is not None, said
    return match[1]


def _end(up: Up) -> None:
    if up.process.running():
        os.kill(up.process.pid, signal.SIGTERM)
        up.process.wait(60)
