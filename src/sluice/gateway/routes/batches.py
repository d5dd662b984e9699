"""`/v1/batches`: OpenAI's batches, of the caller's own team."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.auth import Principal
from sluice.gateway.batch.batches import Batch, Batches
from sluice.gateway.batch.files import Files
from sluice.gateway.batch.ids import private_id
from sluice.gateway.batch.objects import batch_object, list_object
from sluice.gateway.batch.once import once
from sluice.gateway.batch.submissions import Submissions
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.admin.bodies import read
from sluice.gateway.routes.batch_options import FileBatch
from sluice.gateway.routes.files import unknown_file

MAX_PAGE = 100


class TeamBatches:
    """The batches of whichever team calls."""

    def __init__(self, batches: Batches, access: Access) -> None:
        self._batches = batches
        self._access = access

    async def principal(self, request: Request[Any, Any, Any]) -> Principal:
        """Who calls.

        Raises:
            GatewayError: 401 for no valid credential, 403 for an administrator.
        """
        return await self._access.principal(request, "Batches")

    async def found(self, request: Request[Any, Any, Any], batch_id: str) -> Batch:
        """A batch by its id.

        Raises:
            GatewayError: 404, the team has no such batch.
        """
        team_id = UUID((await self.principal(request)).team_id)
        id = private_id("batch_", batch_id)
        batch = None if id is None else await self._batches.get(team_id, id)
        if batch is None:
            raise unknown_batch(batch_id)
        return batch

    async def cancelled(self, request: Request[Any, Any, Any], batch_id: str) -> Batch:
        """A batch, after it was asked to end.

        Raises:
            GatewayError: 404, see `found`; 409, it has ended.
        """
        batch = await self.found(request, batch_id)
        after = await self._batches.cancel(batch.team_id, batch.id)
        if after is None:
            raise unknown_batch(batch_id)
        if after.status not in ("cancelling", "cancelled"):
            raise GatewayError.invalid(
                f"Cannot cancel a batch with status '{after.status}'.", "batch_id", "conflict", 409
            )
        return after

    async def page(
        self, request: Request[Any, Any, Any], after: str | None, limit: int
    ) -> tuple[list[Batch], bool]:
        """A page of the list, newest first, and whether there are more behind it.

        Raises:
            GatewayError: 400, with the parameter named.
        """
        team_id = UUID((await self.principal(request)).team_id)
        if not 1 <= limit <= MAX_PAGE:
            raise GatewayError.invalid(
                f"`limit` must be 1 to {MAX_PAGE}.", "limit", "invalid_value"
            )
        last = None if after is None else private_id("batch_", after)
        if after is not None and last is None:
            raise GatewayError.invalid("`after` must be a batch's id.", "after", "invalid_value")
        return await self._batches.list(team_id, limit, last)


def batches_routes(
    team: TeamBatches, files: Files, submissions: Submissions
) -> list[HTTPRouteHandler]:
    """Create, list, retrieve and cancel."""

    @post("/v1/batches", summary="Make a batch of a file", tags=["batches"], status_code=200)
    async def create(request: Request[Any, Any, Any]) -> dict[str, Any]:
        principal = await team.principal(request)
        body = await read(request, FileBatch)
        key = once(request.scope["headers"], "/v1/batches", await request.body())
        wishes = replace(body.wishes(), once=key)
        if (made := await submissions.made_before(principal, key)) is not None:
            return batch_object(made)
        id = private_id("file-", body.input_file_id)
        file = None if id is None else await files.get(UUID(principal.team_id), id)
        if file is None:
            raise unknown_file(body.input_file_id, "input_file_id")
        return batch_object(await submissions.of_file(principal, file, wishes))

    @get("/v1/batches", summary="List the team's batches", tags=["batches"])
    async def list_batches(
        request: Request[Any, Any, Any], after: str | None = None, limit: int = 20
    ) -> dict[str, Any]:
        page, has_more = await team.page(request, after, limit)
        return list_object([batch_object(batch) for batch in page], has_more)

    @get("/v1/batches/{batch_id:str}", summary="Retrieve a batch", tags=["batches"])
    async def retrieve(request: Request[Any, Any, Any], batch_id: str) -> dict[str, Any]:
        return batch_object(await team.found(request, batch_id))

    @post(
        "/v1/batches/{batch_id:str}/cancel",
        summary="Cancel a batch",
        tags=["batches"],
        status_code=200,
    )
    async def cancel(request: Request[Any, Any, Any], batch_id: str) -> dict[str, Any]:
        return batch_object(await team.cancelled(request, batch_id))

    return [create, list_batches, retrieve, cancel]


def unknown_batch(batch_id: str) -> GatewayError:
    """There is no such batch, or it is another team's."""
    return GatewayError.not_found(f"No batch found with id '{batch_id}'.", param="id")
