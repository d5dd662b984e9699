"""JSON schemas in the form in which Anthropic can promise an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import encode

#: Schema keywords that Anthropic enforces, those with schemas inside apart.
_ENFORCED = frozenset(("$ref", "const", "description", "enum", "required", "title", "type"))
_MAPS = frozenset(("$defs", "definitions", "properties"))
_VARIANTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
_IGNORED = frozenset(("$id", "$schema", "additionalProperties"))

#: These change which objects and arrays are valid; to weaken them would break a promise.
# fmt: off
_UNPROMISED = frozenset((
    "$dynamicRef", "contains", "dependentRequired", "dependentSchemas", "else", "if", "not",
    "patternProperties", "prefixItems", "then", "unevaluatedItems", "unevaluatedProperties"
))
# fmt: on


def closed_schema(schema: Any, param: str) -> dict[str, Any]:
    """A JSON schema in the form that Anthropic enforces.

    Objects are closed (`additionalProperties: false`); `oneOf` becomes `anyOf`; limits (numbers,
    lengths, patterns) and other keywords that aren't enforced go into the description.

    Raises:
        InvalidRequest: it is recursive, refers elsewhere, has open-ended maps, or uses a keyword
            that is neither enforced nor a mere limit.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{param}` must be an object", param)
    _check_references(schema, param)
    closed: dict[str, Any] = _closed(schema, param)
    return closed


def _closed(schema: Any, param: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    hints: list[str] = []
    for key, value in schema.items():
        if key in _UNPROMISED or (key == "additionalProperties" and isinstance(value, dict)):
            raise InvalidRequest(
                f"this model can't be held to `{key}` in a schema", param, "unsupported_parameter"
            )
        if key in _MAPS and isinstance(value, dict):
            out[key] = {name: _closed(inner, param) for name, inner in value.items()}
        elif key in _VARIANTS and isinstance(value, list):
            out[_VARIANTS[key]] = [_closed(inner, param) for inner in value]
        elif key == "items":
            out[key] = _closed(value, param)
        elif key in _ENFORCED or _enforced_value(key, value):
            out[key] = value
        elif key not in _IGNORED:
            hints.append(f"{key}: {encode(value).decode()}")
    if out.get("type") == "object" or "properties" in out:
        out["additionalProperties"] = False
    if hints:
        described = [out["description"]] if isinstance(out.get("description"), str) else []
        out["description"] = "\n\n".join([*described, "{" + ", ".join(hints) + "}"])
    return out


def _enforced_value(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value in _FORMATS
    return key == "minItems" and value in (0, 1)


def _check_references(schema: dict[str, Any], param: str) -> None:
    """Every reference is to a definition, and following them ends."""
    definitions = {
        f"#/{group}/{name}": set(_references(inner))
        for group in ("$defs", "definitions")
        if isinstance(schema.get(group), dict)
        for name, inner in schema[group].items()
    }
    ended: set[str] = set()
    while more := {name for name, to in definitions.items() if to <= ended} - ended:
        ended |= more
    if len(ended) < len(definitions) or not set(_references(schema)) <= ended:
        raise InvalidRequest(
            "this model takes no recursive schema, and references to `$defs` only",
            param,
            "unsupported_parameter",
        )


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _references(inner)
