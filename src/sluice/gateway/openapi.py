"""The API's description, served at `/openapi/openapi.json`.

Litestar describes the routes whose parameters and answers it can see. Added here is what it can't:
the data plane (raw ASGI), bodies that handlers read themselves, errors, headers and credentials.
Of a data-plane body the members are described that Sluice reads; every other passes through.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPI

from sluice import __version__
from sluice.backends.base import Endpoint
from sluice.gateway.learning.feedback import NewFeedback
from sluice.gateway.learning.models import RouterModel
from sluice.gateway.openapi_batch_schemas import BATCH_SCHEMAS
from sluice.gateway.openapi_schemas import SCHEMAS
from sluice.gateway.registry.stages import Promotion
from sluice.gateway.registry.versions import ModelVersion, NewVersion, Terms
from sluice.gateway.routes.admin.keys import Rotation
from sluice.gateway.routes.admin.router_models import Upload
from sluice.gateway.routes.admin.routing import Rollback
from sluice.gateway.routes.admin.teams import NewTeam
from sluice.gateway.routing.preview import Preview
from sluice.gateway.routing.records import RoutingRecord
from sluice.gateway.tenancy.audit import Entry
from sluice.gateway.tenancy.keys import Key, KeyMembers
from sluice.gateway.tenancy.organisations import NewOrganisation, Organisation
from sluice.gateway.tenancy.teams import Team, TeamMembers
from sluice.gateway.tenancy.tokens import NewToken, Token
from sluice.router.auto.documents import RoutingDocument

JSON = "application/json"
EVENTS = "text/event-stream"
FORM = "multipart/form-data"
LINES = "application/jsonl"
BYTES = "application/octet-stream"
REFERENCE = "#/components/schemas/{name}"

_TAGS = {
    "chat": "Chat, and completions in their legacy form",
    "embeddings": "Vectors of texts",
    "messages": "Anthropic's Messages API",
    "responses": "OpenAI's Responses API",
    "moderations": "OpenAI's moderations",
    "files": "What teams keep: inputs and outputs of batches, and others",
    "batches": "Many requests at once, answered within a day",
    "models": "What may be asked for",
    "usage": "What was used, and what it cost",
    "feedback": "How good answers were; `auto` learns by it",
    "admin": "Organisations, teams, keys, tokens and the audit log, for administrators",
    "operations": "Health and metrics",
}

_REASONS = {
    400: "A parameter is wrong; `param` names it",
    401: "No key, or none that is valid",
    403: "The key is valid, and this is not its to do",
    404: "There is no such thing, or it is another tenant's",
    408: "The body came too slowly",
    409: "It conflicts with what is there, or with a request that has its `Idempotency-Key`",
    412: "It was changed since the `ETag` that `If-Match` gave",
    413: "The body is too large",
    415: "The body is compressed",
    416: "The file ends before the range begins",
    422: "The `Idempotency-Key` was used for a request with another body",
    429: "A limit of the caller's, or the upstream's, with its `retry-after`",
    500: "A fault of the gateway's; also when a charge could not be made durable",
    502: "The upstream failed, answered nonsense, or refused the gateway's credential",
    503: "The upstream is overloaded, the gateway drains, or what it needs is away",
    504: "A deadline passed",
    529: "The upstream is overloaded, or the gateway drains",
}

_DATA_ERRORS: tuple[int, ...] = (
    *(400, 401, 403, 404, 408, 409, 413, 415, 422, 429),
    *(500, 502, 503, 504),
)


@dataclass(frozen=True, slots=True)
class _Operation:
    """A data-plane operation: the schemas of its body and its answer, and whether it streams."""

    endpoint: Endpoint
    tag: str
    summary: str
    body: str
    answer: str
    streams: bool = False


_DATA_PLANE = (
    _Operation(
        Endpoint.CHAT, "chat", "Chat", "ChatCompletionRequest", "ChatCompletion", streams=True
    ),
    _Operation(
        Endpoint.COMPLETIONS,
        "chat",
        "Complete a text",
        "CompletionRequest",
        "Completion",
        streams=True,
    ),
    _Operation(Endpoint.EMBEDDINGS, "embeddings", "Embed", "EmbeddingsRequest", "Embeddings"),
    _Operation(
        Endpoint.MESSAGES,
        "messages",
        "Chat, in Anthropic's form",
        "MessagesRequest",
        "Message",
        streams=True,
    ),
    _Operation(
        Endpoint.RESPONSES,
        "responses",
        "Respond, and keep the response",
        "ResponsesRequest",
        "Response",
        streams=True,
    ),
    _Operation(Endpoint.MODERATIONS, "moderations", "Moderate", "ModerationRequest", "Moderation"),
)


@dataclass(frozen=True, slots=True)
class _Handled:
    """What Litestar can't see of a control-plane operation.

    Attributes:
        errors: the statuses of its errors.
        body: the schema of the body that the handler reads.
        optional: the body may be empty.
        answer: the schema of the answer, where the handler's type says too little.
        tagged: the answer has an `ETag`.
        condition: the conditional header that is honoured.
        other_bodies: the schemas of bodies that the handler reads besides, by their media types;
            without a `body`, instead.
        media: of the answer.
        partial: ranges of the answer may be asked for.
        keyed: an `Idempotency-Key` is honoured.
    """

    errors: tuple[int, ...]
    body: str | None = None
    optional: bool = False
    answer: str | None = None
    tagged: bool = False
    condition: Literal["If-Match", "If-None-Match"] | None = None
    other_bodies: tuple[tuple[str, str], ...] = ()
    media: str = JSON
    partial: bool = False
    keyed: bool = False

    @property
    def bodies(self) -> dict[str, str]:
        """The schemas of all bodies, by their media types."""
        return ({} if self.body is None else {JSON: self.body}) | dict(self.other_bodies)


_ADMIN = (401, 403, 500, 503)
_OWN = (401, 403, 404, 429, 500, 503)


def _listed(answer: str) -> _Handled:
    return _Handled((400, 404, *_ADMIN), answer=answer)


def _read(answer: str) -> _Handled:
    return _Handled((404, *_ADMIN), answer=answer, tagged=True, condition="If-None-Match")


def _made(body: str, answer: str, optional: bool = False) -> _Handled:
    errors = (400, 404, 409, 413, *_ADMIN)
    return _Handled(errors, body=body, optional=optional, answer=answer, tagged=True)


def _changed(answer: str, body: str | None = None) -> _Handled:
    errors = (400, 404, 409, 412, 413, *_ADMIN)
    return _Handled(
        errors, body=body, optional=True, answer=answer, tagged=True, condition="If-Match"
    )


_VERSION = "/admin/models/{name}/versions/{version}"
_ROUTING = "/admin/routing/{alias}"

_CONTROL_PLANE: dict[tuple[str, str], _Handled] = {
    ("/v1/models", "get"): _Handled((401, 500), answer="Models"),
    ("/v1/models/{name}", "get"): _Handled((401, 404, 500), answer="Model"),
    ("/v1/responses/{response_id}", "get"): _Handled((401, 403, 404, 500, 503), answer="Response"),
    ("/v1/responses/{response_id}", "delete"): _Handled(
        (401, 403, 404, 500, 503), answer="DeletedResponse"
    ),
    ("/v1/responses/{response_id}/input_items", "get"): _Handled(
        (401, 403, 404, 500, 503), answer="InputItems"
    ),
    ("/v1/messages/count_tokens", "post"): _Handled(
        (400, 401, 404, 413, 500), body="CountTokensRequest", answer="TokenCount"
    ),
    ("/v1/files", "post"): _Handled(
        (400, 401, 403, 409, 413, 415, 422, 429, 500, 503),
        answer="File",
        other_bodies=((FORM, "FileUpload"),),
        keyed=True,
    ),
    ("/v1/files", "get"): _Handled((400, 401, 403, 429, 500, 503), answer="Files"),
    ("/v1/files/{file_id}", "get"): _Handled(_OWN, answer="File"),
    ("/v1/files/{file_id}", "delete"): _Handled((409, *_OWN), answer="DeletedFile"),
    ("/v1/files/{file_id}/content", "get"): _Handled(
        (416, *_OWN), answer="Bytes", media=BYTES, partial=True
    ),
    ("/v1/batches", "post"): _Handled(
        (400, 409, 413, 422, *_OWN), body="NewBatch", answer="Batch", keyed=True
    ),
    ("/v1/batches", "get"): _Handled((400, 401, 403, 429, 500, 503), answer="Batches"),
    ("/v1/batches/{batch_id}", "get"): _Handled(_OWN, answer="Batch"),
    ("/v1/batches/{batch_id}/cancel", "post"): _Handled((409, *_OWN), answer="Batch"),
    ("/v1/batch", "post"): _Handled(
        (400, 409, 413, 415, 422, *_OWN),
        body="NewJob",
        answer="Job",
        other_bodies=((FORM, "JobForm"), (LINES, "Lines")),
        keyed=True,
    ),
    ("/v1/batch", "get"): _Handled((400, 401, 403, 429, 500, 503), answer="Jobs"),
    ("/v1/batch/{batch_id}", "get"): _Handled(_OWN, answer="Job"),
    ("/v1/batch/{batch_id}/cancel", "post"): _Handled((409, *_OWN), answer="Job"),
    ("/v1/batch/{batch_id}/results", "get"): _Handled(
        (400, *_OWN), answer="ResultLines", media=LINES
    ),
    ("/v1/callback_secret", "get"): _Handled((401, 403, 500, 503)),
    ("/v1/callback_secret/rotate", "post"): _Handled((401, 403, 500, 503)),
    ("/v1/batch/{batch_id}/errors", "get"): _Handled(
        (400, *_OWN), answer="ResultLines", media=LINES
    ),
    ("/v1/feedback", "post"): _Handled((400, 413, *_OWN), body="NewFeedback"),
    ("/v1/usage", "get"): _Handled((400, 401, 403, 404, 500, 503)),
    ("/v1/usage/records", "get"): _Handled((400, 401, 403, 404, 500, 503)),
    ("/v1/limits", "get"): _Handled((401, 403, 500, 503), answer="KeyLimits"),
    ("/admin/organisations", "get"): _listed("Organisations"),
    ("/admin/organisations", "post"): _made("NewOrganisation", "Organisation"),
    ("/admin/organisations/{organisation}", "get"): _read("Organisation"),
    ("/admin/organisations/{organisation}", "patch"): _changed("Organisation", "OrganisationPatch"),
    ("/admin/organisations/{organisation}", "delete"): _changed("Organisation"),
    ("/admin/teams", "get"): _listed("Teams"),
    ("/admin/teams", "post"): _made("NewTeam", "Team"),
    ("/admin/teams/{team}", "get"): _read("Team"),
    ("/admin/teams/{team}", "patch"): _changed("Team", "TeamPatch"),
    ("/admin/teams/{team}", "delete"): _changed("Team"),
    ("/admin/teams/{team}/keys", "post"): _made("NewKey", "ShownKey", optional=True),
    ("/admin/keys", "get"): _listed("Keys"),
    ("/admin/keys/{key_id}", "get"): _read("Key"),
    ("/admin/keys/{key_id}", "patch"): _changed("Key", "KeyPatch"),
    ("/admin/keys/{key_id}", "delete"): _changed("Key"),
    ("/admin/keys/{key_id}/rotate", "post"): _made("Rotation", "ShownKey", optional=True),
    ("/admin/tokens", "get"): _listed("Tokens"),
    ("/admin/tokens", "post"): _made("NewToken", "ShownToken"),
    ("/admin/tokens/{token_id}", "get"): _read("Token"),
    ("/admin/tokens/{token_id}", "delete"): _changed("Token"),
    ("/admin/models", "get"): _listed("ModelVersions"),
    ("/admin/models", "post"): _made("NewVersion", "ModelVersion"),
    (_VERSION, "get"): _read("ModelVersion"),
    (_VERSION, "patch"): _changed("ModelVersion", "TermsPatch"),
    (f"{_VERSION}/promote", "post"): _changed("ModelVersion", "Promotion"),
    (f"{_VERSION}/retire", "post"): _changed("ModelVersion"),
    ("/admin/pools", "get"): _Handled(_ADMIN),
    ("/admin/pools/{name}", "get"): _Handled((404, *_ADMIN)),
    ("/admin/pools/{name}/replicas/{replica}/drain", "post"): _Handled((404, *_ADMIN)),
    ("/admin/pools/{name}/replicas/{replica}/undrain", "post"): _Handled((404, *_ADMIN)),
    ("/admin/routing", "get"): _listed("RoutingDocuments"),
    (_ROUTING, "get"): _read("RoutingRecord"),
    (_ROUTING, "put"): _changed("RoutingAnswer", "RoutingDocument"),
    (_ROUTING, "delete"): _changed("RoutingRecord"),
    (f"{_ROUTING}/versions", "get"): _Handled((404, *_ADMIN)),
    (f"{_ROUTING}/rollback", "post"): _changed("RoutingRecord", "Rollback"),
    (f"{_ROUTING}/models", "get"): _listed("RouterModels"),
    (f"{_ROUTING}/models", "post"): _made("Upload", "RouterModel"),
    (f"{_ROUTING}/models/{{version}}", "get"): _read("RouterModel"),
    (f"{_ROUTING}/models/{{version}}/promote", "post"): _Handled(
        (404, *_ADMIN), answer="RouterModel", tagged=True
    ),
    (f"{_ROUTING}/models/rollback", "post"): _Handled((404, *_ADMIN)),
    ("/admin/audit", "get"): _listed("Changes"),
    ("/health/live", "get"): _Handled(()),
    ("/health/ready", "get"): _Handled((), answer="Readiness"),
}

_SESSION = "Stands for the conversation: all its requests reach the same version of a model"

_REQUEST_ID = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
_TAG = {"etag": {"description": "Of the record's revision", "schema": {"type": "string"}}}
_KEY = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
_HEADERS = {
    "x-request-id": "The key of the request's usage record, or of its entry in the audit log",
    "x-model-used": "The model of the catalogue that answered",
    "x-route-reason": "Why it was that model, where `auto` was asked for",
    "x-attempts": "Each upstream call: its deployment, and how it went",
    "x-dropped-tools": "Types of the offered tools that the upstream can't have",
    "x-original-request-id": "The request of the same `Idempotency-Key` that was answered",
    "idempotency-replayed": "`true`: the answer was complete before this request came",
}


class DescribedAPI(OpenAPIConfig):
    """Litestar's configuration, whose document describes all of the API."""

    def to_openapi_schema(self) -> OpenAPI:
        """The document, which Litestar then fills with what it sees."""
        plain = super().to_openapi_schema()
        return _Document(**{field.name: getattr(plain, field.name) for field in fields(plain)})


def described_api() -> DescribedAPI:
    """The configuration of Sluice's description: the document, and none of the pages that show it,
    which run other sites' scripts as if they were ours."""
    return DescribedAPI(
        title="Sluice", version=__version__, path="/openapi", render_plugins=[JsonRenderPlugin()]
    )


class _Document(OpenAPI):
    """The document; completed when it is rendered, because only then has Litestar seen all."""

    def to_schema(self) -> dict[str, Any]:
        document = super().to_schema()
        _complete(document)
        return document


def _complete(document: dict[str, Any]) -> None:
    paths = document["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            _fill_in(operation, path, _CONTROL_PLANE[path, method])
    for described in _DATA_PLANE:
        paths[f"/v1/{described.endpoint.value}"] = {"post": _data_operation(described)}
    paths["/metrics"] = {"get": _metrics()}
    paths["/health/ready"]["get"]["responses"]["503"] = {
        "description": "A dependency is down without which nothing can be served, or draining",
        "headers": _REQUEST_ID,
        "content": _content("Readiness"),
    }
    for path in ("/health/live", "/health/ready", "/metrics"):
        paths[path]["get"]["security"] = []
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(_administration(), **SCHEMAS, **BATCH_SCHEMAS)
    components["headers"] = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()
    }
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"x-api-key": []}]
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]


def _administration() -> dict[str, Any]:
    """The schemas of what administrators read and write."""
    taken = (NewOrganisation, TeamMembers, NewTeam, KeyMembers, NewToken, Rotation)
    learning = (NewFeedback, Upload, RouterModel)
    models = (NewVersion, Terms, Promotion, ModelVersion)
    routing = (RoutingDocument, RoutingRecord, Rollback, Preview)
    shown = (Organisation, Team, Key, Token, Entry, *models, *routing, *learning)
    _, described = msgspec.json.schema_components([*taken, *shown], ref_template=REFERENCE)
    schemas: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described))
    schemas["OrganisationPatch"] = _patch_of(schemas["NewOrganisation"])
    schemas["TeamPatch"] = _patch_of(schemas.pop("TeamMembers"))
    schemas["TermsPatch"] = _patch_of(schemas.pop("Terms"))
    schemas["NewKey"] = schemas.pop("KeyMembers")
    schemas["KeyPatch"] = _patch_of(schemas["NewKey"])
    return schemas


def _patch_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396): each member may be absent, or null to remove it."""
    members = {
        name: {"anyOf": [member, {"type": "null"}]} for name, member in schema["properties"].items()
    }
    return {**schema, "properties": members, "required": []}


def _data_operation(described: _Operation) -> dict[str, Any]:
    """The description of a data-plane operation."""
    anthropic = described.endpoint is Endpoint.MESSAGES
    statuses = _DATA_ERRORS
    if anthropic:
        statuses = tuple(529 if status == 503 else status for status in statuses)
    content = _content(described.answer)
    if described.streams:
        content[EVENTS] = {"schema": {"description": "Events, in the form of the endpoint"}}
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    error = "AnthropicError" if anthropic else "Error"
    parameters = [
        _header("x-tier", {"enum": ["interactive", "batch"]}, "As the member of this name"),
        _header("x-team-id", {"type": "string"}, "As the member of this name"),
        _header("idempotency-key", _KEY, "All requests with one key get one answer"),
        _header("x-session-id", {"type": "string"}, _SESSION),
    ]
    if anthropic:
        parameters += [
            _header("anthropic-version", {"type": "string"}, "Goes along to Anthropic"),
            _header("anthropic-beta", {"type": "string"}, "Goes along to Anthropic"),
        ]
    return {
        "tags": [described.tag],
        "summary": described.summary,
        "operationId": described.body.removesuffix("Request"),
        "parameters": parameters,
        "requestBody": {"required": True, "content": _content(described.body)},
        "responses": {
            "200": {"description": "The answer", "headers": headers, "content": content},
            **{str(status): _error(status, error) for status in statuses},
            "4XX": {
                "description": "The upstream's refusal of what the caller asked for",
                "headers": _REQUEST_ID,
                "content": _content(error),
            },
        },
    }


def _fill_in(operation: dict[str, Any], path: str, handled: _Handled) -> None:
    """Complete what Litestar says of a control-plane operation."""
    if handled.bodies:
        content: dict[str, Any] = {}
        for media, schema in handled.bodies.items():
            content |= _content(schema, media)
        operation["requestBody"] = {"required": not handled.optional, "content": content}
    responses = operation["responses"]
    responses.pop("400", None)  # Litestar's own form, which is not what callers get
    success = next(iter(responses.values()))
    success["headers"] = _REQUEST_ID | (_TAG if handled.tagged else {})
    if handled.condition is not None:
        text = "The `ETag` of the record as it was read"
        operation.setdefault("parameters", []).append(
            _header(handled.condition, {"type": "string"}, text)
        )
    if handled.condition == "If-None-Match":
        responses["304"] = {"description": "It is as it was", "headers": _REQUEST_ID | _TAG}
    if handled.answer is not None:
        success["content"] = _content(handled.answer, handled.media)
    if handled.keyed:
        operation.setdefault("parameters", []).append(
            _header("idempotency-key", _KEY, "Calls with one key make one")
        )
    if handled.partial:
        operation.setdefault("parameters", []).append(
            _header("range", {"type": "string"}, "One range of bytes")
        )
        responses["206"] = {**success, "description": "The range that was asked for"}
    anthropic = path.startswith("/v1/messages")
    for status in sorted(handled.errors):
        # what the framework finds wrong doesn't know whose client asks
        own = anthropic and status not in (413, 500)
        responses[str(status)] = _error(status, "AnthropicError" if own else "Error")


def _metrics() -> dict[str, Any]:
    return {
        "tags": ["operations"],
        "summary": "Metrics for Prometheus",
        "operationId": "Metrics",
        "responses": {
            "200": {
                "description": "The metrics",
                "headers": _REQUEST_ID,
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    }


def _content(schema: str, media: str = JSON) -> dict[str, Any]:
    return {media: {"schema": {"$ref": REFERENCE.format(name=schema)}}}


def _error(status: int, schema: str) -> dict[str, Any]:
    return {
        "description": _REASONS[status],
        "headers": _REQUEST_ID,
        "content": _content(schema),
    }


def _header(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
