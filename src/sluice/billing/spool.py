"""Usage events on disk while the usage stream is away.

A spool directory holds files of JSON lines, one group of events a line. Each writer has a file
of its own and holds an exclusive lock on it for as long as it lives; a file that nobody holds was
left by a process that died, and any gateway may replay it. A line without its line end was never
acknowledged to anyone and is not an event.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import uuid_utils

SUFFIX = ".usage.jsonl"


class Spool:
    """The spool of one gateway process. Methods block on the disk: call them off the loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def append(self, group: bytes) -> None:
        """Write a group of events through to the disk.

        Raises:
            OSError: it could not be made durable.
        """
        descriptor = self._open() if self._descriptor is None else self._descriptor
        view = memoryview(group + b"\n")
        try:
            while view:
                view = view[os.write(descriptor, view) :]
            os.fdatasync(descriptor)
        except OSError:
            self.close()  # the next group must not be written behind half a line
            raise

    def take(self) -> list[Path]:
        """Files ready to be replayed: this writer's own, which it gives up, and orphans.

        The caller holds no lock on them; see `claimed`.
        """
        self.close()
        return sorted(self._directory.glob("*" + SUFFIX))

    def size(self) -> int:
        """Bytes in the spool."""
        return sum(_size(path) for path in self._directory.glob("*" + SUFFIX))

    def close(self) -> None:
        """Give up the own file; its contents stay."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{uuid_utils.uuid7()}{SUFFIX}"
        unlocked = path.with_suffix(".new")  # others must not find it before it is locked
        descriptor = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(path)
            self._sync_directory()
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _sync_directory(self) -> None:
        """The file's name must survive a crash too."""
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class ClaimedFile:
    """A spool file that this process alone may replay, until closed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def claim(cls, path: Path) -> ClaimedFile | None:
        """Lock a file that nobody holds; None if somebody does, or if it is gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if not path.exists():  # replayed and removed between the two calls
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def groups(self) -> Iterator[bytes]:
        """The groups of events, in the order written."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def remove(self) -> None:
        """The contents are in the stream: delete the file."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
