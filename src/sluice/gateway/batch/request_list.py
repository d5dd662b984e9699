"""Requests of a batch that come as a JSON list, turned into the lines of an input file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sluice.backends.base import Endpoint
from sluice.gateway.batch.lines import LineRefused
from sluice.wire.objects import MalformedJSON, decode_object, encode, raw

_ESSENTIAL = ("custom_id", "method", "url", "body")


def request_lines(requests: Sequence[msgspec.Raw], endpoint: Endpoint) -> Iterator[bytes]:
    """Each request as a line. What of a line is left out is as one would think: POST, the
    endpoint, and `request-1` and so on for ids; a request without a `body` is one itself.

    Raises:
        LineRefused: one is no JSON object.
    """
    defaults = {"method": raw("POST"), "url": raw(f"/v1/{endpoint.value}")}
    for number, text in enumerate(requests, 1):
        try:
            members = decode_object(bytes(text))
        except MalformedJSON as error:
            reason = f"is not a valid JSON object: {error}."
            raise LineRefused(number, reason, "requests", "invalid_json_line") from None
        if not any(name in members for name in ("body", "url", "method")):
            custom_id = members.pop("custom_id", None)
            members = {"body": raw(members)} | ({"custom_id": custom_id} if custom_id else {})
        line = {"custom_id": raw(f"request-{number}"), **defaults, **members}
        kept = {name: line[name] for name in _ESSENTIAL if name in line}
        yield encode(kept).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
