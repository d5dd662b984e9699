"""Uploads: content on its way from a client to the object store, checked as it passes.

Nothing holds more of it than a few parts. What is wrong is raised while the content passes, and
then there is no object: nothing is half accepted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from sluice.gateway.auth import Principal
from sluice.gateway.batch.files import Files, ObjectForgotten, OverQuota, Room, TooMany
from sluice.gateway.batch.forms import Form
from sluice.gateway.batch.lines import MAX_BYTES, LineRefused, Scan
from sluice.gateway.batch.once import MadeMeanwhile, Passing
from sluice.gateway.batch.storage import Storage, StorageAway, in_parts
from sluice.gateway.errors import GatewayError
from sluice.gateway.intake import broken_off
from sluice.wire.errors import ErrorDetail

#: Of the file in a batch's input, where its name has an ending.
_ENDINGS = ("", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Announced:
    """An upload that is about to come.

    Attributes:
        principal: whose it is.
        bytes: how many will come; None: nobody knows.
        most: how many may.
    """

    principal: Principal
    bytes: int | None
    most: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Content that is complete in the store, and of which no file was made yet.

    Attributes:
        id: of the file that it may become.
        object: where it is.
    """

    id: UUID
    object: str
    bytes: int


class Uploads:
    """Brings content into the store."""

    def __init__(self, storage: Storage, files: Files) -> None:
        self._storage = storage
        self._files = files

    @asynccontextmanager
    async def stored(
        self, announced: Announced, content: AsyncIterator[bytes]
    ) -> AsyncIterator[Stored]:
        """Write content to the store as it comes. Inside a file is made of it; if that is refused,
        it is removed. After any other failure nobody knows whether a file was made: the sweeper
        sees.

        Args:
            content: what it raises is raised here, and then nothing is stored.

        Raises:
            GatewayError: the team may not keep so much, the store is away, or it took too long.
            MadeMeanwhile, TooMany: raised inside; what was stored is removed.
        """
        principal = announced.principal
        quota = principal.policy.max_stored_bytes
        team_id = UUID(principal.team_id)
        try:
            room = await self._files.reserve(team_id, announced.bytes, announced.most, quota)
        except OverQuota as error:
            raise over_quota(error.quota) from None
        except TooMany as error:
            raise too_many(error) from None
        try:
            size = await self._write(room, content)
            yield Stored(room.id, room.object, size)
        except (GatewayError, MadeMeanwhile, TooMany):
            await self._give_up(room)
            raise
        except ObjectForgotten:  # which has come after all
            await self._give_up(room)
            raise took_too_long() from None

    async def _write(self, room: Room, content: AsyncIterator[bytes]) -> int:
        size = 0

        async def measured() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in content:
                size += len(chunk)
                if size > room.bytes:
                    raise over_quota(room.quota)
                yield chunk

        try:
            await self._storage.write(room.object, in_parts(measured()))
        except StorageAway:
            raise storage_away() from None
        return size

    async def _give_up(self, room: Room) -> None:
        try:
            await self._storage.delete(room.object)
        except StorageAway:
            await self._files.give_up(room.id, removed=False)
        else:
            await self._files.give_up(room.id, removed=True)


class RequestBody:
    """The body of a request, chunk by chunk."""

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self._ended = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes as they arrive.

        Raises:
            GatewayError: it broke off.
        """
        while not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._ended = True
                raise broken_off()
            self._ended = not message.get("more_body", False)
            if chunk := message.get("body", b""):
                yield chunk

    async def discard(self, limit: int) -> None:
        """Read on to nobody's use: a client hears nothing of a refusal whose connection is closed
        while it still sends.

        Args:
            limit: bytes after which nobody waits for the client's end.
        """
        try:
            async for chunk in self.chunks():
                limit -= len(chunk)
                if limit < 0:
                    return
        except GatewayError:
            return


async def drained(content: AsyncIterator[bytes], max_bytes: int) -> None:
    """Let content pass that is there already.

    Raises:
        GatewayError: it is more than the maximum.
    """
    size = 0
    async for chunk in content:
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes)


async def checked_file(
    form: Form, passing: Passing, scan: Scan, max_bytes: int, purposes: tuple[str, ...]
) -> AsyncIterator[bytes]:
    """The file of a form as it arrives, checked by its purpose, which may come behind it.

    Args:
        passing: sees it pass.
        scan: reads the requests, where the purpose is `batch`.
        max_bytes: of a file of any other purpose.

    Raises:
        GatewayError: the purpose is none, or the content is not of its kind.
    """
    fault: LineRefused | None = None
    size = 0
    async for chunk in passing.hashed(form.file()):
        purpose = form.fields.get("purpose")
        size += len(chunk)
        if purpose is not None and purpose not in purposes:
            break
        if purpose in ("batch", None) and fault is None:
            fault = _scanned(scan, chunk)
        if purpose == "batch" and fault is not None:
            raise of_line(fault)
        if size > max_bytes:
            raise too_large(max_bytes)
        yield chunk
    purpose = form.fields.get("purpose")
    if purpose not in purposes:
        known = ", ".join(f"`{each}`" for each in purposes)
        raise GatewayError.invalid(
            f"`purpose` must be one of {known}.",
            "purpose",
            "missing_required_parameter" if purpose is None else "invalid_value",
        )
    if purpose == "batch":
        if fault is not None:
            raise of_line(fault)
        end_of(scan)
        check_name(form.filename or "")


async def checked_lines(chunks: AsyncIterator[bytes], scan: Scan) -> AsyncIterator[bytes]:
    """Requests as they arrive, each checked.

    Raises:
        GatewayError: one is wrong.
    """
    try:
        async for chunk in chunks:
            scan.feed(chunk)
            yield chunk
        scan.end()
    except LineRefused as fault:
        raise of_line(fault) from None


def _scanned(scan: Scan, chunk: bytes) -> LineRefused | None:
    try:
        scan.feed(chunk)
    except LineRefused as fault:
        return fault
    return None


def end_of(scan: Scan) -> None:
    """See that a file that was read to its end is one batch.

    Raises:
        GatewayError: it isn't.
    """
    try:
        scan.end()
    except LineRefused as fault:
        raise of_line(fault) from None


def check_name(filename: str) -> None:
    """See that a file's name doesn't say that it is something else than JSONL.

    Raises:
        GatewayError: it does.
    """
    if PurePosixPath(filename).suffix.lower() not in _ENDINGS:
        raise GatewayError.invalid(
            "A batch's input is a `.jsonl` file.", "file", "invalid_file_format"
        )


def of_line(fault: LineRefused) -> GatewayError:
    """What the caller hears of a line that is wrong."""
    if fault.code == "too_large":
        return too_large(MAX_BYTES)
    return GatewayError.invalid(str(fault), fault.param or "file", fault.code)


def too_large(limit: int) -> GatewayError:
    """The file is."""
    detail = ErrorDetail(
        f"The file exceeds {limit} bytes.", "request_too_large", "file", "request_too_large"
    )
    return GatewayError(413, detail)


def over_quota(limit: int) -> GatewayError:
    """The team keeps as much as it may."""
    detail = ErrorDetail(
        f"The team may keep {limit} bytes in files, and less is left. Delete some.",
        "insufficient_quota",
        "file",
        "storage_quota_exceeded",
    )
    return GatewayError(429, detail, {"x-should-retry": "false"})


def too_many(error: TooMany) -> GatewayError:
    """The team has as much on record as it may."""
    what = "requests in batches" if error.what == "requests" else error.what
    ends = (
        "Delete some." if error.what == "files" else "Records of batches go some time after them."
    )
    code = "file_quota_exceeded" if error.what == "files" else "batch_quota_exceeded"
    detail = ErrorDetail(
        f"The team may have {error.quota} {what} on record, and has as many. {ends}",
        "insufficient_quota",
        None,
        code,
    )
    return GatewayError(429, detail, {"x-should-retry": "false"})


def took_too_long() -> GatewayError:
    """The upload was given up before it was complete."""
    return GatewayError.invalid("The upload took too long.", "file", "upload_timeout", 408)


def storage_away() -> GatewayError:
    """The object store can't be reached."""
    detail = ErrorDetail(
        "Stored files can't be reached now, try again.",
        "service_unavailable_error",
        code="storage_unavailable",
    )
    return GatewayError(503, detail, {"retry-after": "1"})
