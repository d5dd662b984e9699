"""What scripted upstreams say, in the format of the request that they got."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.harness.upstream import Call, Script, answer_in_full, chunk

#: How a script breaks off after its first words.
Break = Callable[[Call], object]


def anthropic(call: Call) -> bool:
    """Whether the request is one of Anthropic's format."""
    return call.path.startswith("/v1/messages")


def named(call: Call, kind: str, **members: Any) -> None:
    """One of Anthropic's events."""
    data = json.dumps({"type": kind, **members})
    call.chunk(f"event: {kind}\ndata: {data}\n\n".encode())


def message(model: str, text: str = "hello") -> dict[str, Any]:
    """A whole message."""
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def begin(call: Call) -> None:
    """The start of a stream, before any generated token."""
    call.start_stream()
    if not anthropic(call):
        call.event(chunk("m", {"role": "assistant", "content": ""}))
        return
    started = message("m") | {"content": [], "stop_reason": None}
    started["usage"] = {"input_tokens": 11, "output_tokens": 1}
    named(call, "message_start", message=started)
    named(call, "content_block_start", index=0, content_block={"type": "text", "text": ""})


def word(call: Call, text: str) -> None:
    """A generated token."""
    if anthropic(call):
        delta = {"type": "text_delta", "text": text}
        named(call, "content_block_delta", index=0, delta=delta)
    else:
        call.event(chunk("m", {"content": text}))


def answer(call: Call) -> None:
    """What an honest upstream does."""
    if not anthropic(call):
        answer_in_full(call)
    elif not call.json.get("stream"):
        call.respond(200, message("m"))
    else:
        begin(call)
        word(call, "hello")
        named(call, "content_block_stop", index=0)
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        named(call, "message_delta", delta=delta, usage={"output_tokens": 7})
        named(call, "message_stop")
        call.end()


def error_body(
    call: Call, text: str, kind: str = "api_error", code: str | None = None
) -> dict[str, Any]:
    """An error in the upstream's format."""
    if anthropic(call):
        return {"type": "error", "error": {"type": kind, "message": text}}
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


def refusing(
    status: int, text: str = "scripted refusal", kind: str = "api_error", code: str | None = None,
    **headers: str,
) -> Script:  # fmt: skip
    """A script that answers with a status; header names have `_` for `-`."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda call: call.respond(status, error_body(call, text, kind, code), sent)


def after_words(how: Break) -> Script:
    """A script that streams `one two` and then breaks off."""

    def script(call: Call) -> None:
        begin(call)
        word(call, "one ")
        word(call, "two")
        how(call)

    return script


def before_words(how: Break) -> Script:
    """A script that opens a stream and breaks off before the first token."""

    def script(call: Call) -> None:
        begin(call)
        how(call)

    return script


def say_error(call: Call) -> None:
    """An error inside a stream."""
    if anthropic(call):
        error = error_body(call, "scripted overload", "overloaded_error")
        call.chunk(f"event: error\ndata: {json.dumps(error)}\n\n".encode())
    else:
        call.event(error_body(call, "scripted overload", "overloaded_error"))
    call.end()


def say_garbage(call: Call) -> None:
    """An event that is no JSON."""
    call.chunk(b"data: {nonsense\n\n")
    call.end()


def say_bad_utf8(call: Call) -> None:
    """An event whose text is no UTF-8."""
    if anthropic(call):
        head = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
        call.chunk(b"event: content_block_delta\ndata: " + head + b'\xff\xfe"}}\n\n')
    else:
        call.chunk(b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",')
        call.chunk(b'"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n')
    call.end()


def say_done(call: Call) -> None:
    """The end marker of an answer that has no finish."""
    if anthropic(call):
        named(call, "message_stop")
    else:
        call.event("[DONE]")
    call.end()


def not_http(call: Call) -> None:
    """An answer in another protocol."""
    call.send(b"\x00\xff\x16\x03 no\r\n\r\n")
    call.close()


def say_bad_chunk(call: Call) -> None:
    """Bytes that are no HTTP chunk."""
    time.sleep(0.05)
    call.send(b"\xff\xfenonsense\r\n\r\n")


def stop_chunk_then_reset(call: Call) -> None:
    """A chunk cut in the middle of an event, then a reset."""
    call.chunk(b'data: {"id":"c","choi')
    reset(call)


def reset(call: Call) -> None:
    """A reset that doesn't overtake what was sent."""
    time.sleep(0.05)
    call.reset()


def stall(call: Call) -> None:
    """Silence, until the other side has had enough."""
    call.wait_for_client_to_leave(20)


def drip(call: Call) -> None:
    """A byte at a time, for as long as the other side will listen."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        call.chunk(b":")
        time.sleep(0.05)


def drip_headers(call: Call) -> None:
    """A status line that never comes to its end."""
    deadline = time.monotonic() + 20
    call.send(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while time.monotonic() < deadline:
        call.send(b"a")
        time.sleep(0.05)


def drip_body(call: Call) -> None:
    """A body that never comes to its end."""
    call.start_stream("text/event-stream" if call.json.get("stream") else "application/json")
    drip(call)


def cut_body(call: Call) -> None:
    """A body that is shorter than its length says."""
    call.respond(200, b'{"id":"x","choices":[{"ind', {"content-length": "500"})
    call.close()


def bad_utf8_body(call: Call) -> None:
    """A whole answer with text that is no UTF-8."""
    if "embeddings" in call.path:
        call.respond(200, b'{"object":"list","data":[{"index":0,"embedding":"\xff\xfe"}]}')
    elif anthropic(call):
        call.respond(200, json.dumps(message("m", "BAD")).encode().replace(b"BAD", b"\xff\xfe"))
    else:
        content = b'{"index":0,"message":{"role":"assistant","content":"\xff\xfe"},'
        tail = b'"finish_reason":"stop"}],"object":"chat.completion","created":1,"model":"m"}'
        call.respond(200, b'{"id":"x","choices":[' + content + tail)
