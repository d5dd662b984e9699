"""The text of an answer, out of the bytes that its client got. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from sluice.backends.base import Endpoint
from sluice.wire import sse

#: Answers are looked at up to here, in bytes as they were sent.
MAX_BYTES = 1024 * 1024

#: What reading members that are not there, or not what they should be, raises.
_ILL_FORMED = (AttributeError, IndexError, KeyError, TypeError)


def answer_text(endpoint: Endpoint, sent: bytes, streamed: bool) -> str | None:
    """The text that was generated; None where there is none: tool calls, or what can't be read.

    Args:
        endpoint: that the client called.
        sent: the answer's bytes.
        streamed: whether they are server-sent events.
    """
    read = (_STREAMED if streamed else _WHOLE).get(endpoint)
    if read is None or len(sent) > MAX_BYTES:
        return None
    try:
        if streamed:
            return "".join(part for data in _events(sent) for part in read(data)) or None
        return "".join(read(msgspec.json.decode(sent))) or None
    except (msgspec.DecodeError, sse.SSEError, RecursionError, *_ILL_FORMED):
        return None


def _events(sent: bytes) -> Iterator[Any]:
    parser = sse.Parser()
    for event in [*parser.feed(sent), *parser.flush()]:
        if event.data != sse.DONE:
            yield msgspec.json.decode(event.data)


def _strings(*values: Any) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


def _chat(body: Any) -> Iterator[str]:
    return _strings(body["choices"][0]["message"].get("content"))


def _chat_event(event: Any) -> Iterator[str]:
    choices = event.get("choices") or []
    first = (choice for choice in choices if choice.get("index", 0) == 0)
    return _strings(*((choice.get("delta") or {}).get("content") for choice in first))


def _message(body: Any) -> Iterator[str]:
    return _strings(*(block.get("text") for block in body["content"]))


def _message_event(event: Any) -> Iterator[str]:
    if event.get("type") == "content_block_delta":
        return _strings(event["delta"].get("text"))
    return _strings()


def _response(body: Any) -> Iterator[str]:
    items = (item for item in body["output"] if item.get("type") == "message")
    return _strings(*(part.get("text") for item in items for part in item["content"]))


def _response_event(event: Any) -> Iterator[str]:
    if event.get("type") == "response.output_text.delta":
        return _strings(event.get("delta"))
    return _strings()


_Read = Callable[[Any], Iterator[str]]

_WHOLE: Mapping[Endpoint, _Read] = {
    Endpoint.CHAT: _chat,
    Endpoint.MESSAGES: _message,
    Endpoint.RESPONSES: _response,
}
_STREAMED: Mapping[Endpoint, _Read] = {
    Endpoint.CHAT: _chat_event,
    Endpoint.MESSAGES: _message_event,
    Endpoint.RESPONSES: _response_event,
}
