"""Storage, over a folder; object stores behave alike by their library's contract."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway, in_parts


async def parts(*given: bytes, then: Exception | None = None) -> AsyncIterator[bytes]:
    for part in given:
        yield part
    if then is not None:
        raise then


@pytest.fixture(params=["folder", "url"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(tmp_path if request.param == "folder" else tmp_path.as_uri())


async def test_written_read_deleted(storage: Storage) -> None:
    content = bytes(range(256)) * 10_000
    await storage.write("a/b", parts(content[:1_000_000], content[1_000_000:]))
    assert b"".join([part async for part in storage.read("a/b", 0, len(content))]) == content
    assert b"".join([part async for part in storage.read("a/b", 7, 9)]) == content[7:9]
    assert await storage.range("a/b", 255, 2) == b"\xff\x00"
    with pytest.raises(StorageAway):
        await storage.range("a/b", len(content) - 1, 2)
    await storage.delete("a/b")
    await storage.delete("a/b")
    with pytest.raises(ObjectMissing):
        await storage.range("a/b", 0, 1)


async def test_an_empty_object(storage: Storage) -> None:
    await storage.write("a", parts())
    assert [part async for part in storage.read("a", 0, 0)] == []


async def test_what_breaks_off_is_not_there(storage: Storage) -> None:
    with pytest.raises(LookupError):
        await storage.write("a", parts(b"x" * 12_000_000, then=LookupError()))
    with pytest.raises(ObjectMissing):
        await storage.range("a", 0, 1)


DYING = """
import asyncio, os, pathlib, sys
from sluice.gateway.batch.storage import Storage

async def parts():
    yield b"x" * 12_000_000
    yield b"x" * 12_000_000
    os._exit(0)

asyncio.run(Storage(pathlib.Path(sys.argv[1])).write("a/b", parts()))
"""


async def test_what_a_killed_process_left_goes_with_its_object(
    storage: Storage, tmp_path: Path
) -> None:
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, str(tmp_path))
    assert await dying.wait() == 0
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    await storage.delete("a/b")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


async def test_a_place_that_is_away() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "skip_signature": "true"}
    storage = Storage("s3://bucket/prefix", {**options, "region": "x"}, retries=0)
    with pytest.raises(StorageAway, match="GenericError"):
        await storage.range("a", 0, 1)


@pytest.mark.parametrize("url", ["ftp://x", "nonsense://x", "s3://"])
def test_places_that_there_are_not(url: str) -> None:
    with pytest.raises(ValueError, match="is not usable"):
        Storage(url)


def test_options_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="nonsense") as wrong:
        Storage("s3://bucket", {"nonsense": "SECRET"})
    assert "SECRET" not in str(wrong.value)


async def test_parts_have_their_size() -> None:
    found = [part async for part in in_parts(parts(b"aa", b"b", b"cccc", b"d", b"e"), 3)]
    assert found == [b"aab", b"cccc", b"de"]
