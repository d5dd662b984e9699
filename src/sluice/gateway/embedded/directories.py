"""Directories of embedded servers: who may enter them."""

import contextlib
import importlib.util
import os
import stat
from pathlib import Path

from sluice.gateway.embedded.errors import EmbeddedServerError


def private_directory(path: Path, owner: int) -> None:
    """Makes sure that `path` is a directory which only `owner` (and root) can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    # Fallback socket directories are in /tmp, where somebody else may have been first.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (owner, os.geteuid()):
        raise EmbeddedServerError(f"{path} is not a directory of user id {owner}; remove it")
    if info.st_uid != owner:
        os.chown(path, owner, owner)
    path.chmod(0o700)


def open_directory(path: Path) -> Path:
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


def closed_ancestor(path: Path, user: int) -> Path | None:
    """The outermost directory above `path` that the user id can't enter; None if it can."""
    for parent in reversed(path.parents):
        with contextlib.suppress(FileNotFoundError):
            info = parent.stat()
            needed = stat.S_IXUSR if info.st_uid == user else stat.S_IXOTH
            if not info.st_mode & needed:
                return parent
    return None


def package_directory(package: str) -> Path:
    """Where a wheel is installed. Not imported: these packages do things on import."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(f"the package {package} is missing; install Sluice again")
    return Path(spec.origin).resolve().parent
