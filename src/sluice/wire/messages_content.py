"""The conversation of a Messages request as chat messages.

Anthropic's turns are lists of blocks; chat has roles for what blocks are there. Tool results
become messages of their own, directly after the calls that they answer and before what the user
says beside them; images and documents of results, for which tool messages have no place, go into
the user's message after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_answer import OWN_SIGNATURE
from sluice.wire.objects import RawObject, encode, mended
from sluice.wire.tool_ids import chat_tool_id

T = TypeVar("T")

_NULL = msgspec.Raw(b"null")

#: Claude Code's first system block: it differs from request to request, and the prompt cache of
#: a model that reads it would never be hit.
ATTRIBUTION = "x-anthropic-billing-header"

_PLACE = re.compile(r" - at `\$(.*)`$")


class Source(msgspec.Struct):
    """Where the content of an image or a document is."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[Block] | None = None


class Block(msgspec.Struct):
    """A content block, with what any of the kinds that can be translated has."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NULL
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None


class Turn(msgspec.Struct):
    """One of `messages`."""

    role: str
    content: str | list[Block]


_turns: msgspec.json.Decoder[list[Turn]] = msgspec.json.Decoder(list[Turn])
_system: msgspec.json.Decoder[str | list[Block]] = msgspec.json.Decoder(str | list[Block])


def read_part(members: RawObject, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """A member decoded; None where it is absent or null.

    Raises:
        InvalidRequest: it has another form; names the place.
    """
    text = bytes(members.get(name, _NULL))
    if text == b"null":
        return None
    try:
        return mended(decoder, text)
    except msgspec.DecodeError as error:
        place = _PLACE.search(str(error))
        where = name + (place[1] if place else "")
        reason = _PLACE.sub("", str(error))
        raise InvalidRequest(f"`{where}` is invalid: {reason}", where) from None


def chat_messages(
    members: RawObject, *, vllm: bool, system_first: bool = False
) -> list[dict[str, Any]]:
    """`system` and `messages` as chat messages.

    Args:
        members: of a checked Messages request.
        vllm: the upstream is vLLM, which takes reasoning back and no files.
        system_first: the model's chat template takes a system message at the start only.

    Raises:
        InvalidRequest: something that chat has no form for; names the place.
    """
    conversation = _Conversation(vllm)
    conversation.system(read_part(members, "system", _system), "system")
    turns = read_part(members, "messages", _turns) or []
    for position, turn in enumerate(turns):
        where = f"messages[{position}].content"
        if turn.role == "system":
            conversation.system(turn.content, where)
        elif turn.role == "assistant":
            conversation.assistant(turn.content, where)
        else:
            conversation.user(turn.content, where)
    messages = conversation.close()
    return _with_system_first(messages) if system_first else messages


def _with_system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n".join(texts)}, *others] if texts else others


class _Conversation:
    """Chat messages in the making."""

    def __init__(self, vllm: bool) -> None:
        self._vllm = vllm
        self._messages: list[dict[str, Any]] = []
        #: User messages in a row: tool results of any of them go before all.
        self._users: list[dict[str, Any]] = []
        self._open_calls: set[str] = set()

    def system(self, content: str | list[Block] | None, where: str) -> None:
        """Instructions, at the start or in between, where they stay."""
        self._settle_users()
        if isinstance(content, str) and content.startswith(ATTRIBUTION):
            content = content.partition("\n")[2]
        texts: list[str] = []
        for block, place in _placed(content or "", where):
            if block.type != "text":
                _unsupported(block, place)
            if not (block.text or "").startswith(ATTRIBUTION):
                texts.append(block.text or "")
        if text := "\n".join(filter(None, texts)):
            self._messages.append({"role": "system", "content": text})

    def user(self, content: str | list[Block], where: str) -> None:
        """A user's turn: results of tools, and what the user says."""
        said: list[dict[str, Any]] = []
        attached: list[dict[str, Any]] = []
        for block, place in _placed(content, where):
            if block.type == "tool_result":
                attached += self._tool_result(block, place)
            else:
                said += self._parts(block, place)
        if parts := attached + said:
            only = parts[0].get("text") if len(parts) == 1 else None
            self._users.append({"role": "user", "content": parts if only is None else only})

    def assistant(self, content: str | list[Block], where: str) -> None:
        """The model's turn."""
        self._settle_users()
        text = ""
        reasoning = ""
        calls: list[dict[str, Any]] = []
        for block, place in _placed(content, where):
            if block.type == "text":
                text += block.text or ""
            elif block.type == "thinking":
                reasoning += block.thinking or ""
            elif block.type == "tool_use":
                calls.append(self._tool_call(block, place))
            elif block.type != "redacted_thinking":
                _unsupported(block, place)
        reasoning = reasoning if self._vllm else ""
        if not (text or reasoning or calls):
            return
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if reasoning:
            message["reasoning"] = reasoning
        if not calls:
            message["content"] = text
        else:
            message["tool_calls"] = calls
        self._add_assistant(message)

    def close(self) -> list[dict[str, Any]]:
        """The messages.

        Raises:
            InvalidRequest: a call without a result, or nothing at all.
        """
        self._settle_users()
        self._check_answered()
        if not any(message["role"] != "system" for message in self._messages):
            raise InvalidRequest("`messages` must hold some content", "messages")
        return self._messages

    def _add_assistant(self, message: dict[str, Any]) -> None:
        """Calls of turns in a row are one message: the results answer them all together."""
        last = self._messages[-1] if self._messages else {}
        if last.get("role") == "assistant" and "tool_calls" in last:
            last["tool_calls"] += message.get("tool_calls", [])
            text = (last["content"] or "") + (message["content"] or "")
            last["content"] = text or None
        else:
            self._messages.append(message)

    def _settle_users(self) -> None:
        """The user's messages in a row have ended."""
        if self._users or (self._messages and self._messages[-1]["role"] == "tool"):
            self._check_answered()
        self._messages += self._users
        self._users = []

    def _check_answered(self) -> None:
        if self._open_calls:
            names = ", ".join(sorted(self._open_calls))
            raise InvalidRequest(
                f"`tool_use` ids without a `tool_result` directly after them: {names}", "messages"
            )

    def _tool_call(self, block: Block, where: str) -> dict[str, Any]:
        name = _required(block.id, f"{where}.id")
        self._open_calls.add(name)
        arguments = bytes(block.input)
        if not arguments.startswith(b"{"):
            raise InvalidRequest(f"`{where}.input` must be an object", f"{where}.input")
        return {
            "id": chat_tool_id(name),
            "type": "function",
            "function": {
                "name": _required(block.name, f"{where}.name"),
                "arguments": arguments.decode(),
            },
        }

    def _tool_result(self, block: Block, where: str) -> list[dict[str, Any]]:
        """Add the tool message; gives what has no place in it."""
        name = _required(block.tool_use_id, f"{where}.tool_use_id")
        if name not in self._open_calls:
            raise InvalidRequest(
                f"`{where}.tool_use_id`: no `tool_use` with id {name} waits for a result",
                f"{where}.tool_use_id",
            )
        self._open_calls.discard(name)
        texts: list[str] = []
        attached: list[dict[str, Any]] = []
        for inner, place in _placed(_content(block, where), f"{where}.content"):
            for part in self._parts(inner, place):
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    attached.append(part)
        if attached and not texts:
            texts.append("(see the next message)")
        text = "\n".join(texts)
        self._messages.append(
            {
                "role": "tool",
                "tool_call_id": chat_tool_id(name),
                "content": f"Error: {text}" if block.is_error else text,
            }
        )
        return attached

    def _parts(self, block: Block, where: str) -> list[dict[str, Any]]:
        """A block of a user's, or of a tool's result, as content parts."""
        if block.type == "text":
            return _text(block.text)
        if block.type == "image":
            return [{"type": "image_url", "image_url": {"url": _image_url(block, where)}}]
        if block.type == "document":
            return self._document(block, where)
        if block.type == "search_result":
            found = [inner.text for inner, _ in _placed(_content(block, where), where)]
            source = block.source if isinstance(block.source, str) else None
            return _text("\n".join(filter(None, [block.title, source, *found])))
        if block.type == "tool_reference":  # all tools are offered to chat from the start
            return _text(f"The tool {block.tool_name} is available.")
        _unsupported(block, where)

    def _document(self, block: Block, where: str) -> list[dict[str, Any]]:
        source = _source(block, where)
        head = _text("\n".join(filter(None, [block.title, block.context])))
        if source.type == "text":
            return _text("\n".join(filter(None, [block.title, block.context, source.data])))
        if source.type == "content":
            inside = _placed(source.content or "", f"{where}.source.content")
            return head + [part for inner, place in inside for part in self._parts(inner, place)]
        if source.type != "base64" or source.media_type != "application/pdf" or self._vllm:
            raise InvalidRequest(
                f"`{where}.source`: this model's upstream takes no such document",
                f"{where}.source",
                "unsupported_parameter",
            )
        data = f"data:application/pdf;base64,{_required(source.data, f'{where}.source.data')}"
        file = {"filename": block.title or "document.pdf", "file_data": data}
        return [*_text(block.context), {"type": "file", "file": file}]


def _placed(content: str | list[Block], where: str) -> Iterable[tuple[Block, str]]:
    """The blocks of a content, each with its place in the request."""
    if isinstance(content, str):
        return [(Block("text", text=content), where)]
    return ((block, f"{where}[{position}]") for position, block in enumerate(content))


def _content(block: Block, where: str) -> str | list[Block]:
    if isinstance(block.content, dict):
        raise InvalidRequest(f"`{where}.content` must be text or blocks", f"{where}.content")
    return block.content or []


def _text(text: str | None) -> list[dict[str, Any]]:
    """A text part; none for an empty text, which upstreams refuse."""
    return [{"type": "text", "text": text}] if text else []


def _source(block: Block, where: str) -> Source:
    if not isinstance(block.source, Source):
        raise InvalidRequest(f"`{where}.source` must be an object", f"{where}.source")
    return block.source


def _image_url(block: Block, where: str) -> str:
    source = _source(block, where)
    if source.type == "url":
        return _required(source.url, f"{where}.source.url")
    if source.type == "base64":
        kind = _required(source.media_type, f"{where}.source.media_type")
        return f"data:{kind};base64,{_required(source.data, f'{where}.source.data')}"
    raise InvalidRequest(
        f"`{where}.source`: images of type {source.type} can't be sent to this model's upstream",
        f"{where}.source",
        "unsupported_parameter",
    )


def _required(value: str | None, where: str) -> str:
    if not value:
        raise InvalidRequest(f"`{where}` is required", where, "missing_required_parameter")
    return value


def _unsupported(block: Block, where: str) -> NoReturn:
    raise InvalidRequest(
        f"`{where}`: content of type {block.type} is not supported here by this model's upstream",
        where,
        "unsupported_parameter",
    )


_light_turns = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_light_blocks = msgspec.json.Decoder(list[msgspec.Raw])


class _Signed(msgspec.Struct):
    type: str = ""
    signature: str | None = None


_signed = msgspec.json.Decoder(_Signed)


def without_own_thinking(members: RawObject) -> RawObject:
    """The members as Anthropic accepts them: without thinking that it never signed, from turns
    that another upstream answered. Everything else stays as it is, to the byte.

    Raises:
        InvalidRequest: `messages` can't be read.
    """
    if OWN_SIGNATURE.encode() not in bytes(members.get("messages", _NULL)):
        return members
    turns = read_part(members, "messages", _light_turns) or []
    kept = [turn for turn in turns if _drop_own(turn)]
    return {**members, "messages": msgspec.Raw(encode(kept))}


def _drop_own(turn: dict[str, msgspec.Raw]) -> bool:
    """Take our thinking out of a turn; False where nothing is left of it."""
    content = bytes(turn.get("content", _NULL))
    if not content.startswith(b"[") or OWN_SIGNATURE.encode() not in content:
        return True
    try:
        blocks = _light_blocks.decode(content)
        kept = [block for block in blocks if not _is_own(mended(_signed, bytes(block)))]
    except msgspec.DecodeError:
        return True  # Anthropic will say what is wrong with it
    turn["content"] = msgspec.Raw(encode(kept))
    return bool(kept)


def _is_own(block: _Signed) -> bool:
    return block.type == "thinking" and block.signature == OWN_SIGNATURE
