"""Provider credentials in files that may change: rotation without a restart.

Kubernetes and others mount secrets as files and replace them in place. A file holds one key a
line; what it holds now is what is used, within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from sluice.router.credentials import Credentials

POLL_SECONDS = 2.0

_log = structlog.get_logger("sluice.credentials")


def read_keys(path: Path) -> list[str]:
    """The keys in a file, one a line; blank lines don't count.

    Raises:
        OSError, UnicodeDecodeError: the file can't be read.
    """
    return [line.strip() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]


class KeyFiles:
    """Follows the key files of providers."""

    def __init__(
        self,
        files: Mapping[str, Path],
        credentials: Mapping[str, Credentials],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Args:
        files: by provider name.
        credentials: by provider name; those of the files are replaced as the files change.
        poll_seconds: how often the files are looked at.
        """
        self._files = files
        self._credentials = credentials
        self._poll_seconds = poll_seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin following, if there is anything to follow."""
        if self._files:
            self._task = asyncio.create_task(self._follow(), name="key-files")

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            for provider, path in self._files.items():
                await self._refresh(provider, path)

    async def _refresh(self, provider: str, path: Path) -> None:
        """Take over a file's keys; a file that is empty or gone leaves the last ones in use."""
        try:
            keys = await asyncio.to_thread(read_keys, path)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("key file can't be read", provider=provider, error=type(error).__name__)
            return
        held = self._credentials[provider]
        if keys and tuple(keys) != held.secrets():
            held.replace(keys)
            _log.info("credentials rotated", provider=provider, keys=len(keys))
