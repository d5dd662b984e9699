"""The HTTP backends before an upstream that follows a script."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluice.backends.base import (
    Backend,
    BackendError,
    ConnectFailed,
    ConnectionLost,
    Endpoint,
    UpstreamRequest,
    UpstreamResponse,
)
from sluice.backends.openai import OpenAIBackend, OpenAIConfig
from sluice.backends.vllm import VLLMBackend, VLLMConfig
from tests.harness.gateway import free_port
from tests.harness.upstream import Call, Script, Upstream

SECRET = "sk-provider-secret"
KINDS = ["openai", "vllm"]


@pytest.fixture(scope="module")
def server() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


def backend(kind: str, url: str) -> Backend:
    if kind == "openai":
        return OpenAIBackend(OpenAIConfig(url, connect_seconds=2))
    return VLLMBackend(VLLMConfig(url.removesuffix("/v1"), connect_seconds=2))


def request(marker: str, endpoint: Endpoint = Endpoint.CHAT) -> UpstreamRequest:
    body = json.dumps({"model": "m", "marker": f"<{marker}>"}).encode()
    return UpstreamRequest(endpoint, "m", body, False, "request-1", credential=SECRET)


@asynccontextmanager
async def sent(
    server: Upstream, marker: str, script: Script, kind: str = "openai"
) -> AsyncIterator[UpstreamResponse]:
    """The response that a script gives."""
    server.on(f"<{marker}>", script)
    made = backend(kind, server.url)
    try:
        response = await made.send(request(marker))
        try:
            yield response
        finally:
            response.close()
    finally:
        await made.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_a_request_goes_out_as_it_was_made(
    server: Upstream, kind: str, endpoint: Endpoint
) -> None:
    made = backend(kind, server.url)
    asked = request(f"as-made-{kind}-{endpoint.name}", endpoint)
    try:
        response = await made.send(asked)
        await response.read(10_000)
    finally:
        await made.close()
    call = server.call_with(f"<as-made-{kind}-{endpoint.name}>")
    assert call.body == asked.body
    assert call.path == f"/v1/{endpoint.value}"
    assert call.headers["authorization"] == f"Bearer {SECRET}"
    assert call.headers["x-request-id"] == "request-1"
    assert call.headers["content-type"] == "application/json"


async def test_without_a_credential_none_is_sent(server: Upstream) -> None:
    made = OpenAIBackend(OpenAIConfig(server.url))
    response = await made.send(msgspec.structs.replace(request("anonymous"), credential=None))
    await response.read(10_000)
    await made.close()
    assert "authorization" not in server.call_with("<anonymous>").headers


@pytest.mark.parametrize(
    "address", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"]
)
def test_a_replica_is_reached_below_v1_however_it_was_given(address: str) -> None:
    made = VLLMBackend(VLLMConfig(address))
    assert str(made._client._urls[Endpoint.CHAT]) == "http://h:1/v1/chat/completions"


@pytest.mark.parametrize("status", [200, 302, 401, 429, 500, 599])
async def test_every_status_is_given_with_its_headers(server: Upstream, status: int) -> None:
    def script(call: Call) -> None:
        call.respond(status, b"{}", {"Retry-After": "7", "Location": "http://elsewhere/"})

    async with sent(server, f"status-{status}", script) as response:
        assert response.status == status
        assert response.headers["retry-after"] == "7"
        assert await response.read(10) == b"{}"


async def test_a_stream_comes_piece_by_piece_and_ends_empty(server: Upstream) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.chunk("你".encode()[:1])
        call.chunk("你".encode()[1:])
        call.end()

    async with sent(server, "pieces", script) as response:
        pieces = [await response.next()]
        while pieces[-1]:
            pieces.append(await response.next())
    assert b"".join(pieces).decode() == "你"


async def test_case_66_a_compressed_body_is_read(server: Upstream) -> None:
    def script(call: Call) -> None:
        call.respond(200, gzip.compress(b"{}" * 500), {"content-encoding": "gzip"})

    async with sent(server, "gzip", script) as response:
        assert await response.read(1000) == b"{}" * 500


def cut_short(call: Call) -> None:
    call.respond(200, b"half", {"content-length": "100"})
    call.close()


def reset_in_stream(call: Call) -> None:
    call.start_stream()
    call.chunk(b"half")
    call.reset()


def closed_in_stream(call: Call) -> None:
    call.start_stream()
    call.chunk(b"half")
    call.close()


def false_gzip(call: Call) -> None:
    call.respond(200, b"no gzip at all", {"content-encoding": "gzip"})


BREAKS: list[Script] = [cut_short, reset_in_stream, closed_in_stream, false_gzip]


async def take_all(response: UpstreamResponse) -> None:
    while await response.next():
        pass


async def read(response: UpstreamResponse) -> None:
    await response.read(10_000)


@pytest.mark.parametrize("script", BREAKS, ids=lambda script: script.__name__)
@pytest.mark.parametrize("how", [read, take_all])
async def test_a_body_that_breaks_off_is_a_lost_connection(
    server: Upstream, script: Script, how: Callable[[UpstreamResponse], object]
) -> None:
    async def whole() -> None:
        async with sent(server, f"{script.__name__}-{how.__name__}", script) as response:
            await how(response)  # type: ignore[misc]

    with pytest.raises(ConnectionLost):
        await whole()


def silent(call: Call) -> None:
    call.close()


def no_http(call: Call) -> None:
    call.send(b"SSH-2.0-hello\r\n\r\n")
    call.close()


@pytest.mark.parametrize("script", [silent, no_http])
async def test_no_http_is_a_lost_connection(server: Upstream, script: Script) -> None:
    async def whole() -> None:
        async with sent(server, script.__name__, script):
            pass

    with pytest.raises(ConnectionLost):
        await whole()


@pytest.mark.parametrize("size", [1000, 100_000])
async def test_a_body_beyond_the_limit_is_dropped(server: Upstream, size: int) -> None:
    def script(call: Call) -> None:
        call.respond(200, b"x" * size)

    async with sent(server, f"limit-{size}", script) as response:
        with pytest.raises(ConnectionLost, match="longer than 999 bytes"):
            await response.read(999)
    async with sent(server, f"limit-{size}", script) as response:
        assert len(await response.read(size)) == size


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dead_upstream_is_a_failed_connection_without_its_address(kind: str) -> None:
    made = backend(kind, f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(ConnectFailed) as caught:
        await made.send(request("dead"))
    await made.close()
    assert "127.0.0.1" not in str(caught.value)
    assert caught.value.code == "upstream_unreachable"


async def test_a_name_that_nobody_has_is_a_failed_connection() -> None:
    made = backend("openai", "http://nowhere.invalid/v1")
    with pytest.raises(BackendError) as caught:
        await made.send(request("nowhere"))
    await made.close()
    assert "nowhere" not in str(caught.value)


async def test_a_closed_response_lets_the_upstream_know(server: Upstream) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.chunk(b"first")
        call.wait_for_client_to_leave()

    async with sent(server, "leaving", script) as response:
        assert await response.next() == b"first"
        response.close()
        response.close()
        call = server.call_with("<leaving>")
        assert await asyncio.to_thread(call.ended.wait, 5)
        assert call.closed_by_client_at is not None


async def test_cookies_of_one_answer_are_not_sent_with_the_next(server: Upstream) -> None:
    server.on("<cookie>", lambda call: call.respond(200, b"{}", {"set-cookie": "a=b"}))
    made = backend("openai", server.url)
    for _ in range(2):
        response = await made.send(request("cookie"))
        await response.read(10)
    await made.close()
    assert all("cookie" not in call.headers for call in server.calls_with("<cookie>"))


async def test_a_backend_opens_again_after_it_was_closed(server: Upstream) -> None:
    made = backend("openai", server.url)
    await made.close()
    for _ in range(2):
        response = await made.send(request("again"))
        await response.read(10_000)
        await made.close()


class TestDialects:
    def test_openai_itself_takes_the_new_spelling(self) -> None:
        dialect = OpenAIBackend(OpenAIConfig()).dialect
        assert dialect.token_limit == "max_completion_tokens"
        assert dialect.base64_embeddings

    def test_compatible_servers_take_the_old_one_unless_told(self) -> None:
        dialect = OpenAIBackend(OpenAIConfig("http://x/v1")).dialect
        assert dialect.token_limit == "max_tokens"
        assert not dialect.base64_embeddings
        told = OpenAIConfig("http://x/v1", max_tokens_field="max_completion_tokens")
        assert OpenAIBackend(told).dialect.token_limit == "max_completion_tokens"

    def test_vllm_reports_usage_on_every_chunk(self) -> None:
        usage = VLLMBackend(VLLMConfig("http://x")).dialect.streamed_usage
        assert usage == {"include_usage": True, "continuous_usage_stats": True}
