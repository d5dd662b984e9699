"""A chat stream as the named events of Anthropic's Messages API.

Chat deltas of different kinds may come in any order; a message is a sequence of blocks, of which
one is open at a time. So deltas are put into blocks, in order of their first appearance; the
first block is passed on as it grows, and those behind it wait until it can't grow any more: text
and reasoning when something else began, a tool call when its arguments are a whole JSON object.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import msgspec

from sluice.wire import sse
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_answer import (
    OWN_SIGNATURE,
    ChatUsage,
    Stop,
    ToolCall,
    estimated_usage,
    is_object,
    message_id,
    message_usage,
    own_call_id,
    stop_of,
)
from sluice.wire.messages_errors import error_event
from sluice.wire.objects import encode, mended
from sluice.wire.tool_ids import toolu_id

#: Keeps a silent stream alive; allowed anywhere in it.
PING_EVENT = b'event: ping\ndata: {"type":"ping"}\n\n'

_UNREADABLE = ErrorDetail(
    "the upstream sent an event that can't be read", code="upstream_invalid_response"
)


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: ChatUsage | None = None


_chunks = msgspec.json.Decoder(_Chunk)

Kind = Literal["text", "thinking", "tool_use"]

_DELTAS: dict[Kind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class _Block:
    """A content block on its way: what is known of it, and what of that is still to be sent."""

    __slots__ = ("blank", "id", "kind", "name", "sent", "started", "waiting")

    def __init__(self, kind: Kind, id: str = "") -> None:
        self.kind = kind
        self.id = id
        self.name: str | None = None
        self.waiting: list[str] = []
        self.sent: list[str] = []
        self.started = False
        #: Nothing but white space yet: Anthropic refuses such a text when it comes back, and
        #: models like to write it before a tool call.
        self.blank = kind != "tool_use"

    def add(self, text: str) -> None:
        """More of it came."""
        self.waiting.append(text)
        if self.blank and text.strip():
            self.blank = False

    @property
    def complete(self) -> bool:
        """It can't grow any more once something else began."""
        if self.kind != "tool_use":
            return True
        last = self.sent[-1] if self.sent else ""
        return last.rstrip().endswith("}") and self.whole

    @property
    def whole(self) -> bool:
        """Its arguments are all there."""
        text = "".join(self.sent) + "".join(self.waiting)
        return not text.strip() or is_object(text)

    def content(self) -> dict[str, Any]:
        """The block as it starts."""
        if self.kind == "tool_use":
            return {"type": "tool_use", "id": self.id, "name": self.name or "", "input": {}}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}


class MessagesFromChat:
    """One answer's stream towards an Anthropic client (`ClientStream`); of one choice.

    An event that can't be read ends the stream with an error: what comes after it would be
    another answer than the model's.
    """

    def __init__(self, model: str, prompt_characters: int = 0) -> None:
        """
        Args:
            model: the name that the client asked for.
            prompt_characters: length of the prompt, for an estimate until usage is known.
        """
        self._model = model
        self._prompt_characters = prompt_characters
        self._parser = sse.Parser()
        self._id: str | None = None
        self._begun = False
        self.failure: ErrorDetail | None = None
        self._over = False
        self._blocks: deque[_Block] = deque()
        self._calls: list[_Block] = []
        self._numbered: dict[int, _Block] = {}
        self._index = 0
        self._characters = 0
        self._refusal = ""
        self._usage: ChatUsage | None = None
        self._stop: Stop | None = None
        self._delta_sent = False

    def feed(self, piece: bytes) -> bytes:
        """See `ClientStream`."""
        out: list[bytes] = []
        try:
            for event in self._parser.feed(piece):
                if self._over or self.failure is not None:
                    break
                if event.data != sse.DONE:
                    self._take(mended(_chunks, event.data), out)
        except (sse.SSEError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = _UNREADABLE
        return b"".join(out)

    def tail(self) -> bytes:
        """See `ClientStream`. Nothing, where an error ended the stream."""
        if self._over:
            return b""
        if self.failure is not None:
            return self.error(self.failure)
        self._over = True
        out: list[bytes] = []
        self._begin(out)
        if self._stop is None:
            self._finish(_Choice(finish_reason="stop"), out)
        self._send_delta(out)
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def error(self, detail: ErrorDetail) -> bytes:
        """See `ClientStream`."""
        self._over = True
        return error_event(detail)

    def _take(self, chunk: _Chunk, out: list[bytes]) -> None:
        self._id = self._id or chunk.id
        self._usage = chunk.usage or self._usage
        self._begin(out)
        for choice in chunk.choices or []:
            if choice.index != 0 or self._stop is not None:
                continue
            self._sort(choice.delta or _Delta())
            if choice.finish_reason:
                self._finish(choice, out)
            else:
                self._advance(out)
        if self._stop is not None and chunk.usage is not None and not chunk.choices:
            self._send_delta(out)

    def _begin(self, out: list[bytes]) -> None:
        if self._begun:
            return
        self._begun = True
        usage = {**self._counts(), "output_tokens": 0}
        message: dict[str, Any] = {
            "id": message_id(self._id),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        out.append(_event("message_start", {"message": message}))

    def _sort(self, delta: _Delta) -> None:
        """Put what came into its blocks."""
        self._add("thinking", delta.reasoning or delta.reasoning_content)
        self._add("text", delta.content)
        self._add("text", delta.refusal)
        self._refusal += delta.refusal or ""
        for call in delta.tool_calls or []:
            block = self._call(call)
            function = call.function
            if function is not None:
                block.name = block.name or function.name
                self._fill(block, function.text())

    def _add(self, kind: Kind, text: str | None) -> None:
        if not text:
            return
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Block(kind))
        self._fill(self._blocks[-1], text)

    def _fill(self, block: _Block, text: str) -> None:
        if text:
            block.add(text)
            self._characters += len(text)

    def _call(self, call: ToolCall) -> _Block:
        """The block of a tool call. Some upstreams number no call, others all of them 0; their
        calls are told apart by ids."""
        known = self._numbered.get(call.index) if call.index is not None else self._last_call()
        if call.id:
            name = toolu_id(call.id)
            if known is None or known.id != name:
                known = next((block for block in self._calls if block.id == name), None)
        if known is None:
            own = own_call_id(self._id, len(self._calls))
            known = _Block("tool_use", toolu_id(call.id or own))
            self._calls.append(known)
            self._blocks.append(known)
        if call.index is not None:
            self._numbered[call.index] = known
        return known

    def _last_call(self) -> _Block | None:
        return self._calls[-1] if self._calls else None

    def _advance(self, out: list[bytes], final: bool = False) -> None:
        """Send what can be sent: of the first block all that came, of the next ones what comes
        before a block that may still grow."""
        while self._blocks:
            block = self._blocks[0]
            last = len(self._blocks) == 1
            if block.blank and (not last or (final and self._index > 0)):
                self._blocks.popleft()
                continue
            if not final and (block.blank or (block.kind == "tool_use" and not block.name)):
                return
            self._send(block, out)
            if not final and (last or not block.complete):
                return
            self._close(block, out)
            self._blocks.popleft()

    def _send(self, block: _Block, out: list[bytes]) -> None:
        if not block.started:
            block.started = True
            start = {"index": self._index, "content_block": block.content()}
            out.append(_event("content_block_start", start))
        if block.waiting:
            kind, name = _DELTAS[block.kind]
            text = "".join(block.waiting)
            out.append(self._delta({"type": kind, name: text}))
            if block.kind == "tool_use":
                block.sent.append(text)
            block.waiting.clear()

    def _close(self, block: _Block, out: list[bytes]) -> None:
        if block.kind == "thinking":
            out.append(self._delta({"type": "signature_delta", "signature": OWN_SIGNATURE}))
        out.append(_event("content_block_stop", {"index": self._index}))
        self._index += 1

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _finish(self, choice: _Choice, out: list[bytes]) -> None:
        """Close all blocks; an answer without any gets an empty text, because clients look at
        the first block."""
        last_call = self._last_call()
        self._stop = stop_of(
            choice.finish_reason,
            choice.stop_reason,
            complete_tool=last_call is not None and last_call.whole,
            refusal=self._refusal,
        )
        self._advance(out, final=True)
        if self._index == 0:
            empty = _Block("text")
            self._send(empty, out)
            self._close(empty, out)

    def _send_delta(self, out: list[bytes]) -> None:
        """The reason and the usage, once both are known."""
        if self._delta_sent or self._stop is None:
            return
        self._delta_sent = True
        out.append(
            _event("message_delta", {"delta": self._stop.members(), "usage": self._counts()})
        )

    def _counts(self) -> dict[str, Any]:
        if self._usage is None:
            return estimated_usage(self._prompt_characters, self._characters)
        return message_usage(self._usage)


def _event(name: str, members: dict[str, Any]) -> bytes:
    return sse.encode(encode({"type": name, **members}), name.encode())
