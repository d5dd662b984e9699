"""The API's description, served at `/openapi/openapi.json`.

Litestar describes the routes whose parameters and answers it can see. Added here is what it can't:
the data plane (raw ASGI), bodies that handlers read themselves, errors, headers and credentials.
Of a data-plane body the members are described that Sluice reads; every other passes through.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import msgspec
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import OpenAPI

from sluice import __version__
from sluice.backends.base import Endpoint
from sluice.gateway.openapi_schemas import SCHEMAS
from sluice.gateway.routes.admin import NewKey, NewTeam, Rotation

JSON = "application/json"
EVENTS = "text/event-stream"
REFERENCE = "#/components/schemas/{name}"

_TAGS = {
    "chat": "Chat, and completions in their legacy form",
    "embeddings": "Vectors of texts",
    "messages": "Anthropic's Messages API",
    "responses": "OpenAI's Responses API",
    "moderations": "OpenAI's moderations",
    "models": "What may be asked for",
    "usage": "What was used, and what it cost",
    "admin": "Teams and keys, for administrators",
    "operations": "Health and metrics",
}

_REASONS = {
    400: "A parameter is wrong; `param` names it",
    401: "No key, or none that is valid",
    403: "The key is valid, and this is not its to do",
    404: "There is no such thing, or it is another tenant's",
    408: "The body came too slowly",
    409: "It conflicts with what is there",
    413: "The body is too large",
    415: "The body is compressed",
    429: "The upstream's limit, with its `retry-after`",
    500: "A fault of the gateway's; also when a charge could not be made durable",
    502: "The upstream failed, answered nonsense, or refused the gateway's credential",
    503: "The upstream is overloaded, the gateway drains, or what it needs is away",
    504: "A deadline passed",
    529: "The upstream is overloaded, or the gateway drains",
}

_DATA_ERRORS: tuple[int, ...] = (400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503, 504)


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
    """

    errors: tuple[int, ...]
    body: str | None = None
    optional: bool = False
    answer: str | None = None


_ADMIN = (401, 403, 500, 503)
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
    ("/v1/usage", "get"): _Handled((400, 401, 404, 500, 503)),
    ("/v1/usage/records", "get"): _Handled((400, 401, 404, 500, 503)),
    ("/admin/teams", "get"): _Handled(_ADMIN, answer="Teams"),
    ("/admin/teams", "post"): _Handled((400, 409, 413, *_ADMIN), body="NewTeam"),
    ("/admin/teams/{team}", "get"): _Handled((404, *_ADMIN)),
    ("/admin/teams/{team}/keys", "post"): _Handled(
        (400, 404, 413, *_ADMIN), body="NewKey", optional=True, answer="ShownKey"
    ),
    ("/admin/keys", "get"): _Handled((404, *_ADMIN), answer="Keys"),
    ("/admin/keys/{key_id}", "delete"): _Handled((404, *_ADMIN)),
    ("/admin/keys/{key_id}/rotate", "post"): _Handled(
        (400, 404, 409, 413, *_ADMIN), body="Rotation", optional=True, answer="ShownKey"
    ),
    ("/health/live", "get"): _Handled(()),
    ("/health/ready", "get"): _Handled((), answer="Readiness"),
}

_SESSION = "Stands for the conversation: all its requests reach the same version of a model"

_REQUEST_ID = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
_HEADERS = {
    "x-request-id": "The key of the request's usage record",
    "x-model-used": "The model of the catalogue that answered",
    "x-attempts": "Each upstream call: its deployment, and how it went",
    "x-dropped-tools": "Types of the offered tools that the upstream can't have",
}


class DescribedAPI(OpenAPIConfig):
    """Litestar's configuration, whose document describes all of the API."""

    def to_openapi_schema(self) -> OpenAPI:
        """The document, which Litestar then fills with what it sees."""
        plain = super().to_openapi_schema()
        return _Document(**{field.name: getattr(plain, field.name) for field in fields(plain)})


def described_api() -> DescribedAPI:
    """The configuration of Sluice's description."""
    return DescribedAPI(title="Sluice", version=__version__, path="/openapi")


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
    _, bodies = msgspec.json.schema_components([NewTeam, NewKey, Rotation], ref_template=REFERENCE)
    components.setdefault("schemas", {}).update(bodies, **SCHEMAS)
    components["headers"] = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()
    }
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"x-api-key": []}]
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]


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
    if handled.body is not None:
        required = not handled.optional
        operation["requestBody"] = {"required": required, "content": _content(handled.body)}
    responses = operation["responses"]
    responses.pop("400", None)  # Litestar's own form, which is not what callers get
    success = next(iter(responses.values()))
    success["headers"] = _REQUEST_ID
    if handled.answer is not None:
        success["content"] = _content(handled.answer)
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


def _content(schema: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": REFERENCE.format(name=schema)}}}


def _error(status: int, schema: str) -> dict[str, Any]:
    return {
        "description": _REASONS[status],
        "headers": _REQUEST_ID,
        "content": _content(schema),
    }


def _header(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
