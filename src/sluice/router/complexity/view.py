"""What the scorer looks at of a request.

Chat requests, Messages and Responses requests and legacy completions are read alike, from their
members as they came. Long prompts are cut before anything is decoded, so that reading them
takes no longer than reading a page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from typing_extensions import Buffer

from sluice.wire.objects import RawObject

#: Characters kept of a long text: its beginning and its end, where the task mostly stands. What
#: is scored of any prompt is no more than this, which bounds the cost.
HEAD, TAIL = 250, 450
#: Beyond so many bytes the messages aren't looked at one by one, which takes longer the longer
#: they are; only the end is, which is so long.
_LONG = 48_000
_END = 12_000
#: Bytes of the end in which is looked for who said what stands there.
_LATELY = 24_000
#: Where a message of the user begins. Quotes within strings are escaped: there it is not.
_USER = re.compile(rb'\{\s*+(?:"type"\s*+:\s*+"message"\s*+,\s*+)?+"role"\s*+:\s*+"user"')
#: A message says in one of these members that it is not the user's, or the result of a tool.
_SPEAKER = re.compile(rb'"role"\s*+:\s*+"(?!user")|"tool_result"|"function_call_output"')
_SPEAKERS = (b'"role"', b'"tool_result"', b'"function_call_output"')
#: The type of a part that is an image, in every format.
_IMAGE = re.compile(rb'"type"\s*+:\s*+"(?:input_)?+image(?:_url)?+"')
#: Bytes of JSON that hold `HEAD` or `TAIL` characters, the longest escapes aside.
_PIECE = 4_000
#: The same where there are no `\u` escapes, which leaves four bytes a character at most.
_PLAIN_HEAD, _PLAIN_TAIL = 4 * HEAD + 16, 4 * TAIL + 16
_SYSTEM_HEAD = 256
#: The text of a part, which may be cut.
_TEXT_BEGUN = re.compile(rb'"text"\s*+:\s*+"((?:[^"\\]|\\.)*+)')
#: Bytes in which the user's first message is looked for. What hasn't ended by then is cut there.
_BEGINNING = 65_536
#: Bytes at either end of a message that are kept of how a conversation begins: to hash all of a
#: long one would take longer than all else that a request costs.
_OPENING = 2_048
#: The mark up to which an upstream is to cache, and how many bytes from the end it is looked for.
_CACHE_MARK = re.compile(rb'\s*+,\s*+"cache_control"\s*+:\s*+\{[^{}]*+\}')
_MARKED_END = 128
_MOST_TURNS = 64
#: A last message as short as "go on" says little; the one before it is read with it.
_SHORT = 40
_MOST_LOOKED_AT = 8
#: Of a message in parts: how many of its last texts are read, besides the first.
_LAST_TEXTS = 3

_NOTHING = msgspec.Raw(b"")
#: With which a JSON string and a list begin.
_QUOTE, _LIST = b'"['


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """A request, as far as it says how hard it is.

    Attributes:
        text: of the turn that is to be answered: the last user message, its middle cut out
            where it is long; after a very short one, the user message before it too. Behind
            results of tools alone it is the user's first message.
        length: bytes of the whole prompt as JSON.
        system: the beginning of the system message; it tells applications apart.
        turns: messages from the user until now, one at least; no more than 64 are counted.
        tools: whether the request offers tools.
        schema: whether the answer must be JSON.
        images: whether there are images in the prompt; of a long one, near its ends.
        opening: how the conversation begins, which each of its requests repeats: the JSON up to
            the end of the user's first message, or a prompt that is one text. Of long ones the
            length and both ends. It is not scored.
        continued: whether more follows: the conversation has begun before this request.
    """

    text: str
    length: int = 0
    system: str = ""
    turns: int = 1
    tools: bool = False
    schema: bool = False
    images: bool = False
    opening: bytes = b""
    continued: bool = False

    @classmethod
    def of_prompt(cls, prompt: str) -> RequestView:
        """The view of a chat request with this one user message."""
        return cls(cut(prompt), len(prompt.encode("utf-8", "replace")) + _ENVELOPE)


class _Turn(msgspec.Struct):
    """A message of a conversation, as far as is looked at: its content as it came."""

    role: str = ""
    content: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    text: msgspec.Raw = _NOTHING


class _Beginning(NamedTuple):
    """How a conversation begins.

    Attributes:
        opening, continued: see `RequestView`.
        first: the user's first message, if it ends soon enough.
        head: the first message of all, if it does.
    """

    opening: bytes
    continued: bool = False
    first: memoryview = memoryview(b"")
    head: memoryview = memoryview(b"")


class _Format(msgspec.Struct):
    type: str = ""


class _Text(msgspec.Struct):
    format: _Format | None = None


_TURNS = msgspec.json.Decoder(list[_Turn])
_PARTS = msgspec.json.Decoder(list[_Part])
_STRING = msgspec.json.Decoder(str)
_FORMAT = msgspec.json.Decoder(_Format)
_TEXT = msgspec.json.Decoder(_Text)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: For a value that more may follow. Of numbers nothing is asked, and some are too long for one.
_FIRST = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_BETWEEN = re.compile(r"[\s,]*+")
#: Length of `[{"role":"user","content":""}]`.
_ENVELOPE = 30


def read_view(members: RawObject) -> RequestView:
    """The view of a request's members (`wire.request.Request.members`).

    Never raises: what can't be read is not seen, and is the upstream's to refuse.
    """
    prompt = _prompt(members)
    begun = _begun(prompt)
    turns = _turns(prompt, begun)
    spoken = [turn for turn in turns if turn.role == "user"]
    tools = members.get("tools")
    return RequestView(
        _last_turns(spoken) or _last_turns(_messages(b"[%b]" % bytes(begun.first))),
        len(prompt),
        _system(members, turns if len(prompt) <= _LONG else _messages(b"[%b]" % bytes(begun.head))),
        min(len(spoken), _MOST_TURNS) or 1,
        tools is not None and len(memoryview(tools)) > len("[]"),
        _wants_json(members),
        _has_images(prompt),
        begun.opening,
        begun.continued,
    )


def cut(text: str) -> str:
    """A text without its middle, where it is long."""
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n{text[-TAIL:]}"


def _prompt(members: RawObject) -> memoryview:
    """The prompt under any operation's name, not copied: it may be megabytes."""
    for name in ("messages", "input", "prompt"):
        if name in members:
            return memoryview(members[name])
    return memoryview(b"")


def _turns(prompt: memoryview, begun: _Beginning) -> list[_Turn]:
    """The messages; a bare text is one from the user."""
    if prompt and prompt[0] == _QUOTE:
        return [_Turn("user", msgspec.Raw(prompt))]
    return _last_messages(prompt, begun) if len(prompt) > _LONG else _messages(prompt)


def _messages(raw: Buffer) -> list[_Turn]:
    """A list of messages; none where it can't be read."""
    try:
        return _TURNS.decode(raw)
    except _UNREADABLE:
        return []


def _last_messages(prompt: memoryview, begun: _Beginning) -> list[_Turn]:
    """The messages at the end of many, from a user's on; none where the end is not of a user's,
    and there is a first one before it to read instead."""
    end = bytes(prompt[-_END:])
    # The first test is the cheap one.
    if b'"user"' in end and (user := _USER.search(end)):
        try:
            return _TURNS.decode(b"[" + end[user.start() :])
        except _UNREADABLE:
            pass
    if begun.first and begun.continued and _is_of_others(bytes(prompt[-_LATELY:])):
        return []
    # Where the last message begins isn't known; its last texts are, if it is in parts, or its
    # end, without the closing brackets.
    if texts := _last_texts(end):
        return [_Turn("user", msgspec.Raw(b'"%s"' % b"\\n".join(texts)))]
    text = end[_whole(end, len(end) - _PIECE) :].rstrip(b" \n]}").removesuffix(b'"')
    return [_Turn("user", msgspec.Raw(b'"%s"' % text))]


def _last_texts(end: bytes) -> list[bytes]:
    """The last texts of parts that a prompt ends with, looked for from behind: there may be
    hundreds."""
    texts: list[bytes] = []
    at = len(end)
    while len(texts) < _LAST_TEXTS and (at := end.rfind(b'"text"', 0, at)) >= 0:
        if text := _TEXT_BEGUN.match(end, at):
            texts.insert(0, text[1])
    return texts


def _is_of_others(end: bytes) -> bool:
    """Whether a prompt ends with a message that is not the user's, or with results of tools."""
    return _SPEAKER.match(end, max(map(end.rfind, _SPEAKERS))) is not None


def _last_turns(spoken: Sequence[_Turn]) -> str:
    """The text that is to be answered."""
    texts: list[str] = []
    characters = 0
    for turn in spoken[: -_MOST_LOOKED_AT - 1 : -1]:
        text = _content(turn.content)
        if text:  # results of tools have none
            texts.append(text)
            characters += len(text)
        if characters >= _SHORT:
            break
    return cut("\n".join(texts[1::-1]))


def _has_images(prompt: memoryview) -> bool:
    """Whether a prompt has images; of a long one only the ends are looked at."""
    if not prompt or prompt[0] != _LIST:
        return False
    if len(prompt) <= _LONG:
        return _IMAGE.search(prompt) is not None
    ends = prompt[:_BEGINNING], prompt[-_END:]
    return any(_IMAGE.search(end) is not None for end in ends)


def _content(content: Buffer) -> str:
    """Text of a message's content, which is a string or a list of parts."""
    raw = memoryview(content)
    if not raw or raw[0] != _LIST:
        return _string(raw)
    try:
        parts = _PARTS.decode(raw)
    except _UNREADABLE:
        return ""
    return "\n".join(map(_string, _texts(parts)))


def _texts(parts: Sequence[_Part]) -> list[memoryview]:
    """The first text of a message's parts and the last ones. Those between aren't looked at:
    there may be a thousand."""
    forth = range(len(parts))
    first = islice((at for at in forth if _has_text(parts[at])), 1)
    last = islice((at for at in reversed(forth) if _has_text(parts[at])), _LAST_TEXTS)
    return [memoryview(parts[at].text) for at in sorted({*first, *last})]


def _has_text(part: _Part) -> bool:
    return len(memoryview(part.text)) > len('""')


def _string(raw: memoryview) -> str:
    """A JSON string; of a long one its beginning and its end. Anything else is empty."""
    if not raw or raw[0] != _QUOTE:
        return ""
    if len(raw) > 2 * _PIECE:
        head, tail = bytes(raw[1 : _PIECE + 1]), bytes(raw[-_PIECE - 1 : -1])
        if b"\\u" not in head:
            head = head[: _whole(head, _PLAIN_HEAD)]
        if b"\\u" not in tail:
            tail = tail[_whole(tail, _PIECE - _PLAIN_TAIL) :]
        return f"{_decoded(head)[:HEAD]}\n{_decoded(tail)[-TAIL:]}"
    try:
        return _STRING.decode(raw)
    except _UNREADABLE:
        return _decoded(bytes(raw[1:-1]))


def _whole(inner: bytes, at: int) -> int:
    """Where the inside of a JSON string can be cut, at a place or as soon behind it as is no part
    of a character or of a short escape."""
    before = inner[:at]
    if (len(before) - len(before.rstrip(b"\\"))) % 2:
        return at + 1
    while at < len(inner) and 0x80 <= inner[at] < 0xC0:
        at += 1
    return at


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


def _system(members: RawObject, turns: Sequence[_Turn]) -> str:
    """The beginning of the system message, under any format's name."""
    given = members.get("system") or members.get("instructions")
    if given is None and turns and turns[0].role in ("system", "developer"):
        given = turns[0].content
    if given is None:
        return ""
    parts = memoryview(given)
    if len(parts) > _LONG and parts[0] == _LIST:
        first = _TEXT_BEGUN.search(parts[:_PIECE])
        return _decoded(first[1])[:_SYSTEM_HEAD] if first else ""
    return _content(given)[:_SYSTEM_HEAD]


def _begun(prompt: memoryview) -> _Beginning:
    """How a conversation begins, and whether it goes on from there."""
    if not prompt or prompt[0] != _LIST:
        return _Beginning(_ends(prompt))
    beginning = bytes(prompt[:_BEGINNING]).decode("latin-1")  # a character for each byte
    end = 1
    head = memoryview(b"")
    while True:
        between = _BETWEEN.match(beginning, end)
        start = between.end() if between else end
        if start < len(beginning) and beginning[start] != "{":  # the user has said nothing
            return _Beginning(_ends(prompt), head=head)
        try:
            message, end = _FIRST.raw_decode(beginning, start)
        except (ValueError, RecursionError):  # its end is further on
            return _begun_late(prompt, start, head)
        head = head or prompt[start:end]
        if message.get("role") == "user":
            first = prompt[start:end]
            opening = _ends(prompt[:start]) + _ends(_unmarked(first))
            return _Beginning(opening, beginning[end:].lstrip().startswith(","), first, head)


def _begun_late(prompt: memoryview, start: int, head: memoryview) -> _Beginning:
    """The same, where the message that begins here doesn't end in time. If it is not plainly the
    user's, as a huge system message, others begin alike: then the request stands for itself."""
    if _USER.match(prompt, start) is None:
        return _Beginning(_ends(prompt), head=head)
    end = bytes(prompt[max(_BEGINNING, len(prompt) - _END) :])
    opening = _ends(prompt[:start]) + _ends(prompt[start:_BEGINNING])
    return _Beginning(opening, b'"role"' in end, head=head)


def _unmarked(message: memoryview) -> memoryview:
    """A message without a cache mark at its end: clients move it on as a conversation does."""
    mark = _CACHE_MARK.search(message, max(len(message) - _MARKED_END, 0))
    if mark is None:
        return message
    return memoryview(bytes(message[: mark.start()]) + bytes(message[mark.end() :]))


def _ends(text: memoryview) -> bytes:
    """A text; of a long one its length, its beginning and its end."""
    if len(text) <= 2 * _OPENING:
        return bytes(text)
    return b"%d%b%b" % (len(text), bytes(text[:_OPENING]), bytes(text[-_OPENING:]))


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
