"""`sluice worker` as a process: its exit codes, its signals, and what outlives it: nothing."""

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from sluice.backends.replicas import Replicas
from sluice.backends.worker.worker import ExitCode
from tests.backends.worker.conftest import Site, alive
from tests.harness.gateway import Process, sluice
from tests.harness.polling import eventually, eventually_async
from tests.servers import RunningServer

KEY = "an-administrators-key-of-32-characters"


class Command:
    """The command for a site's model and engine."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.model_file = site.directory / "model.json"
        self.model_file.write_bytes(msgspec.json.encode(site.model))
        self.env = {"SLUICE_REDIS_URL": site.redis_url, "HOME": str(site.directory)}
        self.process: Process | None = None

    def run(self, *arguments: str) -> Process:
        """Start it with these arguments first."""
        site = self.site
        command = sluice(
            *("worker", *arguments),
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--engine-command", shlex.join(site.program)),
            *("--hung-seconds", "20", "--", *site.engine_options),
        )
        self.process = Process(command, self.env, site.directory / "worker.log")
        self.process.start()
        return self.process

    def run_file(self, *arguments: str) -> Process:
        """Start it with the model's file."""
        return self.run("--model-file", str(self.model_file), *arguments)

    async def ends(self) -> int:
        """Its exit status."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 60)


@pytest.fixture
def command(site: Site) -> Iterator[Command]:
    made = Command(site)
    yield made
    if made.process is not None:
        made.process.kill()
        eventually(lambda: not any(alive(pid) for pids in site.starts() for pid in pids))


async def test_it_serves_and_drains(site: Site, command: Command) -> None:
    worker = command.run_file("--advertise", "http://replica.example:8000/")
    ready = await site.until_ready()
    assert ready.url == "http://replica.example:8000"
    assert (ready.model, ready.version, ready.stage) == ("fake", "1", "prod")
    assert abs(ready.since - time.time()) < 60
    worker.terminate()
    assert await command.ends() == ExitCode.STOPPED
    assert await site.announced() is None
    assert (site.directory / ".cache/sluice/verified-weights.json").exists()


async def test_kill_9_of_the_worker_takes_the_engine_along(site: Site, command: Command) -> None:
    worker = command.run_file()
    await site.until_ready()
    assert await site.nothing_left() is False
    await asyncio.to_thread(worker.kill)
    await eventually_async(site.nothing_left, 5.0)

    async def lapsed() -> bool:
        return await site.pool_as_read.live(site.pool) == []

    await eventually_async(lapsed, 2.0)


async def test_a_second_sigterm_ends_it_at_once(site: Site, command: Command) -> None:
    worker = command.run_file("--drain-seconds", "600")
    await site.until_ready()
    await site.tell(running=1)
    await site.until(lambda each: each.load.running == 1)
    worker.terminate()
    await site.until(lambda each: each.state == "draining")
    worker.terminate()
    assert await command.ends() == ExitCode.DRAIN_CUT


async def test_a_corrupted_file_keeps_it_out(site: Site, command: Command) -> None:
    (site.weights / "model.safetensors").write_bytes(b"sthgiew" * 100_000)
    command.run_file()
    assert await command.ends() == ExitCode.WEIGHTS_REFUSED
    assert command.process is not None
    assert "another SHA-256" in command.process.log_text()
    assert site.starts() == []


async def test_a_crash_loop_has_an_end(site: Site, command: Command) -> None:
    site.engine_options.append("--crash")
    command.run_file("--crashes", "2")
    assert await command.ends() == ExitCode.ENGINE_FAILED
    assert len(site.starts()) == 2


async def test_weights_elsewhere_are_said(site: Site, command: Command) -> None:
    site.model = msgspec.structs.replace(site.model, weights="s3://bucket/model")
    command.model_file.write_bytes(msgspec.json.encode(site.model))
    command.run_file()
    assert await command.ends() == ExitCode.MODEL_UNUSABLE
    command.run_file("--weights", str(site.weights))
    await site.until_ready()


@pytest.mark.parametrize(
    ("arguments", "env", "status", "said"),
    [
        ((), {}, 2, "name a MODEL"),
        (("llama",), {"SLUICE_REDIS_URL": ""}, 1, "SLUICE_REDIS_URL is not set"),
        (("llama",), {}, 1, "SLUICE_ADMIN_KEY is not set"),
    ],
)
async def test_what_is_missing_is_said(
    command: Command, arguments: tuple[str, ...], env: dict[str, str], status: int, said: str
) -> None:
    command.env.update(env)
    worker = command.run(*arguments)
    assert await command.ends() == status
    assert said in worker.log_text()


async def test_redis_away_does_not_touch_the_engine(
    site: Site, command: Command, valkey_server: Callable[[], RunningServer]
) -> None:
    server = valkey_server()
    command.env["SLUICE_REDIS_URL"] = server.url
    worker = command.run_file()
    eventually(lambda: len(site.starts()) == 1, 60.0)
    server.kill()
    eventually(lambda: "the pool can't be told" in worker.log_text(), 60.0)
    server.start()
    eventually(lambda: "the pool is told again" in worker.log_text(), 60.0)
    async with Redis.from_url(server.url) as redis:
        replicas = Replicas(redis.execute_command)

        async def ready() -> bool:
            heard = await replicas.live(site.pool)
            return [each.announcement.state for each in heard] == ["ready"]

        await eventually_async(ready, 60.0)
    assert len(site.starts()) == 1
    assert worker.running()


class Registry:
    """Answers as the admin API does, with what a test wants."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.body = b""
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append((self.path, self.headers["authorization"]))
                status = registry.statuses.pop(0) if registry.statuses else 200
                self.send_response(status)
                self.send_header("content-length", str(len(registry.body)))
                self.end_headers()
                self.wfile.write(registry.body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def registry(command: Command) -> Iterator[Registry]:
    made = Registry()
    made.body = msgspec.json.encode(command.site.model)
    command.env.update(SLUICE_URL=made.url, SLUICE_ADMIN_KEY=KEY)
    yield made
    made.close()


async def test_the_model_comes_from_the_registry(
    site: Site, command: Command, registry: Registry
) -> None:
    registry.statuses = [503, 200]
    command.run("fake")
    ready = await site.until_ready()
    assert ready.model == "fake"
    path = "/admin/models/fake/versions/prod"
    assert registry.asked == [(path, f"Bearer {KEY}")] * 2
    environment = Path(f"/proc/{site.starts()[0][0]}/environ").read_bytes()
    assert KEY.encode() not in environment


async def test_a_version_that_is_not_registered_is_said(
    command: Command, registry: Registry
) -> None:
    registry.statuses, registry.body = [404], b'{"error": {"message": "There is no version."}}'
    worker = command.run("fake", "--version", "a/b")
    assert await command.ends() == ExitCode.MODEL_UNUSABLE
    assert registry.asked[0][0] == "/admin/models/fake/versions/a%2Fb"
    assert "There is no version." in worker.log_text()
    assert KEY not in worker.log_text()


async def test_a_registry_that_stays_away_is_said(command: Command) -> None:
    command.env.update(SLUICE_URL="http://127.0.0.1:1", SLUICE_ADMIN_KEY=KEY)
    worker = command.run("fake", "--registry-seconds", "0.1")
    assert await command.ends() == ExitCode.MODEL_UNUSABLE
    assert "the registry can't be read" in worker.log_text()


async def test_a_stop_while_the_registry_is_away_is_heard(command: Command) -> None:
    command.env.update(SLUICE_URL="http://127.0.0.1:1", SLUICE_ADMIN_KEY=KEY)
    worker = command.run("fake")
    eventually(lambda: "registry away" in worker.log_text(), 60.0)
    worker.terminate()
    assert await command.ends() == ExitCode.STOPPED
