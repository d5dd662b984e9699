"""`/v1/batch`: batches with their requests in the call, and results while they come.

The same batches as OpenAI's: each is seen through both doors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from sluice.backends.base import Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.batch.batches import ENDED, Batch, Batches, Pace, ResultLine
from sluice.gateway.batch.estimate import estimated_completion
from sluice.gateway.batch.forms import Form, form_boundary
from sluice.gateway.batch.lines import MAX_BYTES, LineRefused
from sluice.gateway.batch.objects import job_object, list_object
from sluice.gateway.batch.once import Once, Passing, once, once_key
from sluice.gateway.batch.request_list import request_lines
from sluice.gateway.batch.submissions import Submissions
from sluice.gateway.batch.uploads import (
    Announced,
    RequestBody,
    checked_file,
    checked_lines,
    drained,
    of_line,
    too_large,
)
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.admin.bodies import invalid
from sluice.gateway.routes.batch_options import ListedBatch, options_of
from sluice.gateway.routes.batches import TeamBatches
from sluice.gateway.routes.bodies import announced_bytes
from sluice.gateway.routes.files import FORM_BYTES, clean_name
from sluice.wire.objects import MalformedJSON, decode_object, mended

#: Requests and results, one a line.
JSONL = "application/jsonl"

#: Of results: what a `bigint` holds.
MAX_SEQUENCE = 2**63 - 1

_listed_batch = msgspec.json.Decoder(ListedBatch)


def job_routes(
    team: TeamBatches, batches: Batches, submissions: Submissions, max_json_bytes: int
) -> list[HTTPRouteHandler]:
    """Submit, list, retrieve, cancel, and results and errors as they come.

    Args:
        max_json_bytes: of a body in JSON, which is held in memory; lines and forms are not.
    """
    intake = _Intake(submissions, max_json_bytes)

    @post(
        "/v1/batch",
        summary="Submit requests as a batch",
        tags=["batches"],
        status_code=200,
        request_max_body_size=None,
    )
    async def submit(request: Request[Any, Any, Any]) -> dict[str, Any]:
        body = RequestBody(request.receive)
        try:
            batch = await intake.receive(request, await team.principal(request), body)
        except GatewayError:
            await body.discard(MAX_BYTES)
            raise
        return _shown(batch, await batches.pace())

    @get("/v1/batch", summary="List the team's batches, with their costs", tags=["batches"])
    async def list_jobs(
        request: Request[Any, Any, Any], after: str | None = None, limit: int = 20
    ) -> dict[str, Any]:
        page, has_more = await team.page(request, after, limit)
        pace = await batches.pace()
        return list_object([_shown(batch, pace) for batch in page], has_more)

    @get("/v1/batch/{batch_id:str}", summary="How a batch is doing", tags=["batches"])
    async def retrieve(request: Request[Any, Any, Any], batch_id: str) -> dict[str, Any]:
        return _shown(await team.found(request, batch_id), await batches.pace())

    @post(
        "/v1/batch/{batch_id:str}/cancel",
        summary="Stop a batch",
        tags=["batches"],
        status_code=200,
    )
    async def cancel(request: Request[Any, Any, Any], batch_id: str) -> dict[str, Any]:
        return _shown(await team.cancelled(request, batch_id), await batches.pace())

    async def lines(
        request: Request[Any, Any, Any], batch_id: str, ok: bool, after: int, follow: bool
    ) -> Stream:
        batch = await team.found(request, batch_id)
        if not 0 <= after <= MAX_SEQUENCE:
            raise GatewayError.invalid(
                "`after` must be a result's `sequence`, or 0.", "after", "invalid_value"
            )
        found = batches.follow if follow else batches.results
        return Stream(_numbered(found(batch, ok, after)), media_type=JSONL)

    @get("/v1/batch/{batch_id:str}/results", summary="Results as they come", tags=["batches"])
    async def results(
        request: Request[Any, Any, Any], batch_id: str, after: int = 0, follow: bool = False
    ) -> Stream:
        return await lines(request, batch_id, True, after, follow)

    @get("/v1/batch/{batch_id:str}/errors", summary="Errors as they come", tags=["batches"])
    async def errors(
        request: Request[Any, Any, Any], batch_id: str, after: int = 0, follow: bool = False
    ) -> Stream:
        return await lines(request, batch_id, False, after, follow)

    return [submit, list_jobs, retrieve, cancel, results, errors]


class _Intake:
    """Makes batches of bodies in any of the three forms."""

    def __init__(self, submissions: Submissions, max_json_bytes: int) -> None:
        self._submissions = submissions
        self._max_json_bytes = max_json_bytes

    async def receive(
        self, request: Request[Any, Any, Any], principal: Principal, body: RequestBody
    ) -> Batch:
        """A batch of a request's body.

        Raises:
            GatewayError: something is wrong with it.
        """
        announced = announced_bytes(request)
        kind = request.headers.get("content-type", "")
        if announced is not None and announced > MAX_BYTES + FORM_BYTES:
            raise too_large(MAX_BYTES)
        expected = Announced(principal, announced, MAX_BYTES)
        passing = Passing(once_key(request.scope["headers"], "/v1/batch"))
        if (boundary := form_boundary(kind)) is not None:
            return await self._of_form(expected, Form(body.chunks(), boundary), passing)
        if kind.partition(";")[0].strip().lower() == "application/json":
            text = await _whole(body, self._max_json_bytes)
            key = once(request.scope["headers"], "/v1/batch", text)
            return await self._of_json(principal, text, key)
        return await self._of_lines(expected, body, dict(request.query_params.items()), passing)

    async def _of_lines(
        self, expected: Announced, body: RequestBody, query: dict[str, str], passing: Passing
    ) -> Batch:
        chunks = passing.hashed(body.chunks())
        if await self._submissions.knows(expected.principal, passing.key):
            await drained(chunks, MAX_BYTES)
            call = passing.once(query)
            return await self._submissions.made_already(expected.principal, call)
        wishes = options_of(query).wishes()
        self._submissions.check(wishes)
        scan = self._submissions.scan(keep=True)
        return await self._submissions.of_content(
            expected,
            checked_lines(chunks, scan),
            scan,
            lambda: replace(wishes, once=passing.once(query)),
        )

    async def _of_form(self, expected: Announced, form: Form, passing: Passing) -> Batch:
        def call() -> Once | None:
            return passing.once(form.fields, form.filename or "")

        form.fields["purpose"] = "batch"
        if await self._submissions.knows(expected.principal, passing.key):
            await drained(passing.hashed(form.file()), MAX_BYTES)
            return await self._submissions.made_already(expected.principal, call())
        scan = self._submissions.scan(keep=True)
        content = checked_file(form, passing, scan, MAX_BYTES, ("batch",))
        return await self._submissions.of_content(
            expected,
            content,
            scan,
            lambda: replace(options_of(_without_purpose(form.fields)).wishes(), once=call()),
            lambda: clean_name(form.filename or ""),
        )

    async def _of_json(self, principal: Principal, text: bytes, key: Once | None) -> Batch:
        asked = _listed(text)
        wishes = replace(asked.wishes(), once=key)
        self._submissions.check(wishes)
        if (made := await self._submissions.made_before(principal, key)) is not None:
            return made
        try:
            lines = list(request_lines(asked.requests, wishes.endpoint or Endpoint.CHAT))
        except LineRefused as fault:
            raise of_line(fault) from None
        expected = Announced(principal, sum(map(len, lines)), MAX_BYTES)
        scan = self._submissions.scan(keep=True)
        content = checked_lines(_each(lines), scan)
        return await self._submissions.of_content(expected, content, scan, lambda: wishes)


async def _each(lines: Sequence[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


def _without_purpose(fields: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if name != "purpose"}


async def _whole(body: RequestBody, limit: int) -> bytes:
    held = bytearray()
    async for chunk in body.chunks():
        held += chunk
        if len(held) > limit:
            raise GatewayError.invalid(
                f"A body in JSON has at most {limit} bytes; send the requests as lines ({JSONL}).",
                code="request_too_large",
                status=413,
            )
    return bytes(held)


def _listed(text: bytes) -> ListedBatch:
    try:
        known = "requests" in decode_object(text)
        reason = "`requests` is missing"
    except MalformedJSON as error:
        known, reason = False, str(error)
    if not known:
        raise GatewayError.invalid(
            f"The body is not a JSON object with `requests`: {reason}. Lines have another type:"
            f" {JSONL}.",
            "requests",
            "invalid_json",
        )
    try:
        return mended(_listed_batch, text)
    except msgspec.DecodeError as error:
        raise invalid(error) from None


def _shown(batch: Batch, pace: Pace) -> dict[str, Any]:
    if batch.status in ENDED:
        return job_object(batch, None)
    left = batch.total - batch.completed - batch.failed
    estimate = estimated_completion(
        now=datetime.now(UTC),
        started_at=batch.in_progress_at or batch.created_at,
        expires_at=batch.expires_at,
        done=batch.completed + batch.failed,
        left=left,
        ahead=max(0, pace.waiting - left),
        usual_rate=pace.rate,
    )
    return job_object(batch, estimate)


async def _numbered(lines: AsyncIterator[ResultLine]) -> AsyncIterator[bytes]:
    """Lines as they are in the files, each with its number, to go on after."""
    async for line in lines:
        yield b'{"sequence":%d,%s\n' % (line.sequence, line.line[1:].encode())
