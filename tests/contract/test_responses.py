"""R: Responses by OpenAI's SDK over every kind of upstream, which all speak chat or Messages."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.contract.conftest import KINDS
from tests.contract.scripts import WEATHER, ToolCall, answering
from tests.harness.gateway import Gateway
from tests.harness.upstream import Upstream

every_kind = pytest.mark.parametrize("kind", KINDS)
TOOL: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}


class City(BaseModel):
    city: str


def words(sent: Any) -> list[str]:
    """The texts of a conversation as it came to an upstream."""
    texts = []
    for turn in sent["messages"]:
        content = turn["content"]
        parts = [{"text": content}] if isinstance(content, str) else content or []
        texts += [part["text"] for part in parts if "text" in part]
    return texts


@every_kind
def test_r01_text_is_answered_with_text(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("r01-end", answering("good day"))
    response = sdk.responses.create(model=kind, input="r01-end", max_output_tokens=50)
    assert response.output_text == "good day"
    assert (response.object, response.status, response.model) == ("response", "completed", kind)
    assert response.id.startswith("resp_")
    assert response.usage
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)
    assert response.usage.total_tokens == 18


@every_kind
def test_r02_the_stream_helper_gets_the_final_response(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    scripted.on("r02-end", answering("good day"))
    with sdk.responses.stream(model=kind, input="r02-end", max_output_tokens=50) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "good day"
    assert (final.status, final.model) == ("completed", kind)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "good day"
    assert sdk.responses.retrieve(final.id).output_text == "good day"


@every_kind
@pytest.mark.parametrize("stored", [False, True])
def test_r03_a_call_and_its_output_belong_together(
    sdk: OpenAI, scripted: Upstream, kind: str, stored: bool
) -> None:
    marker = f"r03-{kind}-{stored}-end"
    scripted.on("sunny-in-rome", answering("It is sunny."))
    scripted.on(marker, answering("", ToolCall("call_rome")))
    first = sdk.responses.create(model=kind, input=marker, tools=[TOOL], max_output_tokens=50)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.call_id, call.name) == ("call_rome", "weather")
    assert json.loads(call.arguments) == {"city": "Rome"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny-in-rome"}
    more: dict[str, Any] = {"input": [output], "previous_response_id": first.id}
    if not stored:
        more = {"input": [{"role": "user", "content": "?"}, call.model_dump(), output]}
    second = sdk.responses.create(model=kind, tools=[TOOL], max_output_tokens=50, **more)
    assert second.output_text == "It is sunny."
    turns = scripted.calls_with("sunny-in-rome")[-1].json["messages"]
    if kind == "claude":
        assert turns[1]["content"][0]["id"] == turns[2]["content"][0]["tool_use_id"]
    else:
        assert turns[1]["tool_calls"][0]["id"] == turns[2]["tool_call_id"] == "call_rome"


@every_kind
def test_r04_a_format_is_parsed(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"r04-{kind}-end"
    scripted.on(marker, answering('{"city":"Rome"}'))
    parsed = sdk.responses.parse(model=kind, input=marker, text_format=City, max_output_tokens=50)
    assert parsed.output_parsed == City(city="Rome")
    sent = scripted.call_with(marker).json
    form = sent["output_config"]["format"] if kind == "claude" else sent["response_format"]
    assert form["type"] == "json_schema"


@every_kind
def test_r05_the_context_is_kept(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on(f"r05-{kind}-third", answering("three"))
    scripted.on(f"r05-{kind}-second", answering("two"))
    scripted.on(f"r05-{kind}-first", answering("one"))
    more: dict[str, Any] = {"model": kind, "max_output_tokens": 50}
    first = sdk.responses.create(input=f"r05-{kind}-first", instructions="Obey.", **more)
    second = sdk.responses.create(input=f"r05-{kind}-second", previous_response_id=first.id, **more)
    third = sdk.responses.create(input=f"r05-{kind}-third", previous_response_id=second.id, **more)
    assert third.output_text == "three"
    assert third.previous_response_id == second.id
    sent = scripted.call_with(f"r05-{kind}-third").json
    assert words(sent) == [
        f"r05-{kind}-first",
        "one",
        f"r05-{kind}-second",
        "two",
        f"r05-{kind}-third",
    ]
    assert "Obey." not in json.dumps(sent)  # instructions are not inherited


def test_r06_another_teams_response_is_not_found(
    site: Gateway, sdk: OpenAI, scripted: Upstream, stranger_key: str
) -> None:
    scripted.on("r06-end", answering())
    ours = sdk.responses.create(model="vllm", input="r06-end", max_output_tokens=50)
    with OpenAI(base_url=f"{site.url}/v1", api_key=stranger_key, max_retries=0) as stranger:
        with pytest.raises(openai.NotFoundError):
            stranger.responses.retrieve(ours.id)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.delete(ours.id)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.input_items.list(ours.id)
        with pytest.raises(openai.BadRequestError) as raised:
            stranger.responses.create(
                model="vllm", input="x", previous_response_id=ours.id, max_output_tokens=5
            )
    assert raised.value.code == "previous_response_not_found"
    assert sdk.responses.retrieve(ours.id).id == ours.id


@every_kind
def test_r07_what_is_not_stored_can_not_be_continued(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    scripted.on("r07-end", answering())
    first = sdk.responses.create(model=kind, input="r07-end", store=False, max_output_tokens=50)
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.create(
            model=kind, input="x", previous_response_id=first.id, max_output_tokens=50
        )
    assert raised.value.code == "previous_response_not_found"
    assert raised.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_r08_a_cut_answer_is_incomplete(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    scripted.on("r08-end", answering("good d", finish="length"))
    answer: Any = sdk.responses.create(
        model=kind, input="r08-end", max_output_tokens=2, stream=stream
    )
    if stream:
        last = list(answer)[-1]
        assert last.type == "response.incomplete"
        answer = last.response
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "good d"


@every_kind
def test_r09_an_offered_hosted_tool_is_dropped_and_named(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    marker = f"r09-{kind}-end"
    scripted.on(marker, answering())
    raw = sdk.responses.with_raw_response.create(
        model=kind, input=marker, tools=[TOOL, {"type": "web_search"}], max_output_tokens=50
    )
    assert raw.parse().output_text == "hello"
    assert raw.headers["x-dropped-tools"] == "web_search"
    sent = scripted.call_with(marker)
    assert len(sent.json["tools"]) == 1
    assert b"web_search" not in sent.body


@every_kind
def test_r09_a_forced_one_is_refused(sdk: OpenAI, kind: str) -> None:
    tools: Any = [{"type": "web_search"}]
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.create(
            model=kind,
            input="r09-forced",
            tools=tools,
            tool_choice=tools[0],
            max_output_tokens=50,
        )
    assert raised.value.param == "tool_choice"


def test_r10_a_response_is_retrieved_listed_and_deleted(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("r10-end", answering("good day"))
    made = sdk.responses.create(
        model="vllm", input="r10-end", metadata={"a": "b"}, max_output_tokens=50
    )
    found = sdk.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    (item,) = sdk.responses.input_items.list(made.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "r10-end"}]
    deleted = sdk.responses.with_raw_response.delete(made.id)
    body = deleted.http_response.json()
    assert body == {"id": made.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.delete(made.id)
