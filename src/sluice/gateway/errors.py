"""Errors as callers see them: each carries its status, and is rendered at the edge.

GatewayError
├── made by the classmethods below for the gateway's own refusals
└── made by `from_upstream` for what upstreams said
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from sluice.gateway.quotas.admission import AdmissionRefused
from sluice.gateway.quotas.counters import Refused
from sluice.router.dispatch import TargetsResting, UpstreamFailure
from sluice.router.policy import RoutingRefused
from sluice.router.retries import DEADLINE_EXCEEDED, implied_status, retry_after
from sluice.wire.errors import ErrorDetail, InvalidRequest

#: Longer waits are not worth a client's retry loop; SDKs differ in what they make of them.
PATIENCE_SECONDS = 60.0


class GatewayError(Exception):
    """An error with its HTTP form.

    Attributes:
        status: HTTP status.
        detail: the body.
        headers: additional response headers.
    """

    def __init__(
        self, status: int, detail: ErrorDetail, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})

    @classmethod
    def invalid(
        cls, message: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> GatewayError:
        """The request is wrong."""
        return cls(status, ErrorDetail(message, "invalid_request_error", param, code))

    @classmethod
    def of_request(cls, error: InvalidRequest) -> GatewayError:
        """The request's body is wrong."""
        return cls.invalid(str(error), error.param, error.code)

    @classmethod
    def of_routing(cls, error: RoutingRefused) -> GatewayError:
        """Nothing in the catalogue serves the request."""
        status = 404 if error.code == "model_not_found" else 400
        return cls.invalid(str(error), error.param, error.code, status)

    @classmethod
    def unauthenticated(cls) -> GatewayError:
        """No key, or none that is valid. Says nothing of the key that came."""
        return cls.invalid(
            "Incorrect or missing API key. Send it as `Authorization: Bearer <key>`.",
            code="invalid_api_key",
            status=401,
        )

    @classmethod
    def forbidden(
        cls, message: str, param: str | None = None, code: str = "forbidden"
    ) -> GatewayError:
        """The key is valid, and this is not its to do."""
        return cls(403, ErrorDetail(message, "permission_error", param, code))

    @classmethod
    def endpoint_forbidden(cls, path: str) -> GatewayError:
        """The key may not use an operation at all."""
        return cls.forbidden(f"This key may not use `/v1/{path}`.", code="endpoint_not_allowed")

    @classmethod
    def model_forbidden(cls, name: str) -> GatewayError:
        """The key may not use this model."""
        return cls.forbidden(
            f"This key may not use the model `{name}`.", "model", "model_not_allowed"
        )

    @classmethod
    def not_found(
        cls, message: str, code: str = "not_found", param: str | None = None
    ) -> GatewayError:
        """There is no such thing, or it is another tenant's."""
        return cls.invalid(message, param, code, 404)

    @classmethod
    def draining(cls) -> GatewayError:
        """This process is shutting down; another will answer."""
        return cls(
            503,
            ErrorDetail(
                "The gateway is restarting, try again.",
                "service_unavailable_error",
                code="server_is_overloaded",
            ),
            {"retry-after": "1", "connection": "close"},
        )

    @classmethod
    def store_away(cls) -> GatewayError:
        """Redis is away, and what was asked for lives there."""
        detail = ErrorDetail(
            "Stored responses can't be reached now.",
            "service_unavailable_error",
            code="server_is_overloaded",
        )
        return cls(503, detail, {"retry-after": "1"})

    @classmethod
    def counters_away(cls) -> GatewayError:
        """The counters of quotas and budgets can't be asked, and the caller has limits."""
        detail = ErrorDetail(
            "Limits can't be checked now, try again.",
            "service_unavailable_error",
            code="limits_unavailable",
        )
        return cls(503, detail, {"retry-after": "1"})

    @classmethod
    def internal(cls) -> GatewayError:
        """A fault of ours."""
        return cls(
            500,
            ErrorDetail("The gateway failed to handle the request.", code="internal_error"),
        )

    @classmethod
    def timeout(cls, what: str) -> GatewayError:
        """The upstream let a deadline pass."""
        return cls(504, ErrorDetail(what, code="upstream_timeout"))

    def body(self) -> bytes:
        """The response body."""
        return self.detail.body()


def from_upstream(failure: UpstreamFailure) -> GatewayError:
    """What the caller hears of an upstream's failure.

    The caller's own faults pass with the upstream's words. Our credential being refused is our
    fault, never a 401 for the caller. The upstream's faults are a 502, its overload a 503.
    """
    status, detail = failure.status, failure.detail
    if status is None and detail.code in _DEADLINES:
        return GatewayError(504, _server(detail))
    if status is None:
        status = implied_status(failure.classified())
    if status in (401, 402, 403):
        ours = ErrorDetail(
            "The upstream refused the gateway's credential.", code="upstream_credential_refused"
        )
        return GatewayError(502, ours, {"x-should-retry": "false"})
    if status == 429:
        return _limited(failure)
    if status in (408, 504):
        return GatewayError(504, _server(detail, "upstream_timeout"))
    if status in (503, 529):
        overloaded = ErrorDetail(
            detail.message, "service_unavailable_error", code="server_is_overloaded"
        )
        return GatewayError(503, overloaded, _wait(failure))
    if 400 <= status < 500:
        return GatewayError(status, _callers(status, detail))
    return GatewayError(502, _server(detail))


_DEADLINES = ("upstream_timeout", DEADLINE_EXCEEDED)


def _server(detail: ErrorDetail, code: str = "upstream_error") -> ErrorDetail:
    return ErrorDetail(detail.message, "server_error", None, detail.code or code)


def _limited(failure: UpstreamFailure) -> GatewayError:
    detail = failure.detail
    exhausted = "insufficient_quota" in (detail.code, detail.type)
    headers = _wait(failure)
    if exhausted:
        headers["x-should-retry"] = "false"
    kind = "insufficient_quota" if exhausted else "rate_limit_error"
    code = "insufficient_quota" if exhausted else "rate_limit_exceeded"
    return GatewayError(429, ErrorDetail(detail.message, kind, None, code), headers)


#: How upstreams say that a request doesn't fit the model's context, in lower case.
_OVERFLOWS = ("maximum context length", "prompt is too long", "exceed context limit")


def _callers(status: int, detail: ErrorDetail) -> ErrorDetail:
    """vLLM and others have type names of their own and put the status where the code belongs."""
    code = detail.code
    text = detail.message.lower()
    if status == 400 and any(wording in text for wording in _OVERFLOWS):
        code = "context_length_exceeded"
    elif code is not None and code.isdigit():
        code = "model_not_found" if status == 404 else None
    kind = "request_too_large" if status == 413 else "invalid_request_error"
    return ErrorDetail(detail.message, kind, detail.param, code)


def _wait(failure: UpstreamFailure) -> dict[str, str]:
    """The upstream's wait, in seconds, and whether it is worth a retry; where every target rests
    by now, the time until the first may be called."""
    seconds = retry_after(failure.headers, datetime.now(UTC))
    if failure.resting is not None:
        seconds = failure.resting.seconds
    if seconds is None:
        return {}
    wait = _wait_seconds(seconds)
    if failure.headers.get("retry-after-ms"):
        wait["retry-after-ms"] = str(math.ceil(seconds * 1000))
    return wait


def _wait_seconds(seconds: float) -> dict[str, str]:
    wait = {"retry-after": str(math.ceil(seconds))}
    if seconds > PATIENCE_SECONDS:
        wait["x-should-retry"] = "false"
    return wait


def from_resting(resting: TargetsResting) -> GatewayError:
    """Every deployment rests: come back when the first one may be called."""
    if resting.limited:
        status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"
        text = "Every deployment of the model is at its provider's limit."
    else:
        status, kind, code = 503, "service_unavailable_error", "server_is_overloaded"
        text = "Every deployment of the model is resting after failures."
    return GatewayError(status, ErrorDetail(text, kind, None, code), _wait_seconds(resting.seconds))


def from_limits(error: AdmissionRefused) -> GatewayError:
    """What the caller hears of its own limit: which one, of which level, and when to come back."""
    refused, need = error.refused, error.need
    scope, limits = refused.account.scope, refused.account.scope.limits
    whose = f"{scope.level} `{scope.name or scope.id}`"
    requests = "batch requests" if scope.part == "batch" else "requests"
    match refused.dimension:
        case "budget":
            return _over_budget(refused, whose)
        case "concurrency":
            seconds = min(max(refused.account.pace.hold_seconds, 0.1), PATIENCE_SECONDS)
            return _over_limit(
                f"The {whose} may have {limits.max_concurrent} {requests} in progress.",
                "concurrency_limit_exceeded",
                seconds,
            )
        case "tokens":
            text = (
                f"The {whose} may use {limits.tokens_per_minute} tokens a minute"
                f"{' for batch requests' if scope.part == 'batch' else ''}; this request"
                f" may take {need.tokens}."
            )
            return _over_limit(text, "rate_limit_exceeded", refused.seconds)
        case _:
            text = f"The {whose} may make {limits.requests_per_minute} {requests} a minute."
            return _over_limit(text, "rate_limit_exceeded", refused.seconds)


def _over_limit(text: str, code: str, seconds: float | None) -> GatewayError:
    detail = ErrorDetail(text, "rate_limit_error", None, code)
    if seconds is None:  # it would not fit into an untouched minute
        return GatewayError(429, detail, {"x-should-retry": "false"})
    wait = _wait_seconds(seconds)
    return GatewayError(429, detail, {**wait, "retry-after-ms": str(math.ceil(seconds * 1000))})


def _over_budget(refused: Refused, whose: str) -> GatewayError:
    pot = refused.pot
    text = f"The {whose} has no budget left for this request."
    headers = {"x-should-retry": "false"}
    if pot is not None:
        text = (
            f"The {whose} has {pot.budget.limit_usd} USD a {pot.budget.period}, and less is left"
            f" than this request may cost. The {pot.budget.period} ends"
            f" {pot.span.ends_at:%Y-%m-%d %H:%M} UTC."
        )
        seconds = (pot.span.ends_at - datetime.now(UTC)).total_seconds()
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    detail = ErrorDetail(text, "insufficient_quota", None, "insufficient_quota")
    return GatewayError(429, detail, headers)
