"""Raw HTTP that is malformed, ambiguous, too much or too slow: what the gateway bears."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.secured import (
    BODY_SECONDS,
    DATA_PLANE,
    HEADER_SECONDS,
    STALLED_SECONDS,
    another_gateway,
    head,
    request_body,
    secured_config,
    statuses,
    talk,
)
from tests.harness.upstream import Call, Upstream, chunk

BODY = json.dumps(request_body("chat", "simulated", "hi", False)).encode()
LENGTH = f"content-length: {len(BODY)}"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
#: Behind another request: it shows whether the gateway saw where that one ends.
NEXT = head("connection: close", first="GET /health/live HTTP/1.1", key=None)


def test_a_good_request_is_served_and_the_next_one_too(secured: Gateway) -> None:
    assert statuses(talk(secured, head(LENGTH) + BODY + NEXT)[0]) == [200, 200]
    chunked = head("transfer-encoding: chunked") + CHUNKED
    assert statuses(talk(secured, chunked + NEXT)[0]) == [200, 200]
    twice = head(LENGTH, LENGTH) + BODY  # RFC 9112 lets the same length pass for one
    assert statuses(talk(secured, twice + NEXT)[0]) == [200, 200]


@pytest.mark.parametrize(
    "lines", [(LENGTH, "transfer-encoding: chunked"), ("transfer-encoding: chunked", LENGTH)]
)
@pytest.mark.parametrize("length", [LENGTH, "content-length: 3", "content-length: 90000"])
def test_the_coding_beats_the_length_and_nothing_after_it_is_read(
    secured: Gateway, lines: tuple[str, str], length: str
) -> None:
    """As RFC 9112 has it, section 6.3: whoever saw another end is not followed there."""
    given = [length if line == LENGTH else line for line in lines]
    received, closed = talk(secured, head(*given) + CHUNKED + NEXT)
    assert closed
    assert statuses(received) == [200]
    assert b'"status":"ok"' not in received


AMBIGUOUS = {
    "two lengths": head(LENGTH, f"content-length: {len(BODY) + 1}") + BODY,
    "a list of lengths": head(f"content-length: {len(BODY)}, {len(BODY)}") + BODY,
    "a signed length": head(f"content-length: +{len(BODY)}") + BODY,
    "a negative length": head("content-length: -1") + BODY,
    "a hexadecimal length": head("content-length: 0x10") + BODY,
    "a length beyond 64 bits": head("content-length: 99999999999999999999999") + BODY,
    "two codings": head("transfer-encoding: chunked", "transfer-encoding: identity") + CHUNKED,
    "chunked twice": head("transfer-encoding: chunked", "transfer-encoding: chunked") + CHUNKED,
    "gzip before chunked": head("transfer-encoding: gzip, chunked") + CHUNKED,
    "chunked before gzip": head("transfer-encoding: chunked, gzip") + CHUNKED,
    "an unknown coding": head("transfer-encoding: xchunked") + CHUNKED,
    "a control character before the coding": head("transfer-encoding: \x0bchunked") + CHUNKED,
    "chunks in HTTP/1.0": head(
        "transfer-encoding: chunked", first="POST /v1/chat/completions HTTP/1.0"
    )
    + CHUNKED,
    "a folded header": head("x-a: b", "  continued", LENGTH) + BODY,
    "a folded coding": head("transfer-encoding:", " chunked") + CHUNKED,
    "a space before the colon": head(f"content-length : {len(BODY)}") + BODY,
    "a bare CR": head("x-a: a\rb", LENGTH) + BODY,
    "a NUL": head("x-a: a\0b", LENGTH) + BODY,
    "a tab after the method": head(LENGTH, first="POST\t/v1/chat/completions HTTP/1.1") + BODY,
    "no host": head(LENGTH, host=None) + BODY,
    "two hosts": head("host: other.test", LENGTH) + BODY,
    "two credentials": head("authorization: Bearer other", LENGTH) + BODY,
    "two teams": head("x-team-id: default", "x-team-id: other", LENGTH) + BODY,
    "an escaped first segment": head(LENGTH, first="POST /%76%31/chat/completions HTTP/1.1") + BODY,
    "an escaped slash": head(LENGTH, first="POST /v1%2fchat/completions HTTP/1.1") + BODY,
    "an empty first segment": head(LENGTH, first="POST //v1/chat/completions HTTP/1.1") + BODY,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    secured: Gateway, name: str
) -> None:
    received, closed = talk(secured, AMBIGUOUS[name] + NEXT)
    assert closed
    assert statuses(received) in ([400], [])
    assert b"chat.completion" not in received
    assert b'"status":"ok"' not in received


BROKEN_CHUNKS = {
    "a line feed in an extension": b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "bare line feeds": b"%x\n%s\n0\n\n" % (len(BODY), BODY),
    "a size beyond 64 bits": b"fffffffffffffffff\r\n%s\r\n0\r\n\r\n" % BODY,
    "a size with a prefix": b"0x%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a negative size": b"-%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a size that is too small": b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY) - 1, BODY),
    "a size that is too large": b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY) + 3, BODY),
    "an endless extension": b"%x;%s\r\n%s\r\n0\r\n\r\n" % (len(BODY), b"x" * 100_000, BODY),
    "endless trailers": b"%x\r\n%s\r\n0\r\nx-t: %s\r\n\r\n" % (len(BODY), BODY, b"y" * 200_000),
}


@pytest.mark.parametrize("name", BROKEN_CHUNKS)
@pytest.mark.parametrize("path", sorted({path for _, path, _ in DATA_PLANE}))
def test_malformed_chunks_are_a_400_and_the_end(secured: Gateway, name: str, path: str) -> None:
    first = head("transfer-encoding: chunked", first=f"POST {path} HTTP/1.1")
    received, closed = talk(secured, first + BROKEN_CHUNKS[name] + NEXT)
    assert closed
    assert statuses(received) in ([400], [])
    assert b'"status":"ok"' not in received


def test_malformed_chunks_of_a_control_plane_call_are_a_400(secured: Gateway) -> None:
    first = head("transfer-encoding: chunked", first="POST /admin/teams HTTP/1.1", key=ADMIN_KEY)
    received, closed = talk(secured, first + b"xyz\r\n" + NEXT)
    assert closed
    assert statuses(received) in ([400], [])


def test_trailers_set_no_header(secured: Gateway) -> None:
    body = b"%x\r\n%s\r\n0\r\nx-team-id: other\r\n\r\n" % (len(BODY), BODY)
    received, _ = talk(secured, head("transfer-encoding: chunked") + body + NEXT)
    assert statuses(received) == [200, 200]


def test_http2_is_not_spoken(secured: Gateway) -> None:
    received, closed = talk(secured, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert closed
    assert statuses(received) in ([400], [])
    upgrade = head(
        "upgrade: h2c",
        "connection: upgrade, http2-settings",
        "http2-settings: AAMAAABkAAQAAP__",
        first="GET /v1/models HTTP/1.1",
    )
    assert statuses(talk(secured, upgrade + NEXT)[0]) == [200, 200]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"x-{number}: v" for number in range(200)], 431),
        (["x-a: " + "v" * 100_000], 431),
        (["x-a: " + "v" * 500_000], 431),
        ([f"x-{number}: {'v' * 2000}" for number in range(90)], 431),
    ],
)
def test_too_many_or_too_large_headers_are_refused(
    secured: Gateway, lines: list[str], status: int
) -> None:
    received, closed = talk(secured, head(*lines, LENGTH) + BODY)
    assert closed
    assert statuses(received) in ([status], [])


@pytest.mark.parametrize("length", [9_000, 60_000, 70_000])
def test_a_url_that_is_too_long_is_a_414(secured: Gateway, length: int) -> None:
    first = f"POST /v1/chat/completions?{'a' * length} HTTP/1.1"
    received, closed = talk(secured, head(LENGTH, first=first) + BODY)
    assert closed
    assert statuses(received) in ([414], [431])


def test_headers_of_ordinary_size_pass(secured: Gateway) -> None:
    lines = [f"x-{number}: {'v' * 300}" for number in range(80)]
    assert statuses(talk(secured, head(*lines, LENGTH) + BODY + NEXT)[0]) == [200, 200]


@pytest.mark.parametrize("key", [None, "sk-unknown"])
def test_the_body_of_an_unknown_caller_is_not_waited_for(secured: Gateway, key: str | None) -> None:
    data = head("content-length: 900000", "expect: 100-continue", key=key)
    received, _ = talk(secured, data, seconds=1)
    assert statuses(received) == [401]


def held_for(gateway: Gateway, data: bytes, drip: bytes = b"", limit: float = 30) -> float:
    """Seconds until the gateway closes a connection that sent `data`, then drips."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=0.2) as connection:
        connection.sendall(data)
        while time.monotonic() - began < limit:
            try:
                if not connection.recv(65536):
                    break
            except TimeoutError:
                try:
                    connection.sendall(drip)
                except OSError:
                    break
            except OSError:
                break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("data", "drip"),
    [
        (b"", b""),
        (b"P", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", b"x-a: b\r\n"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: ", b"b"),
        (head(first="GET /health/live HTTP/1.1", key=None), b""),
    ],
)
def test_headers_that_do_not_come_end_the_connection(
    secured: Gateway, data: bytes, drip: bytes
) -> None:
    assert HEADER_SECONDS * 0.8 < held_for(secured, data, drip) < HEADER_SECONDS + 10


@pytest.mark.parametrize("path", sorted({path for _, path, _ in DATA_PLANE}))
@pytest.mark.parametrize("drip", [b"", b" "])
def test_a_body_that_does_not_come_is_a_408(secured: Gateway, path: str, drip: bytes) -> None:
    data = head("content-length: 900000", first=f"POST {path} HTTP/1.1") + b"{"
    assert held_for(secured, data, drip) < BODY_SECONDS + HEADER_SECONDS + 10
    assert statuses(talk(secured, data, seconds=BODY_SECONDS + 10)[0])[0] in (400, 408)


@pytest.mark.parametrize(
    ("path", "key"), [("/v1/messages/count_tokens", TEAM_KEY), ("/admin/teams", ADMIN_KEY)]
)
def test_a_control_plane_body_that_does_not_come_is_a_400(
    secured: Gateway, path: str, key: str
) -> None:
    data = head("content-length: 900", first=f"POST {path} HTTP/1.1", key=key) + b"{"
    assert statuses(talk(secured, data, seconds=BODY_SECONDS + 10)[0]) == [400]


def test_a_stalled_reader_is_cut_and_lets_the_upstream_go(
    secured: Gateway, secured_upstream: Upstream
) -> None:
    """Memory stays bounded, the upstream sees its client leave, and is not the one to blame."""
    marker = "stalled-reader-end"
    secured_upstream.on(marker, endless_stream)
    body = json.dumps(request_body("chat", "openai-alias", marker, True)).encode()
    before = resident_kilobytes(secured.pid)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", secured.port))
        began = time.monotonic()
        connection.sendall(head(f"content-length: {len(body)}") + body)
        call = secured_upstream.call_with(marker)
        left_at = eventually(lambda: call.closed_by_client_at, 30)
        assert left_at - began < STALLED_SECONDS + 15
        # The connection itself is given up: nothing is kept for a client that takes nothing.
        eventually(lambda: not is_open(secured.port, connection), 30)
    assert resident_kilobytes(secured.pid) - before < 20_000
    # "closed" where the kernel was first; what counts is that it is not the upstream's failure
    assert cancelled_with(secured, "openai-alias") in ("client_stalled", "client_closed_request")


def cancelled_with(gateway: Gateway, name: str) -> str:
    """The code with which a request for a model was cancelled, by the log."""
    wanted = f'"model":"{name}"', '"outcome":"cancelled"'
    lines = eventually(
        lambda: [
            line for line in gateway.log_text().splitlines() if all(each in line for each in wanted)
        ]
    )
    code: str = json.loads(lines[-1])["error_code"]
    return code


def is_open(server_port: int, client: socket.socket) -> bool:
    """Whether the server's side of a connection still stands in the kernel's table."""
    ends = f":{server_port:04X}", f":{client.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote = line.split()[1:3]
        if local.endswith(ends[0]) and remote.endswith(ends[1]):
            return True
    return False


def resident_kilobytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the process has no memory")


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/admin/teams", "/nothing"])
def test_answers_are_not_sniffed_and_other_origins_get_no_leave(
    secured: Gateway, path: str
) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for method in ("GET", "OPTIONS"):
        answer = secured.request(method, path, key=ADMIN_KEY, headers=headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_key_that_is_shown_once_is_stored_nowhere_on_the_way(secured: Gateway) -> None:
    secured.request("POST", "/admin/teams", {"name": "shown-once"}, key=ADMIN_KEY)
    answer = secured.request("POST", "/admin/teams/shown-once/keys", {}, key=ADMIN_KEY)
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"


def test_data_plane_answers_are_not_sniffed(secured: Gateway) -> None:
    answer = secured.request("POST", "/v1/chat/completions", BODY, key=TEAM_KEY)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "page", ["", "/", "/swagger", "/redoc", "/scalar", "/elements", "/rapidoc"]
)
def test_no_page_runs_other_sites_scripts(secured: Gateway, page: str) -> None:
    answer = secured.request("GET", f"/openapi{page}", key=None)
    assert "<script" not in answer.text


def test_clients_that_do_nothing_do_not_keep_a_gateway_from_stopping(
    secured: Gateway, secured_upstream: Upstream, tmp_path: Path
) -> None:
    """Whatever state their connections are in, and however patient the limits."""
    config = secured_config(secured_upstream)
    config["server"] |= {
        "header_seconds": 300,
        "body_seconds": 300,
        "stalled_reader_seconds": 300,
        "drain_seconds": 1,
    }
    gateway = another_gateway(secured, config, tmp_path)
    gateway.start()
    marker = "stalled-at-the-end"
    secured_upstream.on(marker, endless_stream)
    stream = json.dumps(request_body("chat", "openai-alias", marker, True)).encode()
    counted = "POST /v1/messages/count_tokens HTTP/1.1"
    with ExitStack() as stack:
        for data in (
            b"",
            b"POST /v1",
            head(first="GET /health/live HTTP/1.1"),
            head("content-length: 900000") + b"{",
            head("content-length: 900", first=counted) + b"{",
            head(f"content-length: {len(stream)}") + stream,
        ):
            connection = socket.create_connection(("127.0.0.1", gateway.port))
            stack.enter_context(connection)
            connection.sendall(data)
        secured_upstream.call_with(marker)
        gateway.terminate()
        assert gateway.wait(30) == 0


def endless_stream(call: Call) -> None:
    """A stream that goes on until the gateway has had enough."""
    call.start_stream()
    piece = chunk("m", {"content": "z" * 10_000})
    try:
        while True:
            call.event(piece)
    except OSError:
        call.closed_by_client_at = time.monotonic()
        raise
