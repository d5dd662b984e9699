"""Bounds on output: every request that generates has one, its own or a default."""

from __future__ import annotations

from sluice.backends.base import Endpoint
from sluice.gateway.errors import GatewayError
from sluice.gateway.tenancy.limits import Policy
from sluice.router.catalog import Model
from sluice.wire.request import Request

#: Operations that generate, and whose output must be bounded.
_GENERATING = frozenset(
    {Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.MESSAGES, Endpoint.RESPONSES}
)


def bounded(endpoint: Endpoint, request: Request, model: Model, policy: Policy) -> Request:
    """The request with a bound on its output: its own if it has one and it fits, else a default.

    Raises:
        GatewayError: no bound and no default, or a bound beyond the context length or beyond what
            the caller may ask for.
    """
    if endpoint not in _GENERATING:
        return request
    largest = policy.max_output_tokens
    if request.max_tokens is None:
        default = model.default_max_tokens or policy.default_max_tokens or largest
        if default is None:
            raise GatewayError.invalid(
                "`max_tokens` (or `max_completion_tokens`) is required.",
                "max_tokens",
                "missing_required_parameter",
            )
        # A default must not push a long prompt over the edge that it would fit under by itself.
        room = model.context_length - request.prompt_characters // 2
        return request.bounded(max(1, min(default, room, largest or default)))
    if request.max_tokens > model.context_length:
        raise GatewayError.invalid(
            f"`max_tokens` is {request.max_tokens}, and the context length of"
            f" `{model.name}` is {model.context_length} tokens.",
            "max_tokens",
            "context_length_exceeded",
        )
    if largest is not None and request.max_tokens > largest:
        raise GatewayError.invalid(
            f"`max_tokens` is {request.max_tokens}, and this key may ask for {largest} at most.",
            "max_tokens",
            "invalid_value",
        )
    return request
