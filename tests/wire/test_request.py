"""Requests: what is refused and by which name, and what must survive untouched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.embeddings import check_embeddings
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import decode_object
from sluice.wire.request import (
    REFUSED,
    Request,
    check_chat,
    check_completion,
    read_request,
    upstream_body,
)
from tests.wire.pieces import deep, json_values

USAGE = {"include_usage": True, "continuous_usage_stats": True}


def body(**members: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def read(data: bytes) -> Request:
    request = read_request(data, "messages")
    check_chat(request)
    return request


def refused(data: bytes, check: Callable[[bytes], Any] = read) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check(data)
    return caught.value


def sent(request: Request, limit: str | None = "max_tokens") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(upstream_body(request, "up", limit, USAGE))
    return value


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("model", 3),
            ("model", ["m"]),
            ("stream", "yes"),
            ("stream", 1),
            ("stream_options", []),
            ("max_tokens", "10"),
            ("max_tokens", 0),
            ("max_tokens", -1),
            ("max_tokens", 1.5),
            ("max_tokens", True),
            ("max_completion_tokens", 0),
            ("max_completion_tokens", "x"),
            ("x-tier", 1),
            ("x-team-id", {}),
            ("messages", []),
            ("messages", {}),
            ("messages", "hi"),
            ("messages", [1]),
            ("messages", [{"content": "no role"}]),
            ("messages", [{"role": 1}]),
            ("n", 0),
            ("n", "2"),
        ],
    )
    def test_a_bad_member_is_named(self, name: str, value: Any) -> None:
        error = refused(body(**{name: value}))
        assert error.param == name
        assert name in str(error)
        assert error.code == "invalid_value"

    @pytest.mark.parametrize("name", ["model", "messages"])
    @pytest.mark.parametrize("null", [False, True])
    def test_a_missing_member_is_named(self, name: str, null: bool) -> None:
        members = json.loads(body())
        del members[name]
        if null:
            members[name] = None
        error = refused(json.dumps(members).encode())
        assert (error.param, error.code) == (name, "missing_required_parameter")

    @pytest.mark.parametrize("options", [{}, {"include_usage": True}])
    def test_stream_options_need_a_stream(self, options: dict[str, Any]) -> None:
        assert refused(body(stream_options=options)).param == "stream_options"

    @pytest.mark.parametrize("value", [{"include_usage": 1}, {"continuous_usage_stats": "x"}])
    def test_stream_options_have_types(self, value: Any) -> None:
        assert refused(body(stream=True, stream_options=value)).param == "stream_options"

    @pytest.mark.parametrize("name", sorted(REFUSED))
    def test_case_86_what_would_steer_our_call_is_refused(self, name: str) -> None:
        error = refused(body(**{name: None}))
        assert (error.param, error.code) == (name, "unsupported_parameter")

    def test_case_86_escapes_hide_nothing(self) -> None:
        assert refused(b'{"model":"m","\\u0061pi_base":"http://169.254.169.254/"}').param == (
            "api_base"
        )

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"null",
            b"[]",
            b'"x"',
            b"{",
            b"{}x",
            b'{"model":"m",}',
            b"{'model':'m'}",
            b'{"model":"m"}{"model":"m"}',
            b'\xef\xbb\xbf{"model":"m"}',
            b'{"model":"m","x":NaN}',
            b'{"model":"m","x":01}',
            b'{"model":"m","x":"\n"}',
            b'{"model":"m","x":"\xff"}',
            b"\xff\xfe{\x00}\x00",
            b"\x00" * 100,
            b'{"model":"m","messages":' + deep() + b"}",
            b'{"model":"m","x":' + deep() + b"}",
            b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
            b"[" * 100_000,
        ],
    )
    def test_what_is_no_json_object_is_refused_without_a_parameter(self, data: bytes) -> None:
        error = refused(data)
        assert (error.param, error.code) == (None, "invalid_json")

    @pytest.mark.parametrize("digits", [19, 40, 5000, 100_000])
    def test_a_limit_of_many_digits_is_read_or_refused(self, digits: int) -> None:
        data = b'{"model":"m","max_tokens":1' + b"0" * digits + b"}"
        try:
            assert read_request(data, "messages").max_tokens == 10**digits
        except InvalidRequest as error:
            assert error.param == "max_tokens"  # noqa: PT017 - either is right

    @pytest.mark.parametrize("depth", range(880, 1000, 2))
    def test_nesting_near_the_limit_is_served_or_refused(self, depth: int) -> None:
        data = b'{"model":"m","stream":true,"messages":[{"role":"u","content":%s}],' % deep(depth)
        data += b'"stream_options":{"x":' + deep(depth) + b"}}"
        try:
            request = read(data)
        except InvalidRequest:
            return
        try:
            upstream_body(request, "up", "max_tokens", USAGE)
        except InvalidRequest:
            return

    @settings(deadline=None, max_examples=300)
    @given(
        members=st.dictionaries(
            st.sampled_from(
                [
                    "model",
                    "messages",
                    "prompt",
                    "input",
                    "stream",
                    "stream_options",
                    "max_tokens",
                    "max_completion_tokens",
                    "n",
                    "x-tier",
                    "x-team-id",
                    "encoding_format",
                    "other",
                ]
            ),
            st.sampled_from(["m", True, 5, [{"role": "user"}], [[1]], {"include_usage": True}])
            | json_values,
        )
    )
    def test_no_json_body_raises_anything_but_an_invalid_request(
        self, members: dict[str, Any]
    ) -> None:
        data = json.dumps(members).encode()
        for prompt, check in (
            ("messages", check_chat),
            ("prompt", check_completion),
            ("input", check_embeddings),
        ):
            try:
                request = read_request(data, prompt)
                check(request)
            except InvalidRequest as error:
                named = error.param is None or error.param in members
                assert named or "required" in str(error)  # noqa: PT017 - none is fine too
            else:
                assert sent(request)["model"] == "up"

    @settings(deadline=None, max_examples=200)
    @given(data=st.binary(max_size=80))
    def test_no_bytes_raise_anything_but_an_invalid_request(self, data: bytes) -> None:
        for text in (data, b'{"model":"m","x":' + data + b"}", b'{"' + data + b'":1}'):
            try:
                read(text)
            except InvalidRequest as error:
                assert error.code is not None  # noqa: PT017 - that none is raised is fine too


class TestPassing:
    @pytest.mark.parametrize(
        "value",
        [
            b"123456789012345678901234567890",
            b"1.10000000000000000000001e+5",
            b"-0.0",
            b'"\\u0000 \\u00e9 \\ud83d\\ude00 \\/ \xf0\x9f\x98\x80"',
            b'"a\\u0000b \\\\u0000"',
            b'{"a":1,"a":2,"\\u0061":3}',
            b'[ 1 , { "x" : [ ] } ]',
            b"null",
            b'""',
        ],
    )
    def test_an_unknown_member_survives_byte_for_byte(self, value: bytes) -> None:
        request = read_request(b'{"x":' + value + b',"model":"m"}', "messages")
        assert upstream_body(request, "up", "max_tokens", USAGE) == (
            b'{"x":' + value + b',"model":"up"}'
        )

    def test_messages_survive_byte_for_byte(self) -> None:
        messages = b'[{"role":"user","content":"\\u0000\\u4f60 \\/","x":1e999,"x":2.50}]'
        request = read(b'{"model":"m","messages":' + messages + b"}")
        assert bytes(decode_object(upstream_body(request, "u", None, None))["messages"]) == messages
        assert request.prompt_characters == len(messages)

    @settings(deadline=None)
    @given(extra=st.dictionaries(st.text(min_size=1), json_values, max_size=4))
    def test_unknown_members_of_any_kind_survive(self, extra: dict[str, Any]) -> None:
        extra = {f"z{name}": value for name, value in extra.items()}
        assert sent(read(body(**extra))).items() >= extra.items()

    def test_a_member_given_twice_counts_as_its_last(self) -> None:
        data = b'{"model":"a","max_tokens":5,"model":"b","messages":[],"max_tokens":7}'
        request = read_request(data, "messages")
        assert (request.model, request.max_tokens) == ("b", 7)
        assert sent(request)["max_tokens"] == 7

    def test_our_own_members_stay_here(self) -> None:
        request = read(body(**{"x-tier": "batch", "x-team-id": "t", "x-other": 1}))
        assert (request.tier, request.team_id) == ("batch", "t")
        assert set(sent(request)) == {"model", "messages", "x-other"}


LIMITS = ["max_tokens", "max_completion_tokens"]


class TestTokenLimit:
    @pytest.mark.parametrize("upstream", LIMITS)
    @pytest.mark.parametrize("given_", LIMITS)
    def test_case_54_it_goes_under_the_name_that_the_upstream_takes(
        self, given_: str, upstream: str
    ) -> None:
        request = read(body(**{given_: 9}))
        assert request.max_tokens == 9
        out = sent(request, upstream)
        assert {name: out[name] for name in LIMITS if name in out} == {upstream: 9}

    @pytest.mark.parametrize("upstream", LIMITS)
    def test_case_54_max_completion_tokens_wins(self, upstream: str) -> None:
        out = sent(read(body(max_tokens=50, max_completion_tokens=9)), upstream)
        assert {name: out[name] for name in LIMITS if name in out} == {upstream: 9}

    def test_null_is_absent(self) -> None:
        assert read(body(max_tokens=None)).max_tokens is None
        assert read(body(max_completion_tokens=None, max_tokens=3)).max_tokens == 3

    def test_a_default_is_sent_like_a_given_one(self) -> None:
        assert sent(read(body(max_tokens=None)).bounded(77))["max_tokens"] == 77

    def test_an_operation_without_a_limit_sends_what_came(self) -> None:
        assert sent(read(body(max_tokens=5)), None)["max_tokens"] == 5


class TestStreamOptions:
    def test_usage_is_asked_for_on_top_of_the_callers_options(self) -> None:
        options = {"include_usage": False, "include_obfuscation": False, "big": 10**40}
        request = read(body(stream=True, stream_options=options))
        assert sent(request)["stream_options"] == {**options, **USAGE}

    @pytest.mark.parametrize("options", [{}, {"stream_options": None}])
    def test_usage_is_asked_for_where_the_caller_did_not(self, options: dict[str, Any]) -> None:
        assert sent(read(body(stream=True, **options)))["stream_options"] == USAGE

    def test_without_a_stream_nothing_is_asked_for(self) -> None:
        assert "stream_options" not in sent(read(body(stream=False)))

    def test_an_upstream_that_knows_no_options_gets_the_callers(self) -> None:
        request = read(body(stream=True, stream_options={"include_usage": True}))
        out = json.loads(upstream_body(request, "up", None, None))
        assert out["stream_options"] == {"include_usage": True}


def completion(prompt: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt}).encode()


def read_completion(data: bytes) -> None:
    check_completion(read_request(data, "prompt"))


class TestCompletions:
    @pytest.mark.parametrize("prompt", ["x", "", ["a", "b"], [1, 2], [[1], [2, 3]]])
    def test_every_form_of_a_prompt_is_taken(self, prompt: Any) -> None:
        read_completion(completion(prompt))

    @pytest.mark.parametrize("prompt", [None, 1, {}, [None], [{}], [[["x"]]], [1.5], [["a"]]])
    def test_anything_else_names_the_prompt(self, prompt: Any) -> None:
        assert refused(completion(prompt), read_completion).param == "prompt"

    def test_a_deep_prompt_is_refused(self) -> None:
        refused(b'{"model":"m","prompt":' + deep() + b"}", read_completion)
