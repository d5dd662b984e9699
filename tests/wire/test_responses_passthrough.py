"""Answers of upstreams with Responses: what passes, what is renamed, how they fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIError

from sluice.wire.answer import UNREADABLE, Answer
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import ErrorDetail
from sluice.wire.responses_passthrough import ResponsesPassStream, read_pass_response
from sluice.wire.sse import MAX_EVENT_BYTES
from sluice.wire.usage import Usage
from tests.wire.pieces import cuts, deep, json_values, split
from tests.wire.sdk import sdk

PART = {"type": "output_text", "text": "naïve 🚀", "annotations": [], "logprobs": []}
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [PART],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_up",
    "object": "response",
    "created_at": 5,
    "status": "completed",
    "error": None,
    "model": "up",
    "output": [MESSAGE],
    "parallel_tool_calls": True,
    "previous_response_id": "resp_before",
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    },
}
BEGUN = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
AT = {"item_id": "msg_1", "output_index": 0}


def event(kind: str, number: int, **members: Any) -> bytes:
    body = {"type": kind, "sequence_number": number, **members}
    data = json.dumps(body, ensure_ascii=False, separators=(", ", " : ")).encode()
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


DELTAS = (
    event("response.output_item.added", 1, output_index=0, item={**MESSAGE, "content": []})
    + event("response.content_part.added", 2, **AT, content_index=0, part={**PART, "text": ""})
    + event("response.output_text.delta", 3, **AT, content_index=0, delta="naïve", logprobs=[])
    + event("response.output_text.delta", 4, **AT, content_index=0, delta=" 🚀", logprobs=[])
    + event("response.output_item.done", 5, output_index=0, item=MESSAGE)
)
START = event("response.created", 0, response=BEGUN)
END = event("response.completed", 6, response=RESPONSE)
STREAM = START + DELTAS + END


def ours(upstream_id: str) -> str:
    return upstream_id.replace("resp_", "resp_own")


def run(upstream: bytes, codec: ResponsesPassStream, at: list[int] | None = None) -> bytes:
    out = b"".join([codec.feed(piece) for piece in split(upstream, at or [])]) + codec.end()
    return out + (codec.tail() if codec.done else b"")


def bodies(out: bytes) -> list[dict[str, Any]]:
    blocks = out.decode().split("\n\n")[:-1]
    return [json.loads(block.rpartition("data: ")[2]) for block in blocks]


def failed(upstream: bytes) -> ErrorDetail:
    codec = ResponsesPassStream("alias")
    run(upstream, codec)
    assert not codec.done
    assert codec.failure is not None
    return codec.failure


def read(body: Any, **more: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = read_pass_response(data, "alias", 8, **more)
    assert isinstance(found, Answer), found
    return found


class TestForwarding:
    def test_it_is_what_the_seam_asks_for(self) -> None:
        codec: StreamCodec = ResponsesPassStream("alias")
        assert codec.feed(b"") == b""

    def test_a_stream_under_its_own_name_passes_byte_for_byte(self) -> None:
        assert run(STREAM, ResponsesPassStream("up")) == STREAM

    def test_case_25_only_the_model_inside_of_responses_changes(self) -> None:
        out = run(STREAM, ResponsesPassStream("alias"))
        assert DELTAS in out
        first, *_, last = bodies(out)
        assert first["response"] == {**BEGUN, "model": "alias"}
        assert last["response"] == {**RESPONSE, "model": "alias"}

    def test_ids_of_responses_become_ours_and_those_of_items_stay(self) -> None:
        out = run(STREAM, ResponsesPassStream("alias", ours))
        assert DELTAS in out
        for response in (bodies(out)[0]["response"], bodies(out)[-1]["response"]):
            assert response["id"] == "resp_ownup"
            assert response["previous_response_id"] == "resp_ownbefore"

    def test_members_are_set_whatever_the_upstream_says(self) -> None:
        codec = ResponsesPassStream("up", members={"previous_response_id": None, "store": True})
        assert bodies(run(STREAM, codec))[-1]["response"] == {
            **RESPONSE,
            "previous_response_id": None,
            "store": True,
        }

    def test_an_event_of_no_known_type_passes(self) -> None:
        strange = b'data: {"type":"response.new_thing","x":1.50}\n\n'
        assert strange in run(START + strange + END, ResponsesPassStream("alias"))

    @settings(deadline=None, max_examples=100)
    @given(name=st.sampled_from(["up", "alias"]), ids=st.sampled_from([None, ours]), at=cuts)
    def test_any_split_gives_the_same_bytes(self, name: str, ids: Any, at: list[int]) -> None:
        whole = run(STREAM, ResponsesPassStream(name, ids))
        assert run(STREAM, ResponsesPassStream(name, ids), at) == whole

    def test_case_29_line_ends_of_every_kind(self) -> None:
        whole = run(STREAM, ResponsesPassStream("alias"))
        crlf = STREAM.replace(b"\n", b"\r\n").replace(b"data: ", b"data:")
        assert run(crlf, ResponsesPassStream("alias"), [*range(len(crlf))]) == whole

    def test_r02_the_sdk_follows(self) -> None:
        out = run(STREAM, ResponsesPassStream("alias", ours))
        with sdk(out) as (client, _), client.responses.stream(model="m", input="hi") as stream:
            response = stream.get_final_response()
        assert (response.id, response.model) == ("resp_ownup", "alias")
        assert response.output_text == "naïve 🚀"


class TestEnding:
    def test_the_closing_event_is_kept_back(self) -> None:
        codec = ResponsesPassStream("up")
        assert codec.feed(STREAM) + codec.end() == START + DELTAS
        assert codec.done
        assert codec.tail() == END
        assert codec.response == RESPONSE

    def test_nothing_comes_after_it(self) -> None:
        late = STREAM + event("response.new", 7) + b"data: [DONE]\n\n"
        assert run(late, ResponsesPassStream("up")) == STREAM

    def test_r08_an_incomplete_answer_is_complete_for_the_gateway(self) -> None:
        codec = ResponsesPassStream("up")
        end = event("response.incomplete", 6, response={**RESPONSE, "status": "incomplete"})
        assert run(START + end, codec) == START + end
        assert codec.done

    def test_r08_an_incomplete_answer_called_complete_is_mended(self) -> None:
        end = event("response.completed", 6, response={**RESPONSE, "status": "incomplete"})
        out = run(START + end, ResponsesPassStream("up"))
        assert bodies(out)[-1]["type"] == "response.incomplete"
        assert b"event: response.incomplete\n" in out

    @pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
    def test_case_22_usage_is_read_from_the_closing_event(self, kind: str) -> None:
        codec = ResponsesPassStream("up")
        run(START + event(kind, 6, response=RESPONSE), codec)
        assert codec.usage(8) == Usage(11, 5, 2, 7)

    def test_case_22_usage_is_estimated_without(self) -> None:
        codec = ResponsesPassStream("up")
        codec.feed(START + DELTAS)
        usage = codec.usage(8)
        assert (usage.input_tokens, usage.estimated) == (2, True)
        assert usage.output_tokens >= 2

    def test_content_is_noticed(self) -> None:
        codec = ResponsesPassStream("up")
        codec.feed(START + event("response.output_text.delta", 1, delta=""))
        assert not codec.has_content
        codec.feed(event("response.reasoning_text.delta", 2, delta="h"))
        assert codec.has_content

    def test_whole_items_are_content_too(self) -> None:
        codec = ResponsesPassStream("up")
        codec.feed(event("response.output_item.done", 1, output_index=0, item=MESSAGE))
        assert codec.has_content


class TestFailing:
    @pytest.mark.parametrize("upstream", [b"", START, START + DELTAS, START + b"data: [DONE]\n\n"])
    def test_c27_an_early_end_is_a_failure(self, upstream: bytes) -> None:
        assert failed(upstream).code == "upstream_connection_lost"

    def test_case_33_a_failed_response_is_a_failure(self) -> None:
        error = {"code": "rate_limit_exceeded", "message": "slow"}
        response = {**BEGUN, "status": "failed", "error": error}
        detail = failed(START + event("response.failed", 1, response=response))
        assert (detail.code, detail.message) == ("rate_limit_exceeded", "slow")

    def test_a_failure_without_reason_is_one_too(self) -> None:
        response = {**BEGUN, "status": "failed"}
        assert failed(event("response.failed", 1, response=response)).code == "upstream_error"

    @pytest.mark.parametrize(
        ("members", "kind"),
        [
            ({"code": "overloaded", "message": "no", "param": None}, "server_error"),
            ({"error": {"type": "t", "code": "overloaded", "message": "no"}}, "t"),
        ],
    )
    def test_case_33_error_events_of_both_forms(self, members: Any, kind: str) -> None:
        detail = failed(START + event("error", 1, **members))
        assert (detail.code, detail.message, detail.type) == ("overloaded", "no", kind)

    @pytest.mark.parametrize(
        "data",
        [
            b"{",
            b"[]",
            b"\xff",
            b'{"type":7}',
            b'{"type":"response.completed","response":7}',
            deep(),
        ],
    )
    def test_what_can_not_be_read_is_a_failure(self, data: bytes) -> None:
        assert failed(b"data: " + data + b"\n\n").code == "upstream_invalid_response"

    def test_an_event_without_end_is_a_failure(self) -> None:
        codec = ResponsesPassStream("up")
        assert codec.feed(b"data: " + b"x" * MAX_EVENT_BYTES) == b""
        assert codec.failure is not None

    def test_nothing_comes_after_a_failure(self) -> None:
        codec = ResponsesPassStream("up")
        assert run(START + event("error", 1, message="no") + END, codec) == START

    def test_c26_the_error_continues_the_stream(self) -> None:
        codec = ResponsesPassStream("alias", ours)
        out = run(START + DELTAS, codec)
        assert codec.failure is not None
        out += codec.error(502, codec.failure)
        *_, response, error = bodies(out)
        assert [response["sequence_number"], error["sequence_number"]] == [6, 7]
        assert response["type"] == "response.failed"
        assert response["response"]["id"] == "resp_ownup"
        assert response["response"]["error"]["code"] == "server_error"
        assert codec.response == response["response"]
        with (
            sdk(out) as (client, _),
            pytest.raises(APIError, match="ended before"),
            client.responses.create(model="m", input="hi", stream=True) as stream,
        ):
            [one.type for one in stream]

    def test_an_error_before_any_event_stands_alone(self) -> None:
        out = ResponsesPassStream("alias").error(502, ErrorDetail("no"))
        assert [one["type"] for one in bodies(out)] == ["error"]

    @settings(deadline=None)
    @given(
        kind=st.sampled_from(
            ["response.created", "response.completed", "response.x.delta", "error"]
        ),
        members=st.dictionaries(
            st.sampled_from(["response", "delta", "error", "message", "sequence_number"]),
            json_values | st.dictionaries(st.sampled_from([*RESPONSE]), json_values),
        ),
    )
    def test_no_event_makes_it_raise(self, kind: str, members: dict[str, Any]) -> None:
        codec = ResponsesPassStream("alias", ours)
        run(b"data: " + json.dumps({"type": kind, **members}).encode() + b"\n\n", codec)
        codec.error(502, ErrorDetail("no"))
        assert codec.usage(4).input_tokens >= 0


class TestWhole:
    def test_r01_a_body_under_its_own_name_passes_byte_for_byte(self) -> None:
        body = json.dumps({**RESPONSE, "model": "alias"}, indent=1).encode()
        assert read(body) == Answer(body, Usage(11, 5, 2, 7))

    @pytest.mark.parametrize(
        ("more", "changes"),
        [
            ({}, {}),
            ({"ids": ours}, {"id": "resp_ownup", "previous_response_id": "resp_ownbefore"}),
            ({"members": {"store": False}}, {"store": False}),
        ],
    )
    def test_what_is_renamed(self, more: Mapping[str, Any], changes: dict[str, Any]) -> None:
        body = json.loads(read(RESPONSE, **more).body)
        assert body == {**RESPONSE, "model": "alias", **changes}

    def test_ids_that_are_null_stay_null(self) -> None:
        body = {**RESPONSE, "previous_response_id": None}
        assert json.loads(read(body, ids=ours).body)["previous_response_id"] is None

    @pytest.mark.parametrize("status", ["completed", "incomplete", "queued", "cancelled"])
    def test_any_status_but_failed_is_an_answer(self, status: str) -> None:
        assert json.loads(read({**RESPONSE, "status": status}).body)["status"] == status

    def test_case_22_missing_usage_is_estimated(self) -> None:
        usage = read({**RESPONSE, "usage": None}).usage
        assert usage.estimated
        assert usage.output_tokens > 0

    def test_a_failed_response_is_an_error(self) -> None:
        error = {"code": "server_error", "message": "no"}
        body = json.dumps({**RESPONSE, "status": "failed", "error": error}).encode()
        found = read_pass_response(body, "alias", 8)
        assert isinstance(found, ErrorDetail)
        assert (found.code, found.message) == ("server_error", "no")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b'{"object":"response"}',
            b'{"object":"chat.completion","output":[]}',
            b'{"object":"response","output":[],"usage":7}',
            b'{"object":"response","status":"failed","output":[]}',
            b'{"object":"response","output":' + deep() + b"}",
        ],
    )
    def test_what_is_no_answer_is_none(self, body: bytes) -> None:
        assert read_pass_response(body, "alias", 8) == UNREADABLE
