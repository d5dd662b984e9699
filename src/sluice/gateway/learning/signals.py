"""Cheap signals: what an answer itself shows of how good it was. Pure.

They are weak labels. An answer that filled its bound was probably cut off; one that does not fit
the schema that was asked for is of no use to a program.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec

from sluice.gateway.learning.labels import Signal
from sluice.wire.request import Request
from sluice.wire.usage import Usage

#: Smaller bounds are meant to cut answers off: one token for a class, a few words for a title.
MIN_BOUND = 64

#: Larger schemas are not looked at, in bytes.
MAX_SCHEMA_BYTES = 32 * 1024

#: Not the engine that backtracks: patterns come from callers.
_PATTERNS = jsonschema_rs.RegexOptions()

#: The members that may ask for a form, of chat and of Responses.
_FORMS = {"response_format", "text"}

_NULL = msgspec.Raw(b"null")


def truncated(request: Request, usage: Usage) -> bool:
    """Whether an answer filled the bound on its output."""
    bound = request.max_tokens
    return bound is not None and bound >= MIN_BOUND and usage.output_tokens >= bound


def wanted_schema(request: Request) -> Any:
    """The JSON schema that the answer must fit; `{}` where any JSON will do; None: it need not be
    JSON, or the schema is too large to look at."""
    if _FORMS.isdisjoint(request.members):
        return None
    try:
        text = msgspec.json.decode(request.members.get("text", _NULL)) or {}
        given = msgspec.json.decode(request.members.get("response_format", _NULL))
        form = given or text.get("format") or {}
        match form.get("type"):
            case "json_object":
                return {}
            case "json_schema":  # chat has it one level deeper than Responses
                schema = form.get("json_schema", form).get("schema", {})
                return schema if len(msgspec.json.encode(schema)) <= MAX_SCHEMA_BYTES else None
    except (msgspec.DecodeError, AttributeError, RecursionError):
        pass
    return None


def fits(text: str, schema: Any) -> bool:
    """Whether a text is JSON that fits a schema. A schema that is none, or refers to somewhere
    else, is fitted by any JSON."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)
        return validator.is_valid(value)
    except (jsonschema_rs.ValidationError, ValueError, TypeError):
        return True


def shown(request: Request, usage: Usage, text: str | None) -> list[Signal]:
    """What is wrong with an answer.

    Args:
        request: what was asked, with its bound.
        usage: what the answer used.
        text: that was generated, where it is known.
    """
    found: list[Signal] = []
    if truncated(request, usage):
        found.append("truncated")
    schema = wanted_schema(request)
    if schema is not None and text is not None and not fits(text, schema):
        found.append("schema")
    return found
