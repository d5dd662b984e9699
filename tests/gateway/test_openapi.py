"""The description is valid, complete, and true of what the gateway does."""

from __future__ import annotations

import warnings
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from litestar import Litestar
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sluice.gateway.app import create_app
from sluice.gateway.auth import KeyRing
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.admin import admin_router
from sluice.gateway.routes.admin.models import Configured
from sluice.gateway.routes.batches import batches_routes
from sluice.gateway.routes.callback_secrets import callback_secret_routes
from sluice.gateway.routes.completions import SERVED, completion_routes
from sluice.gateway.routes.counted_calls import CountedCalls
from sluice.gateway.routes.feedback import feedback_routes
from sluice.gateway.routes.files import file_routes
from sluice.gateway.routes.health import health_routes
from sluice.gateway.routes.jobs import job_routes
from sluice.gateway.routes.limits import limit_routes
from sluice.gateway.routes.models import model_routes
from sluice.gateway.routes.responses import response_routes
from sluice.gateway.routes.token_counts import token_count_routes
from sluice.gateway.routes.usage import usage_routes
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway

CHECKS: list[CheckFunction] = [
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


def described_app() -> Litestar:
    """All routes, over nothing that could serve them."""
    nothing: Any = None
    access = Access(KeyRing())
    return create_app(
        [
            *completion_routes(nothing),
            *model_routes(nothing, nothing, access),
            *response_routes(nothing, access),
            *token_count_routes(nothing, access),
            *limit_routes(nothing, access),
            *usage_routes(nothing, nothing, access),
            *file_routes(nothing),
            *batches_routes(nothing, nothing, nothing),
            *job_routes(nothing, nothing, nothing, 0),
            *feedback_routes(nothing, access, CountedCalls(access, nothing, nothing)),
            *callback_secret_routes(nothing, access),
            admin_router(nothing, access, Configured((), ()), nothing, nothing),
            *health_routes({}, frozenset(), bytes),
        ]
    )


with warnings.catch_warnings():  # of how the handlers declare their parameters
    warnings.simplefilter("ignore", DeprecationWarning)
    APP = described_app()
DOCUMENT: dict[str, Any] = APP.openapi_schema.to_schema()
OPERATIONS = [(path, method) for path, item in DOCUMENT["paths"].items() for method in item]


def responses(path: str, method: str) -> dict[str, Any]:
    return cast("dict[str, Any]", DOCUMENT["paths"][path][method]["responses"])


def test_it_is_valid() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_every_route_is_described() -> None:
    routed = {
        (route.path_format, method.lower())
        for route in APP.routes
        for method in getattr(route, "methods", None) or {"POST"}
        if method != "OPTIONS" and not route.path.startswith("/openapi")
    }
    assert set(OPERATIONS) == routed
    assert all(f"/v1/{endpoint.value}" in DOCUMENT["paths"] for endpoint in SERVED)


def test_every_operation_has_a_name_of_its_own_and_a_known_tag() -> None:
    operations = [DOCUMENT["paths"][path][method] for path, method in OPERATIONS]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert all(set(operation["tags"]) <= tags for operation in operations)
    assert all(operation["summary"] for operation in operations)


def test_each_clients_form_of_errors() -> None:
    def schema(path: str, status: str) -> str:
        content = responses(path, "post")[status]["content"]["application/json"]
        return cast("str", content["schema"]["$ref"]).rpartition("/")[2]

    assert schema("/v1/messages", "529") == "AnthropicError"
    assert schema("/v1/chat/completions", "503") == "Error"
    assert "503" not in responses("/v1/messages", "post")


def test_it_is_served(gateway: Gateway) -> None:
    assert gateway.api("GET", "/openapi/openapi.json") == DOCUMENT


CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
RESPOND = {"model": "simulated", "input": "x", "max_output_tokens": 5}
KEYS = "/admin/teams/default/keys"
EARLY, LATE = "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", {**CHAT, "n": 10**12}, 400),
        ("POST", "/v1/responses", {**RESPOND, "previous_response_id": 1}, 400),
        ("POST", "/v1/responses", {**RESPOND, "tools": [{"type": "a\r\nb: c"}]}, 400),
        ("POST", "/admin/teams", {"name": "a\n"}, 400),
        ("POST", KEYS, {"name": "\0"}, 400),
        ("POST", KEYS, {"expires_at": EARLY}, 400),
        ("POST", KEYS, {"expires_at": LATE}, 400),
        ("GET", "/admin/teams/%00", None, 404),
        ("GET", "/admin/keys?team_id=%00", None, 404),
        ("GET", f"/v1/usage/records?from={EARLY}", None, 400),
        ("GET", f"/v1/usage/records?to={LATE}", None, 400),
    ],
)
def test_oddities_are_refused(
    gateway: Gateway, method: str, path: str, body: Any, status: int
) -> None:
    key = ADMIN_KEY if path.startswith("/admin") else TEAM_KEY
    response = gateway.request(method, path, body, key)
    assert response.status_code == status, response.text


@pytest.fixture(scope="module")
def api(gateway: Gateway) -> Any:
    return schemathesis.openapi.from_url(f"{gateway.url}/openapi/openapi.json")


def moderate(case: Case[Any]) -> None:
    """A model that there is, an answer that ends soon; nothing that only its owner can name."""
    case.headers.pop("x-team-id", None)
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = "simulated"
    for name in ("x-team-id", "previous_response_id"):
        if isinstance(body.get(name), str):
            del body[name]
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(body.get(name)) is int:
            body[name] = min(body[name], 20)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_anything_gets_an_answer_that_is_described(
    gateway: Gateway, api: Any, path: str, method: str
) -> None:
    operation = api[path][method]
    key = ADMIN_KEY if path.startswith("/admin") else TEAM_KEY
    right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=right | wrong)
    def ask(case: Case[Any]) -> None:
        moderate(case)
        response = case.call(headers={"authorization": f"Bearer {key}"})
        assert response.status_code != 500, case.as_curl_command()
        case.validate_response(response, checks=CHECKS)

    ask()
