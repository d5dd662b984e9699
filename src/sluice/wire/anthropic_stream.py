"""An Anthropic upstream's stream as a chat stream.

Text becomes `content`, thinking `reasoning_content`, uses of tools `tool_calls` counted from 0 on.
A block of thinking that the client must return with its next turn comes once more, whole and with
its signature, as the extension `thinking_blocks` when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sluice.wire import sse
from sluice.wire.anthropic_answer import (
    NameMap,
    chat_tier,
    chat_usage,
    completion_id,
    finish_reason,
    read_anthropic_error,
    refusal_text,
)
from sluice.wire.codec import BROKEN, UNREADABLE_EVENT, EventCodec
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_passthrough import (
    Block,
    Delta,
    Meter,
    StopDetails,
    StreamEvent,
    read_event,
)
from sluice.wire.objects import encode
from sluice.wire.stream import DONE_EVENT, StreamView
from sluice.wire.usage import Usage

#: A comment: it keeps connections alive, and no client sees it.
PING = b": ping\n\n"


class AnthropicChatStream(EventCodec):
    """One answer's stream. See `StreamCodec`.

    Attributes:
        failure: set once the stream can't be a complete answer any more.
        has_content: a generated token has been seen.
        done: the upstream said that the answer is complete.
    """

    def __init__(self, view: StreamView, names: NameMap, created: int) -> None:
        """Args:
        view: how the client wants to see the stream.
        names: of the request.
        created: the answer's date (Anthropic gives none), in Unix seconds.
        """
        super().__init__()
        self._view = view
        self._names = names
        self._created = created
        self._meter = Meter()
        self._head = b""
        self._tools = 0
        self._thoughts = 0
        self._block: Block | None = None
        self._arguments = False
        self._thinking: list[str] = []
        self._signature: list[str] = []
        self._stop_reason: str | None = None
        self._stop_details: StopDetails | None = None
        self._takers: Mapping[str, Callable[[StreamEvent], bytes]] = {
            "message_start": self._start,
            "content_block_start": self._start_block,
            "content_block_delta": self._continue_block,
            "content_block_stop": self._stop_block,
            "message_delta": self._note_stop,
            "message_stop": self._finish,
            "ping": lambda _: PING,
        }

    def tail(self) -> bytes:
        """See `StreamCodec`."""
        reported = self._meter.reported
        if not self._view.include_usage or reported is None:
            return DONE_EVENT
        usage = encode(chat_usage(self._meter.usage(0), reported.thinking_tokens))
        return sse.encode(self._head + b',"choices":[],"usage":' + usage + b"}") + DONE_EVENT

    def usage(self, prompt_characters: int) -> Usage:
        """See `StreamCodec`."""
        return self._meter.usage(prompt_characters)

    def error(self, status: int, detail: ErrorDetail) -> bytes:
        """See `StreamCodec`. No end marker follows: an error is not a finished answer."""
        return sse.encode(detail.body())

    def _take(self, data: bytes, name: bytes) -> bytes:
        event = read_event(data)
        if event is None:
            self.failure = read_anthropic_error(data) or UNREADABLE_EVENT
            return b""
        take = self._takers.get(event.type)
        if take is None:
            return b""
        if not self._head and event.type not in ("message_start", "ping"):
            self.failure = UNREADABLE_EVENT
            return b""
        self._meter.note(event)
        self.has_content = self._meter.has_content
        return take(event)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = b',"usage":null}' if self._view.include_usage else b"}"
        return sse.encode(self._head + b',"choices":[' + encode(choice) + b"]" + usage)

    def _start(self, event: StreamEvent) -> bytes:
        if event.message is None or self._head:
            self.failure = UNREADABLE_EVENT
            return b""
        head: dict[str, Any] = {
            "id": completion_id(event.message.id),
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._view.model,
        }
        usage = event.message.usage
        if usage is not None and (tier := chat_tier(usage.service_tier)) is not None:
            head["service_tier"] = tier
        self._head = encode(head)[:-1]
        return self._chunk({"role": "assistant", "content": ""})

    def _start_block(self, event: StreamEvent) -> bytes:
        block = self._block = event.content_block or Block()
        self._arguments = False
        self._thinking, self._signature = [], []
        if block.type == "tool_use":
            return self._start_tool(block)
        if block.type == "redacted_thinking":
            return self._thought({"type": "redacted_thinking", "data": block.data or ""})
        return self._grow(block.text, block.thinking, block.signature)

    def _start_tool(self, block: Block) -> bytes:
        function = {"name": self._names.client_name(block.name or ""), "arguments": ""}
        self._tools += 1
        call = {"index": self._tools - 1, "id": block.id or "", "type": "function"}
        return self._chunk({"tool_calls": [call | {"function": function}]})

    def _continue_block(self, event: StreamEvent) -> bytes:
        delta = event.delta or Delta()
        if delta.partial_json and self._block is not None and self._block.type == "tool_use":
            self._arguments = True
            return self._call_on(delta.partial_json)
        return self._grow(delta.text, delta.thinking, delta.signature)

    def _grow(self, text: str | None, thinking: str | None, signature: str | None) -> bytes:
        if signature:
            self._signature.append(signature)
        if thinking:
            self._thinking.append(thinking)
            return self._chunk({"reasoning_content": thinking})
        return self._chunk({"content": text}) if text else b""

    def _call_on(self, arguments: str) -> bytes:
        call = {"index": self._tools - 1, "function": {"arguments": arguments}}
        return self._chunk({"tool_calls": [call]})

    def _stop_block(self, _: StreamEvent) -> bytes:
        """Arguments that didn't come in pieces came whole, or there are none."""
        block, self._block = self._block, None
        if block is None:
            return b""
        if block.type == "tool_use" and not self._arguments:
            arguments = bytes(block.input).decode()
            return self._call_on("{}" if arguments == "null" else arguments)
        thinking, signature = "".join(self._thinking), "".join(self._signature)
        if block.type == "thinking" and (thinking or signature):
            return self._thought({"type": "thinking", "thinking": thinking, "signature": signature})
        return b""

    def _thought(self, block: dict[str, str]) -> bytes:
        self._thoughts += 1
        return self._chunk({"thinking_blocks": [{"index": self._thoughts - 1, **block}]})

    def _note_stop(self, event: StreamEvent) -> bytes:
        if event.delta is not None and event.delta.stop_reason is not None:
            self._stop_reason = event.delta.stop_reason
            self._stop_details = event.delta.stop_details
        return b""

    def _finish(self, _: StreamEvent) -> bytes:
        """The finish waits for the very end, so that an answer that breaks off has none."""
        if self._stop_reason is None:
            self.failure = BROKEN
            return b""
        self.done = True
        out = b""
        if self._stop_reason == "refusal":
            out = self._chunk({"refusal": refusal_text(self._stop_details)})
        reason = finish_reason(self._stop_reason, self._tools > 0)
        return out + self._chunk({}, reason)
