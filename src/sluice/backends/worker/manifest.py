"""The files of a model's weights, with their checksums; and whether a directory has just these.

A missing file, a changed one and an extra one are all refused: an engine loads what it finds.
Checksums are computed in several threads, in pieces, so that memory stays small whatever the size
of a file. What was verified once is remembered by everything that the file system tells of a file,
so that a restart takes no time; whoever can write to that memory could as well change the worker.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeAlias

import msgspec

_PIECE_BYTES = 4 * 1024 * 1024
_THREADS = 8


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file.

    Attributes:
        sha256: of its contents, in lower-case hexadecimal digits.
        size: bytes.
    """

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    size: Annotated[int, msgspec.Meta(ge=0)]


#: Files by their path below the weights' directory, with `/` between its parts.
Manifest: TypeAlias = dict[str, FileEntry]


class WeightsRefused(Exception):
    """A directory of weights is not what its manifest says; the message lists the differences."""

    def __init__(self, problems: list[str]) -> None:
        shown = "; ".join(problems[:10])
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        super().__init__(shown + more)
        self.problems = problems


class CheckCancelled(Exception):
    """Nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file as the file system tells of it; times are in nanoseconds.

    Attributes:
        regular: whether it is a file proper.
    """

    size: int
    mtime: int
    ctime: int
    inode: int
    device: int
    regular: bool

    @property
    def mark(self) -> str:
        """Changes whenever the file does."""
        return f"{self.size}:{self.mtime}:{self.ctime}:{self.inode}:{self.device}"


def check_manifest(manifest: Mapping[str, FileEntry]) -> None:
    """Raises:
    ValueError: it names no file, or a path that could lead out of its directory.
    """
    if not manifest:
        raise ValueError("the manifest names no file")
    for path in manifest:
        parts = PurePosixPath(path)
        if (
            path != str(parts)
            or parts.is_absolute()
            or not parts.parts
            or ".." in parts.parts
            or "\\" in path
            or "\0" in path
        ):
            raise ValueError(f"the manifest names `{path}`, which is no path below a directory")


def differences(
    manifest: Mapping[str, FileEntry], found: Mapping[str, Found], sums: Mapping[str, str]
) -> list[str]:
    """How a directory differs from its manifest, for people.

    Args:
        manifest: what should be there.
        found: what is there.
        sums: checksums of what is there, where they are known.
    """
    problems = [f"`{path}` is missing" for path in manifest if path not in found]
    for path, file in found.items():
        entry = manifest.get(path)
        if entry is None:
            problems.append(f"`{path}` is not in the manifest")
        elif not file.regular:
            problems.append(f"`{path}` is not a regular file")
        elif file.size != entry.size:
            problems.append(f"`{path}` has {file.size} bytes instead of {entry.size}")
        elif path in sums and sums[path] != entry.sha256:
            problems.append(f"`{path}` has another SHA-256 than the manifest")
    return sorted(problems)


def files_below(directory: Path) -> dict[str, Found]:
    """The files below a directory, links to files followed. A link to a directory stands for
    itself, so that nothing is hidden behind it.

    Raises:
        OSError: it can't be read.
    """

    def unreadable(error: OSError) -> None:
        raise error

    found = {}
    for folder, children, names in os.walk(directory, onerror=unreadable):
        links = [child for child in children if Path(folder, child).is_symlink()]
        for name in (*names, *links):
            path = Path(folder, name)
            found[path.relative_to(directory).as_posix()] = _found(path)
    return found


def _found(path: Path) -> Found:
    try:
        status = path.stat()
    except FileNotFoundError:  # a link that leads nowhere
        status = path.lstat()
    return Found(
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        status.st_dev,
        stat.S_ISREG(status.st_mode),
    )


class VerifiedFiles:
    """Checksums of files that have not changed since they were computed, kept in a file.

    A memory that can't be read is an empty one, and one that can't be written is not kept: both
    only cost time.
    """

    def __init__(self, file: Path | None) -> None:
        """Args:
        file: where it is kept; None: nowhere.
        """
        self._file = file
        self._known: dict[str, tuple[str, str]] = {}
        if file is not None:
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                self._known = msgspec.json.decode(
                    file.read_bytes(), type=dict[str, tuple[str, str]]
                )

    def sha256(self, path: Path, found: Found) -> str | None:
        """The checksum of a file, if it is known and the file is the same."""
        mark, checksum = self._known.get(str(path), ("", ""))
        return checksum if mark == found.mark else None

    def remember(self, path: Path, found: Found, checksum: str) -> None:
        """Keep a checksum."""
        self._known[str(path)] = (found.mark, checksum)

    def save(self) -> None:
        """Write it down, at once or not at all."""
        if self._file is None:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".verified-", dir=self._file.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(self._known))
            Path(name).replace(self._file)


def verify(
    directory: Path,
    manifest: Mapping[str, FileEntry],
    known: VerifiedFiles,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Check that a directory has the files of a manifest, all of them and no others. Blocks.

    Args:
        directory: the weights.
        manifest: what should be there.
        known: checksums of before; those computed now are added.
        cancelled: asked between pieces.

    Raises:
        WeightsRefused: it differs, or can't be read.
        CheckCancelled: cancelled.
    """
    try:
        found = files_below(directory)
        problems = differences(manifest, found, {})
        if problems:  # sizes and names cost nothing; a wrong one needs no checksums
            raise WeightsRefused(problems)
        sums = _checksums(directory, found, known, cancelled)
    except OSError as error:
        where = error.filename or directory
        raise WeightsRefused([f"`{where}` can't be read: {error.strerror}"]) from None
    problems = differences(manifest, found, sums)
    if problems:
        raise WeightsRefused(problems)


def manifest_of(directory: Path) -> Manifest:
    """The manifest of a directory as it is. Blocks.

    Raises:
        OSError: it can't be read.
        ValueError: it has no files, or what isn't a file.
    """
    found = files_below(directory)
    odd = [path for path, file in found.items() if not file.regular]
    if odd:
        raise ValueError(f"`{odd[0]}` is not a regular file")
    sums = _checksums(directory, found, VerifiedFiles(None), lambda: False)
    manifest = {path: FileEntry(sums[path], found[path].size) for path in sorted(found)}
    check_manifest(manifest)
    return manifest


def _checksums(
    directory: Path,
    found: Mapping[str, Found],
    known: VerifiedFiles,
    cancelled: Callable[[], bool],
) -> dict[str, str]:
    sums: dict[str, str] = {}
    unknown = []
    for path, file in found.items():
        checksum = known.sha256(directory / path, file)
        if checksum is None:
            unknown.append(path)
        else:
            sums[path] = checksum
    with ThreadPoolExecutor(_THREADS) as threads:
        computed = threads.map(lambda path: _sha256(directory / path, cancelled), unknown)
        sums.update(zip(unknown, computed, strict=True))
    for path in unknown:
        # As it was before it was read: if it changes meanwhile, it is read again next time.
        known.remember(directory / path, found[path], sums[path])
    known.save()
    return sums


def _sha256(path: Path, cancelled: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if cancelled():
                raise CheckCancelled
            digest.update(buffer[:count])
    return digest.hexdigest()
