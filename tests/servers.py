"""Real Postgres and Valkey servers for the tests, as fixtures.

One of each serves the whole session; tests get a database of their own (`database`), or a server
of their own where they stop or kill it (`postgres_server`, `valkey_server`).
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.server import EmbeddedServer
from sluice.gateway.embedded.valkey import EmbeddedValkey
from sluice.gateway.supervisor import child_setup

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


class RunningServer:
    """A server process that a test can stop, kill and start again; its data stays.

    The methods block. Call them from the main thread: the process ends with the thread that
    started it.
    """

    def __init__(self, server: EmbeddedServer, options: Sequence[str] = ()) -> None:
        self.server = server
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server isn't running"
        return self._process.pid

    def start(self) -> None:
        """Returns when the server answers."""
        assert self._process is None, "the server is running"
        self.server.prepare()
        part = self.server.part()
        assert part.log is not None
        part.log.parent.mkdir(exist_ok=True)
        with part.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*part.command, *self._options],
                env=dict(part.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=child_setup(part.stop_signal, part.user),  # noqa: PLW1509 - no threads
            )
        # In a thread, because a test that starts a server may be inside an event loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, self.server.ready(START_TIMEOUT)).result()

    def stop(self) -> None:
        """Stops the server cleanly; nothing happens if it isn't running."""
        if self._process is not None:
            self._process.send_signal(self.server.stop_signal)
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def kill(self) -> None:
        """As `kill -9` does; nothing happens if the server isn't running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None


@contextlib.contextmanager
def data_directory() -> Iterator[Path]:
    """A temporary data directory.

    Not pytest's own: those are closed to the user id that Postgres has under root, and too deep
    for sockets.
    """
    path = Path(tempfile.mkdtemp(prefix="sluice-test-", dir="/tmp"))
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def running(
    make: Callable[[Path], EmbeddedServer], options: Sequence[str] = ()
) -> Iterator[RunningServer]:
    """A running server with a new data directory, killed and removed in the end."""
    with data_directory() as path:
        server = RunningServer(make(path), options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data directory that embedded servers can use."""
    with data_directory() as path:
        yield path


@pytest.fixture(scope="session")
def postgres() -> Iterator[RunningServer]:
    """The Postgres server of the session; not to be stopped."""
    # Without fsync, creating databases is several times faster, and no test cuts the power.
    with running(EmbeddedPostgres, ("-c", "fsync=off")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: RunningServer) -> str:
    """The URL of the `postgres` database of the session's server."""
    return postgres.url


@pytest.fixture
async def database(postgres: RunningServer) -> AsyncIterator[str]:
    """The URL of a new, empty database."""
    assert isinstance(postgres.server, EmbeddedPostgres)
    name = f"test_{uuid.uuid4().hex}"
    connection = await asyncpg.connect(postgres.url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        yield postgres.server.database_url(name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def valkey() -> Iterator[RunningServer]:
    """The Valkey server of the session; not to be stopped. Tests share its keys."""
    with running(EmbeddedValkey, ("--databases", "64")) as server:
        yield server


@pytest.fixture
def valkey_server() -> Iterator[Callable[[], RunningServer]]:
    """Starts Valkey servers that the test may stop, each with data of its own."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(running(EmbeddedValkey))


@pytest.fixture
def postgres_server() -> Iterator[Callable[[], RunningServer]]:
    """Starts Postgres servers that the test may stop, each with data of its own."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(running(EmbeddedPostgres))
