"""What the scorer looks at of a request.

Chat requests, Messages and Responses requests and legacy completions are read alike, from their
members as they came. Long prompts are cut before anything is decoded, so that reading them
takes no longer than reading a page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from sluice.wire.objects import RawObject

#: Characters kept of a long text: its beginning and its end, where the task mostly stands. What
#: is scored of any prompt is no more than this, which bounds the cost.
HEAD, TAIL = 250, 450
#: Beyond so many bytes the messages aren't looked at one by one, which takes longer the longer
#: they are; only the end is, which is so long.
_LONG = 48_000
_END = 12_000
#: Where a message of the user begins. Quotes within strings are escaped: there it is not.
_USER = re.compile(rb'\{\s*+"role"\s*+:\s*+"user"')
#: Bytes of JSON that hold `HEAD` or `TAIL` characters, the longest escapes aside.
_PIECE = 4_000
#: The same where there are no `\u` escapes, which leaves four bytes a character at most.
_PLAIN_HEAD, _PLAIN_TAIL = 4 * HEAD + 16, 4 * TAIL + 16
_SYSTEM_HEAD = 256
_MOST_TURNS = 64
#: A last message as short as "go on" says little; the one before it is read with it.
_SHORT = 40
_MOST_LOOKED_AT = 8

_NOTHING = msgspec.Raw(b"")


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """A request, as far as it says how hard it is.

    Attributes:
        text: of the turn that is to be answered: the last user message, its middle cut out
            where it is long; after a very short one, the user message before it too.
        length: bytes of the whole prompt as JSON.
        system: the beginning of the system message; it tells applications apart.
        turns: messages from the user until now, one at least; no more than 64 are counted.
        tools: whether the request offers tools.
        schema: whether the answer must be JSON.
        images: whether there are images in what was read.
    """

    text: str
    length: int = 0
    system: str = ""
    turns: int = 1
    tools: bool = False
    schema: bool = False
    images: bool = False

    @classmethod
    def of_prompt(cls, prompt: str) -> RequestView:
        """The view of a chat request with this one user message."""
        return cls(cut(prompt), len(prompt.encode("utf-8", "replace")) + _ENVELOPE)


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    type: str = ""
    text: msgspec.Raw = _NOTHING


class _Format(msgspec.Struct):
    type: str = ""


class _Text(msgspec.Struct):
    format: _Format | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])
_PARTS = msgspec.json.Decoder(list[_Part])
_STRING = msgspec.json.Decoder(str)
_FORMAT = msgspec.json.Decoder(_Format)
_TEXT = msgspec.json.Decoder(_Text)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: Length of `[{"role":"user","content":""}]`.
_ENVELOPE = 30


def read_view(members: RawObject) -> RequestView:
    """The view of a request's members (`wire.request.Request.members`).

    Never raises: what can't be read is not seen, and is the upstream's to refuse.
    """
    prompt = _first(members, ("messages", "input", "prompt"))
    messages = _messages(prompt)
    spoken = [message for message in messages if message.role == "user"][-_MOST_TURNS:]
    text, images = _last_turns(spoken)
    tools = members.get("tools")
    return RequestView(
        text,
        len(prompt),
        _system(members, messages),
        max(len(spoken), 1),
        tools is not None and len(memoryview(tools)) > len("[]"),
        _wants_json(members),
        images,
    )


def cut(text: str) -> str:
    """A text without its middle, where it is long."""
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n{text[-TAIL:]}"


def _first(members: RawObject, names: Sequence[str]) -> memoryview:
    """The first of the members that is there, not copied: it may be megabytes."""
    for name in names:
        if name in members:
            return memoryview(members[name])
    return memoryview(b"")


def _messages(prompt: memoryview) -> list[_Message]:
    """The messages; a bare text is one from the user."""
    if _begins(prompt, b'"'):
        return [_Message("user", msgspec.Raw(prompt))]
    if len(prompt) > _LONG:
        return _last_messages(bytes(prompt[-_END:]))
    try:
        return _MESSAGES.decode(prompt)
    except _UNREADABLE:
        return []


def _last_messages(end: bytes) -> list[_Message]:
    """The messages at the end of many, from a user's on."""
    # The first test is the cheap one.
    if b'"user"' in end and (begun := _USER.search(end)):
        try:
            return _MESSAGES.decode(b"[" + end[begun.start() :])
        except _UNREADABLE:
            pass
    # Where the last message begins isn't known; its end, without the closing brackets, is.
    text = end[-_PIECE:].rstrip(b' \n]}"')
    return [_Message("user", msgspec.Raw(b'"%s"' % text))]


def _last_turns(spoken: Sequence[_Message]) -> tuple[str, bool]:
    """The text that is to be answered, and whether images are in it."""
    texts: list[str] = []
    characters, images = 0, False
    for message in reversed(spoken[-_MOST_LOOKED_AT:]):
        text, seen = _content(message.content)
        images = images or seen
        if text:  # results of tools have none
            texts.append(text)
            characters += len(text)
        if characters >= _SHORT:
            break
    return cut("\n".join(reversed(texts[:2]))), images


def _content(content: msgspec.Raw) -> tuple[str, bool]:
    """Text of a message's content, which is a string or a list of parts."""
    raw = memoryview(content)
    if not _begins(raw, b"["):
        return _string(raw), False
    try:
        parts = _PARTS.decode(raw)
    except _UNREADABLE:
        return "", False
    images = any("image" in part.type for part in parts)
    texts = [text for part in parts if len(text := memoryview(part.text)) > len('""')]
    kept = texts if len(texts) <= 4 else [*texts[:1], *texts[-3:]]
    return "\n".join(map(_string, kept)), images


def _begins(raw: memoryview, sign: bytes) -> bool:
    return len(raw) > 0 and raw[0] == sign[0]


def _string(raw: memoryview) -> str:
    """A JSON string; of a long one its beginning and its end. Anything else is empty."""
    if not _begins(raw, b'"'):
        return ""
    if len(raw) > 2 * _PIECE:
        head, tail = bytes(raw[1 : _PIECE + 1]), bytes(raw[-_PIECE - 1 : -1])
        if b"\\u" not in head:
            head = head[:_PLAIN_HEAD]
        if b"\\u" not in tail:
            tail = tail[-_PLAIN_TAIL:]
        return f"{_decoded(head)[:HEAD]}\n{_decoded(tail)[-TAIL:]}"
    try:
        return _STRING.decode(raw)
    except _UNREADABLE:
        return _decoded(bytes(raw[1:-1]))


def _decoded(inner: bytes) -> str:
    """The inside of a JSON string that may be cut anywhere, in an escape or a character too."""
    for trim in range(13):  # two `\\uXXXX`, one of which was cut
        for piece in (inner[: len(inner) - trim], inner[trim:]):
            try:
                return _STRING.decode(b'"%s"' % piece)
            except _UNREADABLE:
                continue
    # Not the inside of one string: the end of messages of a long prompt.
    return inner.decode("utf-8", "replace").replace("\\n", "\n").replace('\\"', '"')


def _system(members: RawObject, messages: Sequence[_Message]) -> str:
    """The beginning of the system message, under any format's name."""
    raw = _first(members, ("system", "instructions"))
    if raw:
        return _content(msgspec.Raw(raw))[0][:_SYSTEM_HEAD]
    if messages and messages[0].role in ("system", "developer"):
        return _content(messages[0].content)[0][:_SYSTEM_HEAD]
    return ""


def _wants_json(members: RawObject) -> bool:
    try:
        if "response_format" in members:
            return _FORMAT.decode(members["response_format"]).type.startswith("json")
        if "text" in members:
            asked = _TEXT.decode(members["text"]).format
            return asked is not None and asked.type.startswith("json")
    except _UNREADABLE:
        return False
    return False
