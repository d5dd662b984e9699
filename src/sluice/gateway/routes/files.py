"""`/v1/files`: OpenAI's files, of the caller's own team."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args
from uuid import UUID

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from sluice.gateway.auth import Principal
from sluice.gateway.batch.files import (
    File,
    FileInUse,
    FileQuery,
    Files,
    NewFile,
    Purpose,
)
from sluice.gateway.batch.forms import Form, form_boundary
from sluice.gateway.batch.ids import private_id, public_id
from sluice.gateway.batch.lines import Scan
from sluice.gateway.batch.objects import file_object, list_object
from sluice.gateway.batch.once import MadeMeanwhile, Once, Passing, once_key
from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway
from sluice.gateway.batch.uploads import (
    Announced,
    RequestBody,
    Uploads,
    checked_file,
    drained,
    storage_away,
    too_large,
)
from sluice.gateway.errors import GatewayError
from sluice.gateway.idempotency.refusals import in_progress, reused
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.bodies import announced_bytes, whole_number
from sluice.gateway.routes.ranges import NotSatisfiable, byte_range

#: What callers may say that a file is for.
PURPOSES = tuple(each for each in get_args(Purpose) if each != "batch_output")

MAX_PAGE = 10_000

#: What a form may have around its file, in bytes.
FORM_BYTES = 128 * 1024

#: How long a file may be asked to be kept, in seconds.
SHORTEST_LIFE, LONGEST_LIFE = 3600, 2_592_000


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Attributes:
    max_bytes: of one file.
    batch_seconds: how long a batch's input is kept where its upload doesn't say.
    """

    max_bytes: int
    batch_seconds: int


class TeamFiles:
    """The files of whichever team calls."""

    def __init__(
        self,
        files: Files,
        storage: Storage,
        uploads: Uploads,
        new_scan: Callable[[], Scan],
        limits: FileLimits,
        access: Access,
    ) -> None:
        """Args:
        new_scan: gives what reads an input of a batch.
        """
        self._files = files
        self._storage = storage
        self._uploads = uploads
        self._new_scan = new_scan
        self._limits = limits
        self._access = access

    async def principal(self, request: Request[Any, Any, Any]) -> Principal:
        """Who calls.

        Raises:
            GatewayError: 401 for no valid credential, 403 for an administrator.
        """
        return await self._access.principal(request, "Files")

    async def found(self, request: Request[Any, Any, Any], file_id: str) -> File:
        """A file by its id.

        Raises:
            GatewayError: 404, the team has no such file, or no more.
        """
        team_id = UUID((await self.principal(request)).team_id)
        id = private_id("file-", file_id)
        file = None if id is None else await self._files.get(team_id, id)
        if file is None:
            raise unknown_file(file_id)
        return file

    async def uploaded(self, request: Request[Any, Any, Any]) -> File:
        """The file that a request brings.

        Raises:
            GatewayError: something is wrong with it; then there is no file.
        """
        body = RequestBody(request.receive)
        try:
            return await self._receive(request, body)
        except GatewayError:
            await body.discard(self._limits.max_bytes)
            raise

    async def _receive(self, request: Request[Any, Any, Any], body: RequestBody) -> File:
        principal = await self.principal(request)
        announced = announced_bytes(request)
        boundary = form_boundary(request.headers.get("content-type", ""))
        if boundary is None:
            raise GatewayError.invalid(
                "The body must be a multipart form with `file` and `purpose`.",
                "content-type",
                "invalid_body",
            )
        if announced is not None and announced > self._limits.max_bytes + FORM_BYTES:
            raise too_large(self._limits.max_bytes)
        form = Form(body.chunks(), boundary)
        passing = Passing(once_key(request.scope["headers"], "/v1/files"))
        if await self._knows(principal, passing.key):
            await drained(passing.hashed(form.file()), self._limits.max_bytes)
            return await self._made_before(principal, form, passing)
        expected = Announced(principal, announced, self._limits.max_bytes)
        try:
            return await self._stored(expected, form, passing)
        except MadeMeanwhile:
            return await self._made_before(principal, form, passing)

    async def _stored(self, expected: Announced, form: Form, passing: Passing) -> File:
        scan, principal = self._new_scan(), expected.principal
        content = checked_file(form, passing, scan, self._limits.max_bytes, PURPOSES)
        async with self._uploads.stored(expected, content) as stored:
            batch = form.fields["purpose"] == "batch"
            new = NewFile(
                id=stored.id,
                team_id=UUID(principal.team_id),
                key_id=UUID(principal.key_id),
                purpose=cast("Purpose", form.fields["purpose"]),
                filename=clean_name(form.filename or ""),
                bytes=stored.bytes,
                object=stored.object,
                lines=scan.count if batch else None,
                endpoint=scan.end()[0].value if batch else None,
                expires_seconds=lifetime(form) or (self._limits.batch_seconds if batch else None),
                once=_call(form, passing),
            )
            return await self._files.complete(new)

    async def _knows(self, principal: Principal, key: bytes | None) -> bool:
        if key is None:
            return False
        return await self._files.made_by(UUID(principal.team_id), key) is not None

    async def _made_before(self, principal: Principal, form: Form, passing: Passing) -> File:
        """The file that the same upload has made, when all of it has come again.

        Raises:
            GatewayError: 422, the key is that of another upload; 409, the file is gone by now.
        """
        call = _call(form, passing)
        made = None
        if call is not None:
            made = await self._files.made_by(UUID(principal.team_id), call.key)
        if made is None or call is None:
            raise in_progress()
        file, content = made
        if content != call.content:
            raise reused()
        return file

    async def page(
        self, request: Request[Any, Any, Any], after: str | None, query: FileQuery
    ) -> tuple[list[File], bool]:
        """A page of the list, and whether there are more behind it.

        Raises:
            GatewayError: 400, with the parameter named.
        """
        team_id = UUID((await self.principal(request)).team_id)
        if not 1 <= query.limit <= MAX_PAGE:
            raise GatewayError.invalid(
                f"`limit` must be 1 to {MAX_PAGE}.", "limit", "invalid_value"
            )
        last = None if after is None else private_id("file-", after)
        if after is not None and last is None:
            raise GatewayError.invalid("`after` must be a file's id.", "after", "invalid_value")
        return await self._files.list(team_id, replace(query, after=last))

    async def content(self, request: Request[Any, Any, Any], file_id: str) -> Stream:
        """A file's content, or the range of it that is asked for.

        Raises:
            GatewayError: 404, see `found`; 416, it ends before the range.
        """
        file = await self.found(request, file_id)
        try:
            asked = byte_range(request.headers.get("range"), file.bytes)
        except NotSatisfiable:
            error = GatewayError.invalid("The file ends before.", "range", "invalid_range", 416)
            error.headers["content-range"] = f"bytes */{file.bytes}"
            raise error from None
        start, end = asked or (0, file.bytes)
        headers = {"content-length": str(end - start), "accept-ranges": "bytes"}
        if asked is not None:
            headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
        try:
            content = await _begun(self._storage.read(file.object, start, end))
        except (StorageAway, ObjectMissing):
            raise storage_away() from None
        return Stream(
            content,
            status_code=200 if asked is None else 206,
            media_type="application/octet-stream",
            headers=headers,
        )

    async def delete(self, request: Request[Any, Any, Any], file_id: str) -> None:
        """Delete a file.

        Raises:
            GatewayError: 404, see `found`; 409, a batch reads it.
        """
        team_id = UUID((await self.principal(request)).team_id)
        id = private_id("file-", file_id)
        try:
            object = None if id is None else await self._files.delete(team_id, id)
        except FileInUse as error:
            batch = public_id("batch_", error.batch)
            raise GatewayError.invalid(
                f"`{batch}` reads the file, and has not ended.", "file_id", "conflict", 409
            ) from None
        if id is None or object is None:
            raise unknown_file(file_id)
        with suppress(StorageAway):  # then the sweeper removes it
            await self._storage.delete(object)
            await self._files.removed(id)


def file_routes(team: TeamFiles) -> list[HTTPRouteHandler]:
    """Upload, list, retrieve, download and delete."""

    @post(
        "/v1/files",
        summary="Upload a file",
        tags=["files"],
        status_code=200,
        request_max_body_size=None,
    )
    async def upload(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return file_object(await team.uploaded(request))

    @get("/v1/files", summary="List the team's files", tags=["files"])
    async def list_files(
        request: Request[Any, Any, Any],
        after: str | None = None,
        limit: int = MAX_PAGE,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> dict[str, Any]:
        if purpose is not None and purpose not in get_args(Purpose):
            purpose = ""  # that no file has
        query = FileQuery(limit, None, purpose, order == "desc")
        page, has_more = await team.page(request, after, query)
        return list_object([file_object(file) for file in page], has_more)

    @get("/v1/files/{file_id:str}", summary="Retrieve a file's record", tags=["files"])
    async def retrieve(request: Request[Any, Any, Any], file_id: str) -> dict[str, Any]:
        return file_object(await team.found(request, file_id))

    @get("/v1/files/{file_id:str}/content", summary="Download a file", tags=["files"])
    async def content(request: Request[Any, Any, Any], file_id: str) -> Stream:
        return await team.content(request, file_id)

    @delete("/v1/files/{file_id:str}", summary="Delete a file", tags=["files"], status_code=200)
    async def forget(request: Request[Any, Any, Any], file_id: str) -> dict[str, Any]:
        await team.delete(request, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    return [upload, list_files, retrieve, content, forget]


def unknown_file(file_id: str, param: str = "id") -> GatewayError:
    """There is no such file, or it is another team's, or expired."""
    return GatewayError.not_found(f"No such File object: {file_id}", param=param)


def _call(form: Form, passing: Passing) -> Once | None:
    return passing.once(form.fields, form.filename or "")


async def _begun(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same parts, the first one read before anything is answered: what is wrong with the
    store is wrong from there on, and can still be said."""
    first = await anext(parts, b"")

    async def all_parts() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return all_parts()


def clean_name(filename: str) -> str:
    """A file's name without folders, and with nothing that the database can't keep."""
    name = filename.replace("\\", "/").rpartition("/")[2].replace("\0", "")
    return name.encode(errors="replace").decode()[:255] or "file"


def lifetime(form: Form) -> int | None:
    """How long a file is to be kept, in seconds, where the form says.

    Raises:
        GatewayError: not so.
    """
    anchor = form.fields.get("expires_after[anchor]")
    seconds = form.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise GatewayError.invalid(
            "`expires_after.anchor` must be created_at.", "expires_after.anchor", "invalid_value"
        )
    return whole_number(seconds or "", "expires_after.seconds", SHORTEST_LIFE, LONGEST_LIFE)
