"""An upstream that follows a script, byte by byte.

For the edge cases that no honest server produces on demand: resets, stalls, split characters,
garbage. Each connection is served by a thread with a blocking socket, so that a script reads like
a dialogue:

    def script(call: Call) -> None:
        call.start_stream()
        call.send(b"data: {}\\n\\n")
        call.reset()

Scripts are chosen by the request's own prompt text (see `Upstream.on`), so that one upstream
serves a whole test session.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.harness.polling import eventually


@dataclass
class Call:
    """One request at the upstream, and the socket that it came by."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket
    closed_by_client_at: float | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.connection.sendall(data)

    def respond(
        self,
        status: int,
        body: bytes | dict[str, Any],
        headers: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:
        """A whole response."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if not any(line.lower().startswith("content-length:") for line in lines):
            lines.append(f"content-length: {len(payload)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)

    def start_stream(self, content_type: str = "text/event-stream") -> None:
        """Headers of a chunked response."""
        self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: "
            + content_type.encode()
            + b"\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        """One HTTP chunk of the body."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, body: dict[str, Any] | str) -> None:
        """One server-sent event in a chunk of its own."""
        text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
        self.chunk(f"data: {text}\n\n".encode())

    def end(self) -> None:
        """The clean end of a chunked response."""
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """Close the connection, wherever the response stands."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def wait_for_client_to_leave(self, seconds: float = 10.0) -> bool:
        """Block until the other side closes; whether it did in time."""
        self.connection.settimeout(seconds)
        try:
            while self.connection.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        self.closed_by_client_at = time.monotonic()
        return True


Script = Callable[[Call], object]


class Upstream:
    """Listens on a port of its own and serves by scripts."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._scripts: dict[str, Script] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def on(self, marker: str, script: Script) -> None:
        """Serve every request whose body contains the marker by this script."""
        self._scripts[marker] = script

    def calls_with(self, marker: str) -> list[Call]:
        """The calls whose body contains the marker."""
        return [call for call in self.calls if marker.encode() in call.body]

    def call_with(self, marker: str, seconds: float = 10.0) -> Call:
        """The first such call, once it has come."""
        return eventually(lambda: self.calls_with(marker), seconds)[0]

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection:
            for call in _requests(connection):
                self.calls.append(call)
                self._script_for(call)(call)
                call.ended.set()

    def _script_for(self, call: Call) -> Script:
        for marker, script in tuple(self._scripts.items()):
            if marker.encode() in call.body:
                return script
        return answer_in_full


def _requests(connection: socket.socket) -> Iterator[Call]:
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            piece = connection.recv(65536)
            if not piece:
                return
            buffer += piece
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers.get("content-length", "0"))
        while len(buffer) < length:
            buffer += connection.recv(65536)
        body, buffer = buffer[:length], buffer[length:]
        yield Call(first.split()[1], headers, body, connection)


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def completion(model: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    """A whole chat completion."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
        **more,
    }


def chunk(
    model: str, delta: dict[str, Any], finish_reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """A chunk of a chat stream."""
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        **more,
    }


def usage_chunk(model: str) -> dict[str, Any]:
    """The chunk that reports usage."""
    return {**chunk(model, {}), "choices": [], "usage": USAGE}


def answer_in_full(call: Call) -> None:
    """What an honest upstream does: the default script."""
    body = call.json
    model = body["model"]
    if "embeddings" in call.path:
        vector = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        call.respond(200, {"object": "list", "data": vector, "model": model, "usage": usage})
    elif body.get("stream"):
        stream_in_full(call)
    else:
        call.respond(200, completion(model))


def stream_in_full(call: Call, words: tuple[str, ...] = ("hel", "lo")) -> None:
    """A complete stream; usage only if it was asked for."""
    model = call.json["model"]
    call.start_stream()
    call.event(chunk(model, {"role": "assistant", "content": ""}))
    for word in words:
        call.event(chunk(model, {"content": word}))
    call.event(chunk(model, {}, "stop"))
    if (call.json.get("stream_options") or {}).get("include_usage"):
        call.event(usage_chunk(model))
    call.event("[DONE]")
    call.end()
