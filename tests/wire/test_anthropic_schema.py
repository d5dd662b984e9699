"""Formats of answers, and the schemas that Anthropic can promise."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.wire.anthropic_profile import profile_of
from tests.wire.anthropic_requests import refused, translated


class TestFormats:
    def schema(self, schema: Any, **more: Any) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}
        return translated(response_format=form)["output_config"]["format"]["schema"]

    def test_c12_objects_are_closed(self) -> None:
        inner = {"type": "object", "properties": {"x": {"type": "string"}}}
        schema = {"type": "object", "properties": {"a": inner, "b": {"items": inner}},
                  "additionalProperties": True, "required": ["a"]}  # fmt: skip
        sent = self.schema(schema, strict=True)
        closed = {**inner, "additionalProperties": False}
        assert sent == {
            "type": "object",
            "properties": {"a": closed, "b": {"items": closed}},
            "required": ["a"],
            "additionalProperties": False,
        }

    def test_limits_become_hints(self) -> None:
        sent = self.schema({"type": "object", "properties": {
            "n": {"type": "integer", "minimum": 3, "description": "d"},
            "l": {"type": "array", "minItems": 1, "maxItems": 2},
            "t": {"type": "string", "format": "email"},
            "u": {"type": "string", "format": "odd", "default": "x"},
        }})["properties"]  # fmt: skip
        assert sent["n"] == {"type": "integer", "description": "d\n\n{minimum: 3}"}
        assert sent["l"] == {"type": "array", "minItems": 1, "description": "{maxItems: 2}"}
        assert sent["t"] == {"type": "string", "format": "email"}
        assert sent["u"]["description"] == '{format: "odd", default: "x"}'

    def test_definitions_and_variants(self) -> None:
        schema = {
            "$defs": {"A": {"type": "object", "properties": {}}, "B": {"$ref": "#/$defs/A"}},
            "oneOf": [{"$ref": "#/$defs/B"}, {"type": "null"}],
        }
        sent = self.schema(schema)
        assert sent["anyOf"] == schema["oneOf"]
        assert sent["$defs"]["A"]["additionalProperties"] is False

    @pytest.mark.parametrize(
        "schema",
        [
            {"$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"},
            {"type": "object", "properties": {"x": {"$ref": "#"}}},
            {"$ref": "https://example.com/s.json"},
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"not": {"type": "null"}},
        ],
    )
    def test_what_cant_be_promised(self, schema: Any) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        assert refused(response_format=form) == (
            "response_format.json_schema.schema", "unsupported_parameter"
        )  # fmt: skip

    def test_c13_json_object_is_an_instruction(self) -> None:
        body = translated(response_format={"type": "json_object"})
        assert "JSON object" in body["system"][-1]["text"]
        assert "output_config" not in body

    def test_other_formats(self) -> None:
        assert translated(response_format={"type": "text"}) == translated()
        assert refused(response_format={"type": "grammar"})[0] == "response_format"
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        assert refused(profile_of("claude-3-opus"), response_format=form)[0] == "response_format"
        form = {"type": "json_schema", "json_schema": {"name": "n"}}
        assert refused(response_format=form)[0] == "response_format.json_schema.schema"
