"""C23: what vLLM used to call guided decoding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.guided_decoding import with_structured_outputs
from sluice.wire.request import Request, read_request


def request(**members: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    return read_request(json.dumps(body).encode(), "messages")


def sent(**members: Any) -> dict[str, Any]:
    changed = with_structured_outputs(request(**members)).members
    return {name: json.loads(bytes(value)) for name, value in changed.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("json", {"type": "object"}),
        ("regex", "a+"),
        ("choice", ["a", "b"]),
        ("grammar", "root ::= 'a'"),
        ("json_object", True),
    ],
)
def test_each_constrains(name: str, value: Any) -> None:
    body = sent(**{f"guided_{name}": value, "guided_whitespace_pattern": " "})
    assert body["structured_outputs"] == {name: value, "whitespace_pattern": " "}
    assert not [member for member in body if member.startswith("guided")]


def test_a_backend_is_the_engines_own_matter() -> None:
    assert "structured_outputs" not in sent(guided_decoding_backend="outlines", guided_json=None)


def test_both_names_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_structured_outputs(request(guided_regex="a", structured_outputs={"regex": "b"}))
    assert refused.value.param == "guided_regex"


def test_other_requests_are_not_touched() -> None:
    given = request(structured_outputs={"regex": "b"})
    assert with_structured_outputs(given) is given
