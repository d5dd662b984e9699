"""`/admin/routing/{alias}/models`: the models that score an alias's requests."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post

from sluice.gateway.errors import GatewayError
from sluice.gateway.learning.models import RouterModel, RouterModels
from sluice.gateway.routes.admin.answers import (
    Cursor,
    Limit,
    answer,
    answer_unless_known,
    turn,
)
from sluice.gateway.routes.admin.bodies import read, refusals
from sluice.gateway.routes.admin.callers import by, caller
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.roles import INSTALLATION

#: Largest upload: a model's file in base64.
MAX_UPLOAD_BYTES = 24 * 1024 * 1024

#: Longest report of an upload, as JSON; it is shown with each model, and is in the audit log.
MAX_REPORT_BYTES = 256 * 1024

_PATH = "/routing/{alias:str}/models"


class Upload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that was trained elsewhere, as `sluice router train` writes it.

    Attributes:
        file: in base64.
        report: what is known of it, for people.
    """

    file: bytes
    report: Annotated[dict[str, Any], msgspec.Meta(max_length=100)] = {}

    def __post_init__(self) -> None:
        text = msgspec.json.encode(self.report)
        if len(text) > MAX_REPORT_BYTES:
            raise ValueError("`report` is too long")
        if b"\\u0000" in text:
            raise ValueError("`report` holds NUL, which Postgres does not")


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    model: that scores the alias's requests; None: the rule does.
    """

    model: RouterModel | None


def router_model_routes(models: RouterModels) -> list[Any]:
    """List, get, upload, promote, roll back."""

    @get(_PATH, summary="List the models of an alias", permission="routing:read")
    async def list_models(
        request: Request[Any, Any, Any], alias: str, limit: Limit = 100, cursor: Cursor = None
    ) -> Page[RouterModel]:
        _of_the_installation(request)
        return await models.page(_named(alias), turn(limit, cursor))

    @post(
        _PATH,
        summary="Upload a model; it is not used yet",
        permission="routing:write",
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def upload_model(request: Request[Any, Any, Any], alias: str) -> Response[RouterModel]:
        _of_the_installation(request)
        given = await read(request, Upload)
        with refusals():
            made = await models.create(
                _named(alias), given.file, "upload", given.report, by(request)
            )
        return answer(request, made, 201)

    @get(f"{_PATH}/{{version:int}}", summary="A model by its version", permission="routing:read")
    async def get_model(
        request: Request[Any, Any, Any], alias: str, version: int
    ) -> Response[RouterModel | None]:
        _of_the_installation(request)
        with refusals():
            return answer_unless_known(request, await models.find(_named(alias), _number(version)))

    @post(
        f"{_PATH}/{{version:int}}/promote",
        summary="Score the alias's requests with this model from now on",
        status_code=200,
        permission="routing:write",
    )
    async def promote_model(
        request: Request[Any, Any, Any], alias: str, version: int
    ) -> Response[RouterModel]:
        _of_the_installation(request)
        with refusals():
            moved = await models.promote(_named(alias), _number(version), by(request))
        return answer(request, moved)

    @post(
        f"{_PATH}/rollback",
        summary="Withdraw the model in use: what was in use before it is again",
        status_code=200,
        permission="routing:write",
    )
    async def roll_back(request: Request[Any, Any, Any], alias: str) -> InUse:
        _of_the_installation(request)
        with refusals():
            return InUse(model=await models.roll_back(_named(alias), by(request)))

    return [list_models, upload_model, get_model, promote_model, roll_back]


def _named(alias: str) -> str:
    """Raises:
    GatewayError: 404, no alias has such a name.
    """
    if "\0" in alias or len(alias) > 200:
        raise GatewayError.not_found("There is no such alias.")
    return alias


def _number(version: int) -> int:
    """Raises:
    GatewayError: 404, no version has such a number.
    """
    if not 0 < version < 2**31:
        raise GatewayError.not_found("There is no such version.")
    return version


def _of_the_installation(request: Request[Any, Any, Any]) -> None:
    """Raises:
    GatewayError: 403, the caller is confined to an organisation; these models are everybody's.
    """
    if not caller(request).covers(INSTALLATION):
        raise GatewayError.forbidden("These models are for administrators of the installation.")
