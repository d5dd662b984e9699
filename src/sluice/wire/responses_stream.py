"""A chat stream as a stream of the Responses format.

Chat sends fragments; Responses announces every item and part, repeats each whole when it ends,
and repeats everything at the very end. An item's id and place follow from the order in which
items begin, so that the same chat events give the same events however they were split.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire import sse
from sluice.wire.errors import ErrorDetail
from sluice.wire.objects import encode, mended
from sluice.wire.responses_answer import (
    ChatUsage,
    Echo,
    Ending,
    Head,
    Logprobs,
    Part,
    Spoken,
    ToolCall,
    call_item,
    empty_call_item,
    ending,
    message_item,
    needs_message,
    reasoning_item,
    refusal_part,
    response_object,
    text_part,
    token_logprob,
    unique_call_id,
    usage_object,
)
from sluice.wire.responses_items import Item, item_id
from sluice.wire.responses_tools import Called

_STARTED = Ending("in_progress")
_NOWHERE = -1
_UNREADABLE = ErrorDetail(
    "the upstream sent an event that can't be read", code="upstream_invalid_response"
)


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: ChatUsage | None = None
    service_tier: str | None = None


_chunks = msgspec.json.Decoder(_Chunk)


class Events:
    """Events of one response, numbered.

    Attributes:
        next: the number that the next event gets.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first

    def event(self, kind: str, **members: Any) -> bytes:
        """One event."""
        body = {"type": kind, "sequence_number": self.next, **members}
        self.next += 1
        return sse.encode(encode(body), kind.encode())

    def failure(self, response: dict[str, Any], detail: ErrorDetail) -> bytes:
        """The end of a response that failed. The error follows as an event of its own, because
        SDKs raise for that one only."""
        return self.event("response.failed", response=response) + self.error(detail)

    def error(self, detail: ErrorDetail) -> bytes:
        """The error event, in both forms that clients know: flat, and with an inner object."""
        return self.event(
            "error",
            code=detail.code,
            message=detail.message,
            param=detail.param,
            error={
                "type": detail.type,
                "code": detail.code,
                "message": detail.message,
                "param": detail.param,
            },
        )


class _Reasoning:
    """Reasoning under way."""

    def __init__(self, events: Events, echo: Echo, own: str, place: int) -> None:
        self._events, self._echo = events, echo
        self._at = {"item_id": own, "output_index": place}
        self._id = own
        self._text: list[str] = []
        self._blocks: dict[int, dict[str, Any]] = {}

    def begin(self) -> bytes:
        item = reasoning_item(self._id, "", [], self._echo, "in_progress")
        return self._events.event(
            "response.output_item.added", output_index=self._at["output_index"], item=item
        )

    def add(self, text: str, blocks: list[dict[str, Any]]) -> bytes:
        for block in blocks:
            self._note(block)
        if not text:
            return b""
        out = b"" if self._text else self._part("added", "")
        self._text.append(text)
        kind = (
            "response.reasoning_summary_text"
            if self._echo.summarise
            else ("response.reasoning_text")
        )
        return out + self._events.event(f"{kind}.delta", **self._at, **self._index(), delta=text)

    def _note(self, block: dict[str, Any]) -> None:
        """Blocks come in pieces: texts grow, the rest is set. Pieces carry the index of their
        block, or else belong to the last one until that is signed."""
        fragment = {**block}
        index = fragment.pop("index", None)
        if not isinstance(index, int):
            last = max(self._blocks, default=-1)
            whole = self._blocks.get(last, {})
            grows = bool(whole) and "signature" not in whole and "data" not in whole
            index = last if grows else last + 1
        whole = self._blocks.setdefault(index, {})
        for name, value in fragment.items():
            if name == "thinking" and isinstance(value, str):
                whole[name] = whole.get(name, "") + value
            elif value is not None:
                whole[name] = value

    def finish(self, status: str) -> tuple[bytes, Item]:
        text = "".join(self._text)
        out = b""
        if text:
            kind = "reasoning_summary_text" if self._echo.summarise else "reasoning_text"
            out = self._events.event(
                f"response.{kind}.done", **self._at, **self._index(), text=text
            ) + self._part("done", text)
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        return out, reasoning_item(self._id, text, blocks, self._echo, status)

    def _index(self) -> dict[str, int]:
        return {"summary_index" if self._echo.summarise else "content_index": 0}

    def _part(self, change: str, text: str) -> bytes:
        summary = self._echo.summarise
        return self._events.event(
            f"response.{'reasoning_summary_part' if summary else 'content_part'}.{change}",
            **self._at,
            **self._index(),
            part={"type": "summary_text" if summary else "reasoning_text", "text": text},
        )


class _Message:
    """A message under way: texts and refusals, each a part, one open at a time."""

    def __init__(self, events: Events, own: str, place: int) -> None:
        self._events = events
        self._at = {"item_id": own, "output_index": place}
        self._id = own
        self._parts: list[Part] = []
        self._open: str | None = None
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def begin(self) -> bytes:
        item = message_item(self._id, [], "in_progress")
        return self._events.event(
            "response.output_item.added", output_index=self._at["output_index"], item=item
        )

    def add_text(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        out = self._switch("output_text")
        self._text.append(text)
        told = [*map(token_logprob, logprobs)]
        self._logprobs += told
        return out + self._events.event(
            "response.output_text.delta", **self._place(), delta=text, logprobs=told
        )

    def add_refusal(self, text: str) -> bytes:
        out = self._switch("refusal")
        self._text.append(text)
        return out + self._events.event("response.refusal.delta", **self._place(), delta=text)

    def finish(self, status: str) -> tuple[bytes, Item]:
        out = b"" if self._parts or self._open else self._switch("output_text")
        out += self._close_part()
        return out, message_item(self._id, self._parts, status)

    def _place(self) -> dict[str, Any]:
        return {**self._at, "content_index": len(self._parts)}

    def _switch(self, kind: str) -> bytes:
        if self._open == kind:
            return b""
        out = self._close_part()
        self._open = kind
        part = text_part("") if kind == "output_text" else refusal_part("")
        return out + self._events.event("response.content_part.added", **self._place(), part=part)

    def _close_part(self) -> bytes:
        if self._open is None:
            return b""
        text = "".join(self._text)
        if self._open == "output_text":
            part = {**text_part(text), "logprobs": self._logprobs}
            done = self._events.event(
                "response.output_text.done", **self._place(), text=text, logprobs=self._logprobs
            )
        else:
            part = refusal_part(text)
            done = self._events.event("response.refusal.done", **self._place(), refusal=text)
        out = done + self._events.event("response.content_part.done", **self._place(), part=part)
        self._parts.append(part)
        self._open, self._text, self._logprobs = None, [], []
        return out


class _Call:
    """A call under way. It begins, and has a place, when its name is known."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.name = ""
        self.arguments: list[str] = []
        self.place = _NOWHERE


class ResponsesFromChat:
    """The outer half of a chain towards a client of the Responses format.

    Attributes:
        response: the response object as it ended; None before.
        failure: see `ClientStream`.
    """

    def __init__(self, echo: Echo, response_id: str, created: int, model: str) -> None:
        self.response: dict[str, Any] | None = None
        self._echo = echo
        self._head = Head(response_id, created, model)
        self._parser = sse.Parser()
        self._events = Events()
        self._begun = False
        self._output: dict[int, Item] = {}
        self._items = 0
        self._part: tuple[int, _Reasoning | _Message] | None = None
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}
        self._call_ids: set[str] = set()
        self._end: Ending | None = None
        self._reasoned = self._spoke = self._called = False
        self.failure: ErrorDetail | None = None
        self._usage: ChatUsage | None = None
        self._characters = 0

    def feed(self, piece: bytes) -> bytes:
        """See `ClientStream`."""
        out = []
        for event in self._parser.feed(piece):
            if event.data == sse.DONE or self.failure is not None:
                continue
            try:
                chunk = mended(_chunks, event.data.replace(b"\n", b" "))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self.failure = _UNREADABLE  # told in the tail, which is no success then
            else:
                out.append(self._take(chunk))
        return b"".join(out)

    def tail(self) -> bytes:
        """The closing event, with the whole response."""
        if self.failure is not None:
            return self.error(self.failure)
        out = self._begin()
        end = self._end or ending(None)
        out += self._conclude(end)
        self.response = self._object(end, self._told_usage())
        return out + self._events.event(f"response.{end.status}", response=self.response)

    def error(self, detail: ErrorDetail) -> bytes:
        """See `ClientStream`. What was generated until now stays in the response."""
        out = self._begin()
        number = self._events.next
        self._finish(Ending("incomplete", "cut"))  # for the items only: clients see no end of them
        self._events.next = number
        self.response = self._object(Ending("failed"), self._told_usage(), detail)
        return out + self._events.failure(self.response, detail)

    def _object(
        self, end: Ending, usage: dict[str, Any] | None, error: ErrorDetail | None = None
    ) -> dict[str, Any]:
        output = [self._output[place] for place in sorted(self._output)]
        return response_object(self._echo, self._head, output, end, usage, error)

    def _told_usage(self) -> dict[str, Any]:
        return usage_object(self._usage, self._echo.prompt_characters, self._characters)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        response = self._object(_STARTED, None)
        return self._events.event("response.created", response=response) + self._events.event(
            "response.in_progress", response=response
        )

    def _take(self, chunk: _Chunk) -> bytes:
        if chunk.service_tier is not None:
            self._head = self._head._replace(service_tier=chunk.service_tier)
        if chunk.usage is not None:
            self._usage = chunk.usage
        out = [self._begin()]
        for choice in chunk.choices or []:
            if choice.index == 0:
                out.append(self._take_choice(choice))
        return b"".join(out)

    def _take_choice(self, choice: _Choice) -> bytes:
        delta = choice.delta or _Delta()
        out = []
        reasoning, blocks = delta.reasoning_content or delta.reasoning, delta.thinking_blocks
        if reasoning or blocks:
            out.append(self._reason(reasoning or "", blocks or []))
        if delta.content:
            told = (choice.logprobs.content if choice.logprobs is not None else None) or []
            begun, message = self._message()
            out += [begun, message.add_text(delta.content, told)]
        if delta.refusal:
            begun, message = self._message()
            out += [begun, message.add_refusal(delta.refusal)]
        self._characters += sum(map(len, filter(None, (reasoning, delta.content, delta.refusal))))
        out += [self._call(piece) for piece in delta.tool_calls or []]
        if choice.finish_reason and self._end is None:
            self._end = ending(choice.finish_reason)
            out.append(self._conclude(self._end))
        return b"".join(out)

    def _place(self) -> int:
        self._items += 1
        return self._items - 1

    def _reason(self, text: str, blocks: list[dict[str, Any]]) -> bytes:
        self._reasoned = True
        if self._part is not None and isinstance(self._part[1], _Reasoning):
            return self._part[1].add(text, blocks)
        out, place = self._close_part(), self._place()
        own = item_id("reasoning", self._head.id, place)
        reasoning = _Reasoning(self._events, self._echo, own, place)
        self._part = (place, reasoning)
        return out + reasoning.begin() + reasoning.add(text, blocks)

    def _message(self) -> tuple[bytes, _Message]:
        """The message that is open, or a new one and the events of its beginning."""
        self._spoke = True
        if self._part is not None and isinstance(self._part[1], _Message):
            return b"", self._part[1]
        out, place = self._close_part(), self._place()
        message = _Message(self._events, item_id("message", self._head.id, place), place)
        self._part = (place, message)
        return out + message.begin(), message

    def _call(self, piece: ToolCall) -> bytes:
        call = self._call_of(piece)
        function = piece.function
        if function is None:
            return b""
        call.name = call.name or function.name or ""
        text = function.arguments or ""
        self._characters += len(text)
        if text:
            call.arguments.append(text)
        if call.place == _NOWHERE:
            return self._open_call(call) if call.name else b""
        return self._arguments(call, text)

    def _call_of(self, piece: ToolCall) -> _Call:
        """The call that a piece belongs to. Some upstreams leave the index out, or use one index
        for several calls; a new id is a new call then."""
        index = piece.index
        if index is None:
            index = len(self._slots) - (0 if piece.id or not self._slots else 1)
        call = self._slots.get(index)
        if call is None or (piece.id and call.call_id and piece.id != call.call_id):
            call = self._slots[index] = _Call(piece.id or "")
            self._calls.append(call)
            self._called = True
        call.call_id = call.call_id or piece.id or ""
        return call

    def _open_call(self, call: _Call) -> bytes:
        out, place = self._close_part(), self._place()
        call.place = place
        call.call_id = unique_call_id(call.call_id, self._call_ids, self._head.id, place)
        called = self._echo.called.get(call.name, Called(call.name))
        item = empty_call_item(Spoken(call.call_id, call.name, ""), called, self._head.id, place)
        out += self._events.event("response.output_item.added", output_index=place, item=item)
        return out + self._arguments(call, "".join(call.arguments))

    def _arguments(self, call: _Call, text: str) -> bytes:
        """A custom tool's text is inside of its arguments, and comes when they are whole."""
        called = self._echo.called.get(call.name)
        if not text or (called is not None and called.custom):
            return b""
        return self._events.event(
            "response.function_call_arguments.delta",
            item_id=item_id("function_call", self._head.id, call.place),
            output_index=call.place,
            delta=text,
        )

    def _conclude(self, end: Ending) -> bytes:
        """The answer is whole: everything that is open ends."""
        out = b""
        if not self._spoke and needs_message(self._reasoned, self._called, end):
            out, _ = self._message()
        return out + self._finish(end)

    def _finish(self, end: Ending) -> bytes:
        out = b"".join([self._open_call(call) for call in self._calls if call.place == _NOWHERE])
        cut = self._items - 1 if end.incomplete else None
        out += self._close_part(cut)
        out += b"".join([self._finish_call(call, end, cut) for call in self._calls])
        self._calls, self._slots = [], {}
        return out

    def _close_part(self, cut: int | None = None) -> bytes:
        """The open part ends.

        Args:
            cut: the place of the item that was cut, if one was.
        """
        if self._part is None:
            return b""
        place, part = self._part
        self._part = None
        out, item = part.finish("incomplete" if place == cut else "completed")
        return out + self._item_done(place, item)

    def _finish_call(self, call: _Call, end: Ending, cut: int | None) -> bytes:
        spoken = Spoken(call.call_id, call.name, "".join(call.arguments))
        item = call_item(spoken, self._echo, self._head.id, call.place, end)
        if call.place == cut:
            item["status"] = end.status
        at = {"item_id": item["id"], "output_index": call.place}
        custom = item["type"] == "custom_tool_call"
        whole = item["input" if custom else "arguments"]
        if custom:
            kind, done = "response.custom_tool_call_input", {"input": whole}
        else:
            kind = "response.function_call_arguments"
            done = {"name": item["name"], "arguments": whole}
        out = b""
        if whole and (custom or not call.arguments):
            out = self._events.event(f"{kind}.delta", **at, delta=whole)
        out += self._events.event(f"{kind}.done", **at, **done)
        return out + self._item_done(call.place, item)

    def _item_done(self, place: int, item: Item) -> bytes:
        self._output[place] = item
        return self._events.event("response.output_item.done", output_index=place, item=item)
