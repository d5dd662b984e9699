"""What can be wrong at a start is said in one line that names it, with no traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import pytest

from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, free_port, sluice
from tests.servers import RunningServer

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
REDIS = "redis://127.0.0.1:1/0"

MODEL = """
models:
  - name: one
    context_length: 100
    capabilities: [chat]
    deployments: [{provider: sim, model: x}]
"""


def run(
    *arguments: str, env: Mapping[str, str] | None = None, directory: Path | None = None
) -> str:
    """Run a command that must fail; give what it says."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    result = subprocess.run(
        sluice(*arguments),
        env={**base, **(env or {})},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode in (1, 2), result
    assert "Traceback" not in result.stderr, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    return result.stderr


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def test_the_port_is_taken(taken_port: str, data_dir: Path) -> None:
    for command in (["up", "--data-dir", str(data_dir)], ["serve"], ["simulator"]):
        said = run(*command, "--port", taken_port)
        assert said == f"Error: can't listen on 127.0.0.1:{taken_port}: it is taken\n"
    assert not list(data_dir.iterdir())


def test_the_address_is_another_machines() -> None:
    assert "can't listen on 192.0.2.1:" in run("serve", "--host", "192.0.2.1")
    assert "can't listen on no.such.host.invalid:" in run("serve", "--host", "no.such.host.invalid")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("providers: [", ": not valid YAML: line "),
        ("", ": must be a mapping"),
        (
            "providers:\n  sim: {kind: simulator}\n",
            ":1: models: is empty; only vLLM providers serve models",
        ),
        ("providers:\n  sim: {kind: simulator, speed: 3}" + MODEL, ":2: providers.sim.speed: "),
        ("providers:\n  other: {kind: simulator}" + MODEL, ":7: models.0.deployments.0.provider: "),
        ("providers:\n  sim:\n    kind: openai\n    api_key: ${NOT_SET}" + MODEL, ":4: providers."),
        ("providers:\n  sim:\n    kind: openai\n    base_url: ftp://x" + MODEL, ":4: providers."),
    ],
)
def test_the_configuration_is_wrong(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text(text)
    for command in ("serve", "up"):
        said = run(command, "--config", str(file), "--port", str(free_port()), directory=tmp_path)
        assert f"{file}{fault}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["sluice.yaml"]


def test_the_configuration_is_missing(tmp_path: Path) -> None:
    said = run("serve", "--config", str(tmp_path / "none.yaml"))
    assert said == f"Error: {tmp_path}/none.yaml: can't be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("command", "env", "said"),
    [
        ("serve", {}, "SLUICE_DATABASE_URL is not set"),
        ("billing", {"SLUICE_REDIS_URL": REDIS}, "SLUICE_DATABASE_URL is not set"),
        ("billing", {"SLUICE_DATABASE_URL": NOWHERE}, "SLUICE_REDIS_URL is not set"),
        ("migrate", {}, "SLUICE_DATABASE_URL is not set"),
        ("serve", {"SLUICE_ADMIN_KEY": "short"}, "SLUICE_ADMIN_KEY must have at least 32"),
        ("up", {"SLUICE_BOOTSTRAP_KEY": "short"}, "SLUICE_BOOTSTRAP_KEY must have at least 32"),
    ],
)
def test_the_environment_is_incomplete(
    command: str, env: dict[str, str], said: str, tmp_path: Path
) -> None:
    arguments = [] if command in ("billing", "migrate") else ["--port", str(free_port())]
    assert said in run(command, *arguments, env=env, directory=tmp_path)


@pytest.mark.parametrize("command", ["serve", "billing", "migrate"])
@pytest.mark.parametrize(
    "url",
    [
        NOWHERE,
        "postgresql://x@no.such.host.invalid/x",
        "postgresql:///x?host=/nowhere",
        "mysql://x/y",
        "postgresql://x@127.0.0.1:port/x",
        "nonsense",
    ],
)
def test_the_database_is_away(command: str, url: str, tmp_path: Path) -> None:
    env = {"SLUICE_DATABASE_URL": url, "SLUICE_REDIS_URL": REDIS}
    arguments = ["--port", str(free_port())] if command == "serve" else []
    assert "database" in run(command, *arguments, env=env, directory=tmp_path).lower()


@pytest.mark.parametrize("command", ["serve", "billing"])
@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1/", "redis://127.0.0.1:port/0"])
def test_the_address_of_redis_is_none(
    command: str, url: str, postgres_url: str, tmp_path: Path
) -> None:
    env = {"SLUICE_DATABASE_URL": postgres_url, "SLUICE_REDIS_URL": url}
    arguments = ["--port", str(free_port())] if command == "serve" else []
    assert "SLUICE_REDIS_URL" in run(command, *arguments, env=env, directory=tmp_path)


async def test_the_database_has_no_schema(database: str, tmp_path: Path) -> None:
    env = {"SLUICE_DATABASE_URL": database, "SLUICE_REDIS_URL": REDIS}
    for keys in ({}, {"SLUICE_BOOTSTRAP_KEY": TEAM_KEY}):
        said = run("serve", "--port", str(free_port()), env={**env, **keys}, directory=tmp_path)
        assert "run `sluice migrate`" in said


async def test_the_database_does_not_exist_or_is_newer(database: str, tmp_path: Path) -> None:
    missing = database.replace("/test_", "/missing_")
    env = {"SLUICE_DATABASE_URL": missing, "SLUICE_REDIS_URL": REDIS}
    assert "does not exist" in run("serve", "--port", str(free_port()), env=env, directory=tmp_path)
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE api_keys (id int)")
    await connection.close()
    run("migrate", env={"SLUICE_DATABASE_URL": database}, directory=tmp_path)


def test_the_database_stops_during_the_start(
    postgres_server: Callable[[], RunningServer], tmp_path: Path
) -> None:
    server = postgres_server()
    server.stop()
    env = {"SLUICE_DATABASE_URL": server.url, "SLUICE_REDIS_URL": REDIS}
    said = run("serve", "--port", str(free_port()), env=env, directory=tmp_path)
    assert "can't reach the database of SLUICE_DATABASE_URL" in said


def test_the_data_directory_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    run("up", "--data-dir", str(file), "--port", str(free_port()))
    run("up", "--data-dir", str(file / "below"), "--port", str(free_port()))


def test_the_gateway_of_an_administrator_is_away() -> None:
    env = {"SLUICE_URL": "http://127.0.0.1:1", "SLUICE_ADMIN_KEY": ADMIN_KEY}
    assert "can't reach http://127.0.0.1:1" in run("team", "list", env=env)
    assert "SLUICE_ADMIN_KEY is not set" in run("team", "list")
    assert "Error: " in run("team", "list", env={**env, "SLUICE_URL": "nonsense"})


def test_ctrl_c_while_nothing_answers_is_no_error(tmp_path: Path) -> None:
    """A database that takes connections and says nothing: the start hangs until interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x"
        process = subprocess.Popen(
            # a shell's background jobs ignore it, and so do the tests that one runs
            ["env", "--default-signal=INT", *sluice("billing")],
            env={**os.environ, "SLUICE_DATABASE_URL": url, "SLUICE_REDIS_URL": REDIS},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
            connection.close()
    assert b"Traceback" not in said, said.decode()
    assert process.returncode != 0
