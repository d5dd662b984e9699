"""Postgres from a wheel.

Postgres refuses to run as root. Under root it runs as a user id of its own, which needs no account
(see `SERVER_USER`), and that user has to be able to reach its programs and its data:

* Where every directory above them may be passed by anybody, both stay where they are.
* Below a closed directory, such as /root, the data goes to a new directory in `shared_root`, with
  a link to it in the data directory, and the programs are copied there once a version. Opening the
  closed directory instead would change who can read other people's files.

A user namespace in which root has another number would need neither, but common container runtimes
refuse to create one, and in it Postgres could still write every file of root's.
"""

import contextlib
import os
import pwd
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from sluice.gateway.embedded.directories import closed_ancestor, open_directory, private_directory
from sluice.gateway.embedded.errors import DataDirInUseError, EmbeddedServerError
from sluice.gateway.embedded.postgres_programs import (
    POSTGRES_MAJOR,
    SERVER_USER,
    postgres_program,
)
from sluice.gateway.embedded.server import EmbeddedServer
from sluice.gateway.embedded.sockets import ask, listening, socket_path

_DATABASE_USER = "sluice"
_POLL_INTERVAL = 0.02
_INITDB_TIMEOUT = 120.0
_ORPHAN_TIMEOUT = 10.0
_DEFAULT_SHARED_ROOT = Path("/var/lib/sluice")
_POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres server with the settings for a small machine.

    Takes the data directory of the installation, in which `postgres` is its own or links to it, and
    where to put data and programs that user ids other than root's couldn't reach.
    """

    name = "postgres"
    #: A "fast" shutdown: ends the sessions, writes a checkpoint.
    stop_signal = signal.SIGINT

    def __init__(self, data_dir: Path, shared_root: Path = _DEFAULT_SHARED_ROOT) -> None:
        super().__init__(data_dir)
        self._shared_root = shared_root

    @property
    def url(self) -> str:
        """The URL for `asyncpg`; its user owns the server."""
        return self.database_url("postgres")

    def database_url(self, database: str) -> str:
        """The URL of another database on the same server."""
        host = quote(str(self._socket.parent))
        return f"postgresql://{_DATABASE_USER}@/{quote(database)}?host={host}"

    @property
    def user(self) -> int | None:
        """Under root, the owner of the data; else None."""
        if os.geteuid() != 0:
            return None
        version = self._cluster / "PG_VERSION"
        return version.stat().st_uid if version.exists() else SERVER_USER

    def prepare(self) -> None:
        """See `EmbeddedServer.prepare`. Creates the database cluster if there is none."""
        if not self._link.exists():
            self._create_home()
        owner = os.geteuid() if self.user is None else self.user
        self._check_access(owner)
        private_directory(self._socket.parent, owner)
        if (self._cluster / "PG_VERSION").exists():
            self._check_version()
            self._refuse_if_running()
            self._end_orphans()
        else:
            self._create_cluster(owner)

    def command(self) -> list[str]:
        """See `EmbeddedServer.command`."""
        settings = _POSTGRES_SETTINGS | {"unix_socket_directories": str(self._socket.parent)}
        options = [text for key, value in settings.items() for text in ("-c", f"{key}={value}")]
        return [
            str(postgres_program("postgres", self._shared_root)),
            "-D",
            str(self._cluster),
            *options,
        ]

    async def answers(self) -> bool:
        """See `EmbeddedServer.answers`. During recovery, Postgres doesn't."""
        names = f"user\0{_DATABASE_USER}\0database\0postgres\0\0".encode()
        startup = struct.pack("!ii", 8 + len(names), 3 << 16) + names
        terminate = b"X" + struct.pack("!i", 4)
        return (await ask(self._socket, startup + terminate)).startswith(b"R")

    @property
    def _link(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def _home(self) -> Path:
        return self._link.resolve()

    @property
    def _cluster(self) -> Path:
        return self._home / "data"

    @property
    def _socket(self) -> Path:
        return socket_path(self._home, ".s.PGSQL.5432")

    def _create_home(self) -> None:
        if self._link.is_symlink():
            raise EmbeddedServerError(
                f"the Postgres data of {self.data_dir} was in {self._link.readlink()}, which is"
                f" gone; bring it back, or remove {self._link} to start with an empty database"
            )
        mode = self._create_data_dir()
        if os.geteuid() != 0 or closed_ancestor(self._link, SERVER_USER) is None:
            self._link.mkdir(mode=mode)
            self._link.chmod(mode)
            return
        # A name of its own each time: who deletes the data directory wants an empty database next.
        root = open_directory(self._shared_root)
        home = Path(tempfile.mkdtemp(prefix="postgres-data-", dir=root))
        home.chmod(mode)
        (home / "belongs-to").write_text(f"{self.data_dir}\n")
        self._link.symlink_to(home, target_is_directory=True)

    def _check_access(self, owner: int) -> None:
        """Raises EmbeddedServerError where the server couldn't open its own data."""
        if os.geteuid() not in (0, self._home.stat().st_uid):
            raise EmbeddedServerError(
                f"{self._home} belongs to user id {self._home.stat().st_uid}; start Sluice as that"
                " user or as root, or give it another data directory"
            )
        closed = closed_ancestor(self._cluster, owner) if os.geteuid() == 0 else None
        if closed is not None:
            raise EmbeddedServerError(
                f"Postgres doesn't run as root, and user id {owner}, which owns {self._cluster},"
                f" may not enter {closed}; move the data directory, or chmod o+x {closed}"
            )

    def _check_version(self) -> None:
        found = (self._cluster / "PG_VERSION").read_text().strip()
        if found != str(POSTGRES_MAJOR):
            raise EmbeddedServerError(
                f"{self._cluster} was written by Postgres {found}, this is {POSTGRES_MAJOR}:"
                " dump it with the old version and restore it into a new data directory"
            )

    def _refuse_if_running(self) -> None:
        lock = self._cluster / "postmaster.pid"
        pid = _first_number(lock)
        place = _working_directory(pid) if pid is not None else None
        if place == self._cluster or listening(self._socket):
            raise DataDirInUseError(
                f"{self._cluster} is in use by a Postgres server that is running (process {pid})"
            )
        if place is not None:
            # Killed, and something else has its process id by now, as is usual when a container is
            # started again. Postgres would believe that it is still running.
            lock.unlink(missing_ok=True)
            self._socket.with_name(f"{self._socket.name}.lock").unlink(missing_ok=True)

    def _end_orphans(self) -> None:
        """Ends the sessions of a server that was killed.

        They notice when they next wait for something, which after a long query is late, and until
        then Postgres would refuse to start.
        """
        deadline = time.monotonic() + _ORPHAN_TIMEOUT
        while orphans := _postgres_processes(self._cluster):
            if time.monotonic() > deadline:
                raise DataDirInUseError(f"{self._cluster} is in use by processes {orphans}")
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_INTERVAL)

    def _create_cluster(self, owner: int) -> None:
        """Creates it under another name first, so that an interrupted run leaves nothing behind."""
        unfinished = self._home / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account = None
        if os.geteuid() == 0:
            account = _unprivileged_account()
            os.chown(unfinished, account.pw_uid, account.pw_gid)
        command = [
            *(
                str(postgres_program("initdb", self._shared_root)),
                "-D",
                str(unfinished),
                "--username",
                _DATABASE_USER,
            ),
            # Whoever can enter the directory of the socket is the owner; there is no other way in.
            *("--auth-local=trust", "--auth-host=reject", "--no-instructions"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin"),
            "--builtin-locale=C.UTF-8",
        ]
        result = subprocess.run(  # noqa: S603 - our own arguments, no shell
            command,
            check=False,
            env=self.env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_INITDB_TIMEOUT,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        if result.returncode != 0:
            raise EmbeddedServerError(f"initdb failed: {result.stderr.strip()[-1000:]}")
        if account is not None:
            _change_owner(unfinished, owner)
        unfinished.rename(self._cluster)


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _working_directory(pid: int) -> Path | None:
    """The current directory of a process; None if it is gone or the system doesn't tell."""
    if sys.platform != "linux":
        return None
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def _postgres_processes(directory: Path) -> list[int]:
    """The ids of the Postgres processes that run in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text() == "postgres\n":
                pid = int(entry.name)
                if _working_directory(pid) == directory:
                    found.append(pid)
    return found


def _unprivileged_account() -> pwd.struct_passwd:
    """An account to run initdb as, which alone of the programs insists on one."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("nobody")
    for account in pwd.getpwall():
        if account.pw_uid != 0:
            return account
    raise EmbeddedServerError("Postgres doesn't run as root, and there is no other account")


def _change_owner(root: Path, owner: int) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
