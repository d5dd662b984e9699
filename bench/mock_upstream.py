"""A mock OpenAI and vLLM server that answers from pre-built bytes.

Run as `python -m bench.mock_upstream --port PORT`. It has to be far faster than
any gateway, so it is a bare asyncio protocol and parses only what it must: where
a request ends, and which of three answers it wants.
"""

import argparse
import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from bench import answers
from bench.eventloop import run

_HEAD_END = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_SECONDS_BETWEEN_EVENTS = 1.0


def _whole(body: bytes, content_type: str, status: str = "200 OK") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True)
class Voice:
    """A format in which the mock answers, in pre-built bytes."""

    whole: bytes
    stream: bytes
    #: As engines do: the role comes when there is a first token, not before.
    held_opening: bytes
    held_word: bytes
    closing: Callable[[int], list[bytes]]


def _chunks(events: list[bytes]) -> bytes:
    return b"".join(map(_http_chunk, events))


_WORDS = answers.STREAM_WORDS
_VOICES = {
    b"/v1/chat/completions": Voice(
        whole=_whole(answers.json_answer(), "application/json"),
        stream=_STREAM_HEAD + _chunks(answers.stream_events()) + _LAST_CHUNK,
        held_opening=_STREAM_HEAD + _chunks([answers.opening_event(), answers.word_event()]),
        held_word=_http_chunk(answers.word_event()),
        closing=answers.closing_events,
    ),
    b"/v1/messages": Voice(
        whole=_whole(answers.message_answer(), "application/json"),
        stream=_STREAM_HEAD
        + _chunks(answers.message_opening_events())
        + _http_chunk(answers.message_word_event()) * _WORDS
        + _chunks(answers.message_closing_events(_WORDS))
        + _LAST_CHUNK,
        held_opening=_STREAM_HEAD
        + _chunks([*answers.message_opening_events(), answers.message_word_event()]),
        held_word=_http_chunk(answers.message_word_event()),
        closing=answers.message_closing_events,
    ),
}
_NOT_FOUND = _whole(b'{"detail":"Not Found"}', "application/json", "404 Not Found")
_MODELS = (
    b'{"object":"list","data":[{"id":"mock","object":"model","created":1750000000,'
    b'"owned_by":"bench","root":"mock","parent":null,"max_model_len":32768}]}'
)
#: What vLLM calls its gauges: routers read them to learn how busy a worker is.
_METRICS = b"".join(
    b'# TYPE %b gauge\n%b{engine="0",model_name="mock"} 0.0\n' % (name, name)
    for name in (
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        b"vllm:kv_cache_usage_perc",
    )
)
_PAGES = {
    b"/health": _whole(b"", "text/plain"),
    b"/ping": _whole(b"", "text/plain"),
    b"/v1/models": _whole(_MODELS, "application/json"),
    b"/metrics": _whole(_METRICS, "text/plain; version=0.0.4"),
    b"/version": _whole(b'{"version":"0.32.0"}', "application/json"),
}


class MockUpstream(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._continued = False
        self._voice = _VOICES[b"/v1/chat/completions"]
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; answers go out at once."""
        # uvloop's transports don't derive from asyncio's, so it can't be asserted.
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway left: stop a held stream."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        self._answer_all()

    def _answer_all(self) -> None:
        while self._timer is None and self._received:
            head_end = self._received.find(_HEAD_END)
            if head_end < 0:
                return
            body_start = head_end + len(_HEAD_END)
            head = bytes(self._received[:head_end])
            end = self._request_end(head, body_start)
            if end is None:
                return
            body = bytes(self._received[body_start:end])
            del self._received[:end]
            self._continued = False
            self._answer(head, body)

    def _request_end(self, head: bytes, body_start: int) -> int | None:
        """Where the request ends in what was received, or None if it hasn't yet."""
        length = _CONTENT_LENGTH.search(head)
        if length is not None:
            end = body_start + int(length.group(1))
            if len(self._received) >= end:
                return end
        elif _CHUNKED.search(head):
            last = self._received.find(_LAST_CHUNK, body_start)
            if last >= 0:
                return last + len(_LAST_CHUNK)
        else:
            return body_start
        if not self._continued and _EXPECT.search(head):
            self._continued = True
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    def _answer(self, head: bytes, body: bytes) -> None:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        voice = _VOICES.get(path)
        if method == b"POST" and voice is not None:
            self._complete(voice, body)
        else:
            self._write(_PAGES.get(path, _NOT_FOUND))

    def _complete(self, voice: Voice, body: bytes) -> None:
        if not answers.STREAMED.search(body):
            self._write(voice.whole)
            return
        hold = answers.HOLD.search(body)
        if hold is None:
            self._write(voice.stream)
        else:
            self._voice = voice
            self._write(voice.held_opening)
            self._tick_later(int(hold.group(1)), 1)

    def _tick_later(self, events: int, sent: int) -> None:
        self._timer = self._loop.call_later(_SECONDS_BETWEEN_EVENTS, self._tick, events, sent)

    def _tick(self, events: int, sent: int) -> None:
        self._timer = None
        if sent < events:
            self._write(self._voice.held_word)
            self._tick_later(events, sent + 1)
            return
        self._write(_chunks(self._voice.closing(events)) + _LAST_CHUNK)
        self._answer_all()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int) -> None:
    """Listen until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockUpstream(loop), "127.0.0.1", port, backlog=8192)
    await server.serve_forever()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description="Mock OpenAI and vLLM upstream")
    parser.add_argument("--port", type=int, required=True)
    run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
