"""Completion streams: what is forwarded, what is changed, what was learnt, and how they fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.stream import DONE_EVENT, CompletionStream, StreamView
from sluice.wire.usage import Usage
from tests.wire.pieces import cuts, deep, json_values, split

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(text: str | None = "hi", finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "created": 5, "model": "m", "choices": [choice], **more}


END = event(chunk(None, "stop")) + DONE_EVENT


def run(pieces: list[bytes], view: StreamView | None = None) -> tuple[bytes, CompletionStream]:
    """Everything that the client gets, with the tail where the answer is complete."""
    stream = CompletionStream(view or StreamView("m"))
    out = b"".join([stream.feed(piece) for piece in pieces]) + stream.end()
    return out + (stream.tail() if stream.done else b""), stream


def bodies(out: bytes) -> list[dict[str, Any]]:
    """The JSON of the events before the end marker."""
    parts = out.decode().split("\n\n")
    assert parts[-1] == ""
    assert parts[-2] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def failure_code(*pieces: bytes) -> str | None:
    _, stream = run(list(pieces))
    assert stream.failure is not None
    assert not stream.done
    return stream.failure.code


class TestForwarding:
    @pytest.mark.parametrize(
        "data",
        [
            b'{ "choices" : [ {"index":0,"delta":{"content":"\\u0000\\u4f60"}} ],"model" :"m"  }',
            b'{"model":"m","big":123456789012345678901234567890.10,"choices":[]}',
            b'{"model":"m","d":{"a":1,"a":2},"choices":[],"esc":"\\u00e9\\/"}',
            '{"model":"m","choices":[],"text":"你好😀"}'.encode(),
            b'{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null,"token_ids":[1]}]}',
        ],
    )
    def test_an_event_that_needs_no_change_passes_byte_for_byte(self, data: bytes) -> None:
        assert CompletionStream(StreamView("m")).feed(b"data:" + data + b"\r\n\r\n") == (
            b"data: " + data + b"\n\n"
        )

    @settings(deadline=None, max_examples=200)
    @given(
        texts=st.lists(st.text(max_size=5), max_size=5),
        extra=json_values,
        alias=st.sampled_from(["m", "alias"]),
        include=st.booleans(),
        at=cuts,
    )
    def test_any_split_gives_the_same_bytes(
        self, texts: list[str], extra: Any, alias: str, include: bool, at: list[int]
    ) -> None:
        data = b"".join(event(chunk(text, extra=extra)) for text in texts)
        data += event(chunk(None, "stop")) + event({**chunk(), "choices": [], "usage": USAGE})
        view = StreamView(alias, include)
        whole, stream = run([data + DONE_EVENT], view)
        pieces, other = run(split(data + DONE_EVENT, at), view)
        assert pieces == whole
        assert stream.done
        assert other.usage(0) == stream.usage(0) == Usage(11, output_tokens=7)

    def test_the_end_marker_is_kept_back_for_the_tail(self) -> None:
        stream = CompletionStream(StreamView("m"))
        assert b"[DONE]" not in stream.feed(event(chunk()) + END)
        assert stream.done
        assert stream.tail() == DONE_EVENT

    def test_nothing_comes_out_after_the_end(self) -> None:
        stream = CompletionStream(StreamView("m"))
        stream.feed(event(chunk()) + END)
        assert stream.feed(event(chunk("more"))) == b""
        assert stream.end() == b""

    def test_json_on_several_data_lines_becomes_one_line(self) -> None:
        pretty = json.dumps(chunk("a b"), indent=1).encode()
        lines = b"".join(b"data: " + line + b"\n" for line in pretty.split(b"\n"))
        out, stream = run([lines + b"\n" + END])
        assert stream.done
        assert bodies(out)[0] == chunk("a b")


class TestModelName:
    def test_only_the_top_level_name_changes(self) -> None:
        text = 'say "model":"backend" twice'
        body = chunk(text, model="backend", nested={"model": "backend"})
        out, _ = run([event(body) + END], StreamView("alias"))
        assert bodies(out)[0] == {**body, "model": "alias"}

    def test_everything_else_keeps_its_bytes(self) -> None:
        data = b'{"a":1.50,"model":"b","x":{"model":"b"},"choices":[],"n":10000000000000000000000}'
        out = CompletionStream(StreamView("z")).feed(b"data: " + data + b"\n\n")
        assert out == b"data: " + data.replace(b'"model":"b"', b'"model":"z"', 1) + b"\n\n"

    def test_a_chunk_without_a_model_gets_none(self) -> None:
        body = {"choices": chunk()["choices"]}
        out, _ = run([event(body) + END])
        assert bodies(out)[0] == body

    def test_an_alias_with_quotes_stays_json(self) -> None:
        out, _ = run([event(chunk()) + END], StreamView('a"b\\'))
        assert bodies(out)[0]["model"] == 'a"b\\'


NEVER: list[dict[str, Any]] = [chunk("a"), chunk(None, "stop")]
USAGE_CHUNK = {**chunk(), "choices": [], "usage": USAGE}
UPSTREAMS = {
    "usage-only chunk": [*NEVER, USAGE_CHUNK],
    "null, then usage-only": [*({**body, "usage": None} for body in NEVER), USAGE_CHUNK],
    "on the last choices chunk": [NEVER[0], {**NEVER[1], "usage": USAGE}],
    "on every chunk, no own": [{**body, "usage": USAGE} for body in NEVER],
    "on every chunk and own": [*({**body, "usage": USAGE} for body in NEVER), USAGE_CHUNK],
}


def wire(upstream: list[dict[str, Any]]) -> bytes:
    return b"".join(map(event, upstream)) + DONE_EVENT


class TestUsage:
    @pytest.mark.parametrize("name", UPSTREAMS)
    def test_case_21_unasked_usage_is_known_but_not_shown(self, name: str) -> None:
        out, stream = run([wire(UPSTREAMS[name])])
        assert b"usage" not in out
        assert stream.usage(99) == Usage(11, output_tokens=7)
        assert len(bodies(out)) == 2

    @pytest.mark.parametrize("name", UPSTREAMS)
    def test_case_19_asked_usage_is_one_chunk_without_choices_at_the_end(self, name: str) -> None:
        out, _ = run([wire(UPSTREAMS[name])], StreamView("m", include_usage=True))
        *chunks, last = bodies(out)
        assert last["choices"] == []
        assert last["usage"].items() >= USAGE.items()
        assert (last["id"], last["created"], last["model"]) == ("c1", 5, "m")
        assert all(body.get("usage") is None for body in chunks)

    @pytest.mark.parametrize("name", ["on every chunk, no own", "on every chunk and own"])
    def test_continuous_usage_stays_on_every_chunk(self, name: str) -> None:
        out, _ = run([wire(UPSTREAMS[name])], StreamView("m", True, True))
        assert [body["usage"]["total_tokens"] for body in bodies(out)] == [18, 18, 18]

    @pytest.mark.parametrize("include", [False, True])
    @pytest.mark.parametrize("bodies_", [NEVER, [{**body, "usage": None} for body in NEVER]])
    def test_case_22_without_any_usage_it_is_estimated(
        self, bodies_: list[dict[str, Any]], include: bool
    ) -> None:
        _, stream = run([wire(bodies_)], StreamView("m", include))
        assert stream.usage(8) == Usage(2, output_tokens=1, estimated=True)

    def test_an_estimate_counts_events_or_characters_whichever_is_more(self) -> None:
        _, stream = run([event(chunk("a")) * 9 + event(chunk("b" * 100)) + END])
        assert stream.usage(0).output_tokens == 28
        _, stream = run([event(chunk("a")) * 9 + END])
        assert stream.usage(0).output_tokens == 9

    def test_a_broken_stream_keeps_the_usage_seen_so_far(self) -> None:
        _, stream = run([event({**chunk("a"), "usage": USAGE})])
        assert stream.failure is not None
        assert stream.usage(0) == Usage(11, output_tokens=7)

    def test_the_word_usage_in_the_text_changes_nothing(self) -> None:
        body = chunk('the "usage":{"prompt_tokens":1} of words', usage=None)
        out, stream = run([event(body) + END])
        assert bodies(out)[0]["choices"] == body["choices"]
        assert stream.usage(0).estimated

    def test_cached_tokens_are_known_and_told(self) -> None:
        usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 2}}
        out, stream = run(
            [wire([NEVER[0], {**NEVER[1], "usage": usage}])], StreamView("m", include_usage=True)
        )
        assert stream.usage(0) == Usage(11, 4, 2, 7)
        assert bodies(out)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 4

    def test_the_usage_chunk_carries_the_alias(self) -> None:
        out, _ = run([wire(UPSTREAMS["usage-only chunk"])], StreamView("z", include_usage=True))
        assert {body["model"] for body in bodies(out)} == {"z"}


def delta(**parts: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": parts}]}


class TestContent:
    @pytest.mark.parametrize(
        "body",
        [
            delta(content="x"),
            delta(refusal="no"),
            delta(reasoning="hm"),
            delta(reasoning_content="hm"),
            delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f"}}]),
            delta(function_call={"name": "f"}),
            {"model": "m", "choices": [{"index": 0, "text": "legacy", "logprobs": None}]},
        ],
    )
    def test_what_is_generated_counts(self, body: dict[str, Any]) -> None:
        _, stream = run([event(body)])
        assert stream.has_content
        assert stream.usage(0).output_tokens >= 1

    @pytest.mark.parametrize(
        "body",
        [
            delta(role="assistant", content=""),
            delta(role="assistant", content=None, refusal=None, tool_calls=None),
            delta(tool_calls=[]),
            {"model": "m", "choices": [{"index": 0, "text": ""}]},
            {"model": "m", "choices": [{"index": 0, "delta": None}]},
            {"model": "m", "choices": []},
            {"model": "m", "choices": None, "prompt_filter_results": []},
            {},
        ],
    )
    def test_a_role_or_nothing_does_not(self, body: dict[str, Any]) -> None:
        _, stream = run([event(body)])
        assert not stream.has_content
        assert stream.usage(0).output_tokens == 0

    @pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "arguments": None}])
    def test_a_call_has_arguments_even_where_it_was_cut_before_any_came(
        self, function: dict[str, Any]
    ) -> None:
        call = {"index": 0, "id": "t", "type": "function", "function": function}
        out, _ = run([event(delta(tool_calls=[call]))])
        (body,) = bodies(out + DONE_EVENT)
        (said,) = body["choices"][0]["delta"]["tool_calls"]
        assert said == {**call, "function": {"name": "f", "arguments": ""}}

    def test_legacy_completions_end_like_chats(self) -> None:
        end = {"model": "m", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}
        out, stream = run([event(end) + DONE_EVENT])
        assert stream.done
        assert bodies(out) == [end]


def choice(index: int, finish: str | None = None) -> dict[str, Any]:
    return {
        "model": "m",
        "choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": finish}],
    }


class TestEnd:
    @pytest.mark.parametrize("done", [DONE_EVENT, b""])
    def test_every_choice_must_finish(self, done: bytes) -> None:
        both = event(choice(0)) + event(choice(1)) + event(choice(1, "stop"))
        assert failure_code(both + done) == "upstream_connection_lost"
        _, stream = run([both + event(choice(0, "length")) + done])
        assert stream.done

    @pytest.mark.parametrize("data", [b"", DONE_EVENT, b": ping\n\n", event({"choices": []})])
    def test_a_stream_without_a_choice_is_no_answer(self, data: bytes) -> None:
        assert failure_code(data) == "upstream_connection_lost"

    def test_case_31_a_cut_stream_gets_no_invented_end(self) -> None:
        out, stream = run([event(chunk("a")), event(chunk("b"))])
        assert stream.failure is not None
        assert b"[DONE]" not in out
        assert b'"stop"' not in out

    def test_a_finished_answer_needs_no_end_marker(self) -> None:
        out, stream = run([event(chunk("a", "stop"))])
        assert stream.done
        assert out.endswith(DONE_EVENT)

    def test_a_last_event_without_its_blank_line_counts(self) -> None:
        _, stream = run([event(chunk("a")) + END.rstrip(b"\n")])
        assert stream.done

    def test_vllm_abort_is_a_failure_and_is_not_shown(self) -> None:
        out, stream = run([event(chunk("a")), event(chunk(None, "abort")) + DONE_EVENT])
        assert stream.failure is not None
        assert stream.failure.code == "upstream_aborted"
        assert b"abort" not in out

    @pytest.mark.parametrize(
        "data",
        [
            b"data: {nope\n\n",
            b"data: []\n\n",
            b'data: "text"\n\n',
            b"data: [DONE] \n\n",
            b'data: {"choices":{}}\n\n',
            b'data: {"choices":[{"index":"0"}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
            b'data: {"model":"other","choices":[],"x":"\xff"}\n\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":1' + b"0" * 5000 + b"}}\n\n",
            b'data: {"choices":[],"x":' + deep() + b"}\n\n",
            b'data: {"model":"other","choices":[{"x":' + deep() + b"}]}\n\n",
            b"data: " + b"[" * 100_000 + b"\n\n",
        ],
    )
    def test_unreadable_events_fail_cleanly(self, data: bytes) -> None:
        assert failure_code(event(chunk("a")) + data + END) == "upstream_invalid_response"

    @pytest.mark.parametrize("depth", range(900, 1000, 3))
    def test_nesting_near_the_limit_never_raises(self, depth: int) -> None:
        data = b'data: {"model":"other","choices":[],"x":' + deep(depth) + b"}\n\n"
        run([data + END], StreamView("m", include_usage=True))

    def test_an_endless_event_fails_cleanly(self) -> None:
        stream = CompletionStream(StreamView("m"))
        for _ in range(17):
            stream.feed(b"x" * 1024 * 1024)
        assert stream.failure is not None
        assert stream.feed(END) == b""

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            ('{"error":{"message":"busy","type":"overloaded_error","code":529}}', "529"),
            ('{"error":{"code":null}}', None),
            ('{"error":"busy"}', None),
            ('{"error":{"message":"busy","code":"x"},"choices":[]}', "x"),
        ],
    )
    def test_case_33_an_error_event_is_the_failure(self, error: str, code: str | None) -> None:
        out, stream = run([event(chunk("a")), f"event: error\ndata: {error}\n\n".encode(), END])
        assert stream.failure is not None
        assert stream.failure.code == code
        assert stream.has_content
        assert out.count(b"data:") == 1

    def test_a_null_error_is_none(self) -> None:
        _, stream = run([event(chunk("a", error=None)) + END])
        assert stream.done

    @settings(deadline=None, max_examples=300)
    @given(value=json_values)
    def test_any_json_is_forwarded_or_fails_but_never_raises(self, value: Any) -> None:
        run([event({"model": "z", "choices": value, "usage": value}), event(value), END])
        run([event({"choices": [{"index": 0, "delta": value}]}), event({"error": value})])

    @settings(deadline=None)
    @given(data=st.binary(max_size=60))
    def test_any_bytes_are_forwarded_or_fail_but_never_raise(self, data: bytes) -> None:
        run([b"data: " + data + b"\n\n" + data, END])

    def test_half_a_surrogate_pair_passes(self) -> None:
        # upstreams that cut text by UTF-16 units send an emoji in two deltas
        first, second = (
            b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"\\u%s"}}]}\n\n' % half
            for half in (b"d83d", b"de00")
        )
        out, stream = run([first, second, END])
        assert stream.done
        assert out.startswith(first + second)

    def test_an_empty_finish_reason_ends_nothing(self) -> None:
        assert failure_code(event(chunk("a", ""))) == "upstream_connection_lost"
