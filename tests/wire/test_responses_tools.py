"""Tools as chat takes them, and what their names stand for."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.responses_tools import Called, Offer, custom_input, offer, read_tools

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object"},
    "strict": True,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "-",
    "tools": [{"type": "function", "name": "spawn"}, {"type": "function", "name": "weather"}],
}
SEARCH = {"type": "web_search"}


def names(offered: Offer) -> list[str]:
    return [tool["function"]["name"] for tool in offered.tools]


def refused(choice: Any, *tools: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        offer(read_tools(tools), choice)
    return caught.value


def test_a_function_is_nested() -> None:
    assert read_tools([WEATHER]).functions["weather"] == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a city",
            "parameters": {"type": "object"},
            "strict": True,
        },
    }


def test_null_members_are_left_out() -> None:
    tool = {"type": "function", "name": "f", "parameters": None, "strict": None}
    assert read_tools([tool]).functions["f"] == {"type": "function", "function": {"name": "f"}}


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    box = read_tools([PATCH])
    function = box.functions["apply_patch"]["function"]
    assert function["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: X" in function["description"]
    assert box.called["apply_patch"] == Called("apply_patch", None, True)


def test_a_namespace_is_unnested_and_a_name_taken_is_qualified() -> None:
    box = read_tools([AGENTS, WEATHER])
    assert list(box.functions) == ["weather", "spawn", "agents__weather"]
    assert box.called["weather"] == Called("weather")
    assert box.called["agents__weather"] == Called("weather", "agents")
    assert box.chat_name("weather", "agents") == "agents__weather"
    assert box.chat_name("weather", None) == "weather"
    assert box.chat_name("gone", "agents") == "gone"


def test_r09_hosted_tools_are_dropped_and_named() -> None:
    box = read_tools([SEARCH, WEATHER, {"type": "mcp", "server_label": "x"}, SEARCH])
    assert box.dropped == ("web_search", "mcp")
    assert list(box.functions) == ["weather"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([7], "tools[0].type"),
        ([{"name": "f"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].name"),
        ([WEATHER, WEATHER], "tools[1].name"),
        ([{"type": "namespace", "tools": []}], "tools[0]"),
        ([{"type": "namespace", "name": "n", "tools": [WEATHER, 7]}], "tools[0].tools[1].type"),
    ],
)
def test_malformed_tools_are_refused_by_place(tools: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools)
    assert caught.value.param == param


@pytest.mark.parametrize("choice", [None, "none", "auto", "required"])
def test_a_mode_stays(choice: Any) -> None:
    assert offer(read_tools([WEATHER]), choice) == Offer(
        list(read_tools([WEATHER]).functions.values()), choice
    )


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "weather"}, "weather"),
        ({"type": "function", "name": "spawn"}, "spawn"),
        ({"type": "function", "name": "weather", "namespace": "agents"}, "agents__weather"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
    ],
)
def test_a_named_choice_is_nested(choice: Any, name: str) -> None:
    found = offer(read_tools([WEATHER, AGENTS, PATCH]), choice)
    assert found.choice == {"type": "function", "function": {"name": name}}


def test_allowed_tools_are_all_that_is_offered() -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "weather"}, SEARCH],
    }
    found = offer(read_tools([WEATHER, PATCH, SEARCH]), choice)
    assert names(found) == ["weather"]
    assert found.choice == "required"


def test_no_tools_is_no_choice() -> None:
    assert offer(read_tools([SEARCH]), "auto") == Offer([])


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "function", "name": "unknown"},
        {"type": "mcp", "server_label": "x"},
        {"name": "weather"},
        "sometimes",
        7,
        {"type": "allowed_tools", "mode": "auto"},
        {"type": "allowed_tools", "mode": "never", "tools": []},
    ],
)
def test_r09_a_choice_that_chat_can_not_have_is_refused(choice: Any) -> None:
    assert refused(choice, WEATHER, SEARCH).param == "tool_choice"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}]
)
def test_r09_hosted_tools_alone_can_not_be_required(choice: Any) -> None:
    assert refused(choice, SEARCH).code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": 1}', '{"input": 1}'),
        ("[]", "[]"),
        ('{"input": "a', '{"input": "a'),
        ("", ""),
    ],
)
def test_the_input_of_a_custom_tool(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text
