"""`/v1/files`, mostly by the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.batch.doors_site import GOOD, DoorsSite, doors_site, jsonl, request_line

NAMED = ("jobs.jsonl", GOOD)


@pytest.fixture
async def site(doors_database: str, tmp_path: Path) -> AsyncIterator[DoorsSite]:
    async with doors_site(doors_database, tmp_path, team_bytes=1_000_000) as site:
        yield site


async def test_a_files_life(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(file=NAMED, purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(GOOD), "jobs.jsonl", "batch")
    assert file.status == "processed"
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 30 * 86_400
    assert (await sdk.files.retrieve(file.id)).id == file.id
    assert (await sdk.files.content(file.id)).read() == GOOD
    assert [each.id async for each in sdk.files.list()] == [file.id]
    assert (await sdk.files.wait_for_processing(file.id)).status == "processed"
    assert (await sdk.files.delete(file.id)).deleted
    assert site.objects() == []
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(file.id)
    assert [each.id async for each in sdk.files.list()] == []


async def test_other_purposes_are_not_looked_into(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(file=("a.bin", b"\xff" * 1000), purpose="user_data")
    assert (await sdk.files.content(file.id)).read() == b"\xff" * 1000
    assert file.expires_at is None


async def test_how_long_it_is_kept(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(
        file=NAMED, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(
            file=NAMED, purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )
    assert refused.value.param == "expires_after.seconds"
    await site.pool.execute("UPDATE files SET expires_at = now()")
    with pytest.raises(openai.NotFoundError):
        await sdk.files.content(file.id)


async def test_pages(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    made = [
        await sdk.files.create(file=NAMED, purpose=purpose)
        for purpose in ("batch", "user_data", "batch", "batch", "evals")
    ]
    ids = [file.id for file in made]
    assert [file.id async for file in sdk.files.list(limit=2)] == ids[::-1]
    assert [file.id async for file in sdk.files.list(limit=2, order="asc")] == ids
    batches = [file.id async for file in sdk.files.list(limit=1, order="asc", purpose="batch")]
    assert batches == [ids[0], ids[2], ids[3]]
    assert [file.id async for file in sdk.files.list(purpose="no\0ne")] == []
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"after": "file-1"}):
        with pytest.raises(openai.BadRequestError):
            await sdk.files.list(**wrong)


async def test_another_teams_files_are_not_there(site: DoorsSite) -> None:
    mine, theirs = site.sdk(await site.key("mine")), site.sdk(await site.key("theirs"))
    file = await mine.files.create(file=NAMED, purpose="batch")
    for call in (theirs.files.retrieve, theirs.files.delete, theirs.files.content):
        with pytest.raises(openai.NotFoundError):
            await call(file.id)
    assert [each.id async for each in theirs.files.list()] == []
    assert (await mine.files.content(file.id)).read() == GOOD


async def test_a_content_that_can_not_be_had_is_said_so(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(file=NAMED, purpose="batch")
    for path in site.objects():
        path.unlink()
    with pytest.raises(openai.InternalServerError) as error:
        await sdk.files.content(file.id)
    assert (error.value.status_code, error.value.code) == (503, "storage_unavailable")


async def test_ranges(site: DoorsSite) -> None:
    key = await site.key()
    file = await site.sdk(key).files.create(file=NAMED, purpose="batch")
    async with site.bare(key) as http:
        url = f"/v1/files/{file.id}/content"
        part = await http.get(url, headers={"range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, GOOD[5:10])
        assert part.headers["content-range"] == f"bytes 5-9/{len(GOOD)}"
        beyond = await http.get(url, headers={"range": f"bytes={len(GOOD)}-"})
        assert beyond.status_code == 416
        assert beyond.headers["content-range"] == f"bytes */{len(GOOD)}"
        whole = await http.get(url)
        assert whole.headers["content-length"] == str(len(GOOD))


async def test_no_key_and_no_form(site: DoorsSite) -> None:
    form = {"files": {"file": NAMED}, "data": {"purpose": "batch"}}
    assert (await site.http.post("/v1/files", **form)).status_code == 401  # type: ignore[arg-type]
    async with site.bare(await site.key()) as http:
        assert (await http.post("/v1/files", json={})).status_code == 400
        compressed = await http.post("/v1/files", headers={"content-encoding": "gzip"}, **form)  # type: ignore[arg-type]
        assert compressed.status_code == 415
    assert await site.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("content", "message", "param"),
    [
        (GOOD + jsonl(request_line("d", method=None)), "Line 4: `method` is missing.", "method"),
        (GOOD + jsonl(request_line("b")), "Line 4: `custom_id` `b`", "custom_id"),
        (GOOD + b"\n\nnot json", "Line 6: is not a valid JSON object", "file"),
        (b"just\ntext\n", "Line 1: is not a valid JSON object", "file"),
        (b"", "no requests", "file"),
        (GOOD + jsonl(request_line("d", body={"model": "elsewhere"})), "Line 4:", "body.model"),
        (GOOD + b" " * 100_001, "Line 4: is longer than 100000 bytes", "file"),
    ],
)
@pytest.mark.parametrize("purpose_first", [True, False])
async def test_a_bad_input_is_refused_at_upload(
    site: DoorsSite, content: bytes, message: str, param: str, purpose_first: bool
) -> None:
    parts: list[Any] = [("purpose", (None, b"batch")), ("file", ("jobs.jsonl", content))]
    async with site.bare(await site.key()) as http:
        answer = await http.post("/v1/files", files=parts if purpose_first else parts[::-1])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
    assert await site.counts() == (0, 0, 0)
    assert site.objects() == []


@pytest.mark.parametrize("purpose", [None, "batch_output", "nonsense"])
@pytest.mark.parametrize("purpose_first", [True, False])
async def test_purposes_that_there_are_not(
    site: DoorsSite, purpose: str | None, purpose_first: bool
) -> None:
    parts: list[Any] = [("file", NAMED)]
    if purpose is not None:
        parts.insert(0 if purpose_first else 1, ("purpose", (None, purpose.encode())))
    async with site.bare(await site.key()) as http:
        answer = await http.post("/v1/files", files=parts)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")
    assert site.objects() == []


async def test_a_name_that_says_something_else(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    with pytest.raises(openai.BadRequestError, match="jsonl"):
        await sdk.files.create(file=("jobs.txt", GOOD), purpose="batch")
    assert (await sdk.files.create(file=GOOD, purpose="batch")).bytes == len(GOOD)
    named = await sdk.files.create(file=("../../a\\b.jsonl", GOOD), purpose="batch")
    assert named.filename == "b.jsonl"


async def test_too_large(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.files.create(file=("a", b"x" * 300_001), purpose="user_data")
    assert refused.value.status_code == 413
    assert site.objects() == []


async def test_a_teams_quota(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    made = [
        await sdk.files.create(file=("a", b"x" * 300_000), purpose="user_data") for _ in range(3)
    ]
    with pytest.raises(openai.RateLimitError) as refused:
        await sdk.files.create(file=("a", b"x" * 300_000), purpose="user_data")
    assert refused.value.code == "storage_quota_exceeded"
    other = site.sdk(await site.key("other"))
    await other.files.create(file=("a", b"x" * 300_000), purpose="user_data")
    await sdk.files.delete(made[0].id)
    await sdk.files.create(file=("a", b"x" * 300_000), purpose="user_data")


async def test_a_team_with_a_quota_of_its_own(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key(max_stored_bytes=1000))
    with pytest.raises(openai.RateLimitError, match="1000 bytes"):
        await sdk.files.create(file=("a", b"x" * 1000), purpose="user_data")
    await sdk.files.create(file=("a", b"x" * 500), purpose="user_data")


async def test_an_upload_of_unknown_length_ends_where_the_quota_does(site: DoorsSite) -> None:
    async def form(size: int) -> AsyncIterator[bytes]:
        head = b"--X\r\nContent-Disposition: form-data; name="
        yield head + b'"purpose"\r\n\r\nuser_data\r\n'
        yield head + b'"file"; filename="a"\r\n\r\n' + b"x" * size + b"\r\n--X--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=X"}
    async with site.bare(await site.key(max_stored_bytes=1000)) as http:
        answers = [
            (await http.post("/v1/files", content=form(size), headers=kind)).status_code
            for size in (1001, 600, 401, 400, 1)
        ]
    assert answers == [429, 200, 429, 200, 429]
    assert await site.counts() == (2, 0, 0)
    assert len(site.objects()) == 2


async def test_an_upload_that_took_too_long_leaves_nothing(
    site: DoorsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = site.storage.write

    async def slow(path: str, parts: AsyncIterator[bytes]) -> None:
        await site.pool.execute("DELETE FROM files WHERE object = $1", path)
        await write(path, parts)

    monkeypatch.setattr(site.storage, "write", slow)
    with pytest.raises(openai.APIStatusError) as failed:
        await site.sdk(await site.key()).files.create(file=NAMED, purpose="batch")
    assert (failed.value.status_code, failed.value.code) == (408, "upload_timeout")
    assert site.objects() == []


async def test_a_store_that_is_away(doors_database: str, tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_bytes(b"")
    async with doors_site(doors_database, tmp_path / "no-folder", team_bytes=1000) as site:
        sdk = site.sdk(await site.key())
        for _ in range(3):  # what failed takes no room
            with pytest.raises(openai.InternalServerError) as failed:
                await sdk.files.create(file=("a", b"x" * 500), purpose="user_data")
            assert (failed.value.status_code, failed.value.code) == (503, "storage_unavailable")
        assert await site.counts() == (0, 0, 0)


async def test_the_input_of_an_open_batch_stays(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    file = await sdk.files.create(file=NAMED, purpose="batch")
    batch = await sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with pytest.raises(openai.ConflictError, match=batch.id):
        await sdk.files.delete(file.id)
    await site.end(batch.id)
    assert (await sdk.files.delete(file.id)).deleted
