"""Keys, fingerprints and preferences as values."""

from __future__ import annotations

import timeit
from typing import Any

import msgspec
import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.errors import GatewayError
from sluice.gateway.idempotency.key import (
    Headers,
    entry_name,
    fingerprint,
    key_of,
    unkeyed,
    waits,
)
from sluice.gateway.intake import Received
from sluice.wire.request import read_request

OTHERS = [(b"host", b"x"), (b"content-type", b"application/json"), (b"accept", b"*/*")]


def headers(*values: bytes, name: bytes = b"idempotency-key") -> Headers:
    return [*OTHERS, *((name, value) for value in values)]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"abc", "abc"),
        (b" abc\t", "abc"),
        (b'"abc"', "abc"),
        (b'"a b"', "a b"),
        (b'"a\\"b\\\\c"', 'a"b\\c'),
        (b'a"b', 'a"b'),
        (b"x" * 255, "x" * 255),
        (b'"' + b"x" * 255 + b'"', "x" * 255),
    ],
)
def test_keys_bare_and_quoted(value: bytes, key: str) -> None:
    assert key_of(headers(value)) == key
    assert key_of(headers(value, name=b"idempotency_key")) == key


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b" ", b'""', b'"', b'"abc', b'"a"b', b'"a";p=1', b'"a\\b"', b'"a\\'),
        *(b"x" * 256, b"a\tb", b"a\x7f", "é".encode(), b"a\x00"),
    ],
)
def test_what_is_no_key(value: bytes) -> None:
    with pytest.raises(GatewayError) as refused:
        key_of(headers(value))
    assert refused.value.status == 400
    assert refused.value.detail.param == "Idempotency-Key"


def test_two_keys_are_none_unless_they_are_the_same() -> None:
    assert key_of([*headers(b"abc"), (b"idempotency_key", b'"abc"')]) == "abc"
    with pytest.raises(GatewayError):
        key_of([*headers(b"abc"), (b"idempotency_key", b"abd")])


def test_the_generation_has_no_key() -> None:
    assert unkeyed([*headers(b"abc"), (b"idempotency_key", b"abc")]) == OTHERS


def test_without_a_key_one_look_at_the_headers_is_all() -> None:
    many = OTHERS * 5
    assert key_of(many) is None
    assert min(timeit.repeat(lambda: key_of(many), number=1000, repeat=5)) < 0.02


@pytest.mark.parametrize(
    ("values", "waiting"),
    [
        ((), True),
        ((b"wait=0",), False),
        ((b"respond-async, Wait = 0",), False),
        ((b"handling=lenient", b"wait=0; x=1"), False),
        ((b"wait=10",), True),
        ((b"xwait=0",), True),
    ],
)
def test_who_would_rather_not_wait(values: tuple[bytes, ...], waiting: bool) -> None:
    assert waits(headers(*values, name=b"prefer")) is waiting


def test_names_differ_by_team_endpoint_and_key() -> None:
    names = {
        entry_name(team, endpoint, key)
        for team in ("a", "b")
        for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES)
        for key in ("1", "2")
    }
    assert len(names) == 8
    assert all(len(name) == 64 for name in names)


def received(body: dict[str, Any] | bytes, tier: Any = "interactive", **headers: str) -> Received:
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Received(read_request(text, "messages"), tier, text, None, headers)


BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 1}


def test_the_order_of_members_is_no_difference() -> None:
    turned = {
        "seed": 1,
        "messages": [{"content": "hi", "role": "user"}],
        "model": "m",
    }
    assert fingerprint(received(BODY)) == fingerprint(received(turned))


def test_everything_else_is() -> None:
    prints = {
        fingerprint(given)
        for given in (
            received(BODY),
            received({**BODY, "stream": True}),
            received({**BODY, "stream": False}),
            received({**BODY, "seed": 2}),
            received({**BODY, "user": "u"}),
            received({**BODY, "disable_fallbacks": True}),
            received(BODY, "batch"),
            received(BODY, **{"anthropic-beta": "b"}),
        )
    }
    assert len(prints) == 8


def test_values_that_python_has_not_are_compared_as_they_are_written() -> None:
    huge = b'{"model":"m","messages":[],"seed":1e999}'
    assert fingerprint(received(huge)) == fingerprint(received(huge))
    assert fingerprint(received(huge)) != fingerprint(received(huge.replace(b"999", b"998")))
    deep = b'{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}"
    assert fingerprint(received(deep)) == fingerprint(received(deep))
