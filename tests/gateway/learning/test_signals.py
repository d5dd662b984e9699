"""What answers show by themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.gateway.learning.signals import MAX_SCHEMA_BYTES, fits, shown, truncated, wanted_schema
from sluice.wire.request import Request, read_request
from sluice.wire.usage import Usage

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


def asked(**members: Any) -> Request:
    body = {"model": "auto", "messages": [{"role": "user", "content": "?"}], **members}
    return read_request(json.dumps(body).encode(), "messages")


def chat_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize(
    ("bound", "used", "expected"),
    [(None, 999, False), (100, 99, False), (100, 100, True), (1, 1, False)],
)
def test_an_answer_that_filled_its_bound(bound: int | None, used: int, expected: bool) -> None:
    request = asked() if bound is None else asked(max_tokens=bound)
    assert truncated(request, Usage(output_tokens=used)) is expected


class TestWantedSchema:
    def test_of_chat(self) -> None:
        assert wanted_schema(asked(response_format=chat_schema(PERSON))) == PERSON

    def test_of_responses(self) -> None:
        form = {"format": {"type": "json_schema", "name": "answer", "schema": PERSON}}
        assert wanted_schema(asked(text=form)) == PERSON

    def test_any_json(self) -> None:
        assert wanted_schema(asked(response_format={"type": "json_object"})) == {}

    @pytest.mark.parametrize(
        "members",
        [
            {},
            {"response_format": {"type": "text"}},
            {"response_format": "json"},
            {"response_format": None},
            {"text": {"verbosity": "low"}},
            {"response_format": chat_schema({"enum": ["x" * MAX_SCHEMA_BYTES]})},
        ],
    )
    def test_none(self, members: dict[str, Any]) -> None:
        assert wanted_schema(asked(**members)) is None


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ('{"name": "Ada"}', PERSON, True),
        ('{"name": 5}', PERSON, False),
        ('{"name": "Ada", "more": 1}', PERSON, False),
        ('```json\n{"name": "Ada"}\n```', PERSON, False),
        ('{"name": "Ad', PERSON, False),
        ("[1, 2]", {}, True),
        ("nothing", {}, False),
        ("{}", {"type": "strange"}, True),  # not the answer's fault
        ("{}", {"$ref": "http://127.0.0.1:1/schema"}, True),  # which is not fetched
        ("{}", 5, True),
        ('"' + "a" * 5000 + '!"', {"pattern": "^(a+)+$"}, False),  # in linear time
        ("[" * 5000, {}, False),
    ],
)
def test_fits(text: str, schema: Any, expected: bool) -> None:
    assert fits(text, schema) is expected


def test_all_that_is_wrong_is_shown() -> None:
    request = asked(response_format=chat_schema(PERSON), max_tokens=64)
    assert shown(request, Usage(output_tokens=64), '{"name": "Ad') == ["truncated", "schema"]
    assert shown(request, Usage(output_tokens=20), '{"name": "Ada"}') == []
    assert shown(request, Usage(output_tokens=20), None) == []
