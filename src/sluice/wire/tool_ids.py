"""Ids of tool calls, which a client sends back in its next request: as each side accepts them.

Towards Anthropic's clients they are mapped so that the upstream gets its own ids back: nothing has
to be remembered, and a prompt that is built from ids stays the same to the byte.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from sluice.wire.objects import RawObject, raw
from sluice.wire.request import Request, member

#: OpenAI's limit on their length.
LONGEST_ID = 40

_PLAIN = "toolu_p_"
_CODED = "toolu_q_"
_SAFE = re.compile(r"[A-Za-z0-9_-]+")
#: A member with an id over the limit; escapes make a text longer, never shorter.
_LONG = re.compile(rb'"(?:id|tool_call_id)"\s*:\s*"[^"]{%d}' % (LONGEST_ID + 1))


def toolu_id(chat_id: str) -> str:
    """A chat upstream's tool call id as Anthropic's clients and API accept ids."""
    if _SAFE.fullmatch(chat_id):
        return _PLAIN + chat_id
    return _CODED + base64.urlsafe_b64encode(chat_id.encode()).rstrip(b"=").decode()


def chat_tool_id(tool_id: str) -> str:
    """The id under which a chat upstream knows a tool call: its own where `toolu_id` made this
    one, else the id as it is."""
    if tool_id.startswith(_PLAIN):
        original = tool_id.removeprefix(_PLAIN)
    elif tool_id.startswith(_CODED):
        code = tool_id.removeprefix(_CODED)
        try:
            original = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).decode()
        except (binascii.Error, ValueError):
            return tool_id
    else:
        return tool_id
    # An id that only looks like ours is foreign: two ids must never become one.
    return original if original and toolu_id(original) == tool_id else tool_id


def short_id(tool_id: str) -> str:
    """An id as OpenAI takes it: where it is too long, always the same short one."""
    if len(tool_id) <= LONGEST_ID:
        return tool_id
    return "call_" + hashlib.sha256(tool_id.encode(errors="replace")).hexdigest()[:32]


def with_short_ids(request: Request) -> Request:
    """A chat request whose calls and results have ids as OpenAI takes them; the rest stays as it
    is, to the byte.

    Raises:
        InvalidRequest: `messages` can't be read.
    """
    if _LONG.search(bytes(request.members.get("messages", b""))) is None:
        return request
    messages = member(request.members, "messages", list[RawObject])
    for message in messages:
        calls = member(message, "tool_calls", list[RawObject]) or []
        for call in calls:
            _shorten(call, "id")
        if calls:
            message["tool_calls"] = raw(calls)
        _shorten(message, "tool_call_id")
    return request.with_member("messages", messages)


def _shorten(members: RawObject, name: str) -> None:
    ident = member(members, name, str)
    if ident is not None and len(ident) > LONGEST_ID:
        members[name] = raw(short_id(ident))
