"""The spool: what was acknowledged is there, once, whoever died meanwhile."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.billing.spool import SUFFIX, ClaimedFile, Spool


def groups(directory: Path) -> list[bytes]:
    """Everything that can be claimed in a directory, in order; the files are removed."""
    found: list[bytes] = []
    for path in sorted(directory.glob("*" + SUFFIX)):
        claimed = ClaimedFile.claim(path)
        if claimed is not None:
            found += claimed.groups()
            claimed.remove()
            claimed.close()
    return found


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file grows beyond `size`: the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_order_is_kept_over_several_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(30):
        spool.append(b"%d" % number)
        if number % 7 == 0:
            spool.take()
    spool.close()
    assert groups(tmp_path) == [b"%d" % number for number in range(30)]


def test_a_torn_last_line_is_no_group(tmp_path: Path) -> None:
    (tmp_path / ("x" + SUFFIX)).write_bytes(b"[1]\n[2]\n[3")
    assert groups(tmp_path) == [b"[1]", b"[2]"]


def test_the_size_is_that_of_all_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "not" / "yet")
    assert spool.size() == 0
    spool.append(b"12345")
    spool.take()
    spool.append(b"678")
    assert spool.size() == 10


def test_a_file_in_use_is_not_claimed(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(b"a")
    (path,) = tmp_path.glob("*" + SUFFIX)
    assert ClaimedFile.claim(path) is None
    assert spool.take() == [path]
    claimed = ClaimedFile.claim(path)
    assert claimed is not None
    assert ClaimedFile.claim(path) is None
    claimed.close()
    assert ClaimedFile.claim(path) is not None


def test_what_is_written_while_another_file_is_replayed_goes_to_a_new_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(b"old")
    (path,) = spool.take()
    claimed = ClaimedFile.claim(path)
    assert claimed is not None
    spool.append(b"new")
    assert list(claimed.groups()) == [b"old"]
    claimed.remove()
    claimed.close()
    spool.close()
    assert groups(tmp_path) == [b"new"]


def test_a_claim_comes_too_late_for_a_removed_file(tmp_path: Path) -> None:
    path = tmp_path / ("x" + SUFFIX)
    assert ClaimedFile.claim(path) is None


def test_a_full_disk_is_an_error_and_spoils_no_later_group(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(b"[1]")
    with file_limit(10), pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
        spool.append(b"[22222222222222222222]")
    assert caught.value.errno == errno.EFBIG
    spool.append(b"[3]")
    spool.close()
    assert groups(tmp_path) == [b"[1]", b"[3]"]


@pytest.mark.parametrize("place", ["file", "file/below", "\x00"])
def test_a_directory_that_cannot_be_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, ValueError)):
        Spool(tmp_path / place).append(b"a")


HOLDER = """
import sys, time
from pathlib import Path
from sluice.billing.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.append(b"acknowledged")
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def child(code: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said that it is ready."""
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None
            assert it.stdout.readline() == "ready\n"
            yield it
        finally:
            it.kill()


def test_a_living_owner_keeps_its_file_and_a_killed_one_leaves_it(tmp_path: Path) -> None:
    with child(HOLDER, tmp_path) as holder:
        (path,) = tmp_path.glob("*" + SUFFIX)
        assert ClaimedFile.claim(path) is None
        holder.kill()
        holder.wait()
    assert groups(tmp_path) == [b"acknowledged"]


CLAIMER = """
import sys
from pathlib import Path
from sluice.billing.spool import SUFFIX, ClaimedFile
print("ready", flush=True)
input()
for path in sorted(Path(sys.argv[1]).glob("*" + SUFFIX)):
    claimed = ClaimedFile.claim(path)
    if claimed is not None:
        for group in claimed.groups():
            print(group.decode())
        claimed.remove()
        claimed.close()
"""


def test_two_processes_replay_each_file_once(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}{SUFFIX}").write_bytes(b"%d\n" % number)
    with (
        child(CLAIMER, tmp_path) as first,
        child(CLAIMER, tmp_path) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        said = list(pool.map(lambda it: it.communicate("\n")[0], (first, second)))
    replayed = [int(line) for text in said for line in text.split()]
    assert sorted(replayed) == list(range(200))
    assert not list(tmp_path.iterdir())


WRITER = """
import sys
from pathlib import Path
from sluice.billing.spool import Spool
print("ready", flush=True)
input()
for number in range(150):
    spool = Spool(Path(sys.argv[1]))
    spool.append(b"%d" % number)
    spool.close()
"""


def test_a_file_that_is_being_made_is_not_taken_away_from_its_writer(tmp_path: Path) -> None:
    with child(WRITER, tmp_path) as writer:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
        found: list[bytes] = []
        while writer.poll() is None:
            found += groups(tmp_path)
        assert writer.returncode == 0
    found += groups(tmp_path)
    assert sorted(map(int, found)) == list(range(150))
