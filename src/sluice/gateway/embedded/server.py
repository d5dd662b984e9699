"""What the embedded servers have in common.

Each class describes one server process in the foreground: `prepare()` makes its directory ready,
`part()` is what the supervisor runs. The servers listen on a unix socket in a directory that only
their user can enter, and on no network port.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from pathlib import Path

from sluice.gateway.embedded.errors import EmbeddedServerError
from sluice.gateway.supervisor import Part

_POLL_INTERVAL = 0.02
#: Nothing of the caller's: PGDATA, PGPORT or a locale must not change what the server does.
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}


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
