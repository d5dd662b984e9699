"""`model_used` in the bodies of answers to `auto`: which model it was that answered.

It is put into the bytes, and nothing else of them changes: into a whole answer as its last member,
into a stream in its first event.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

_DATA = b"data: {"

#: How answers end: the last byte of a member, and the object's.
_ENDS = frozenset(b"%c}" % last for last in b'"]}0123456789el')


def in_answer(body: bytes, model: str | None) -> bytes:
    """A JSON answer that says which model it is from; as it is where none is given."""
    if model is None:
        return body
    if body[-2:] in _ENDS:
        return b"".join((body[:-1], b",", _member(model), b"}"))
    end = body.rfind(b"}")
    if end < 0:
        return body
    head = body[:end]
    separator = b"" if head.rstrip().endswith(b"{") else b","
    return b"".join((head, separator, _member(model), body[end:]))


def in_events(head: bytes, model: str | None) -> bytes:
    """The beginning of a stream, whose first event says it; as it is where no model is given."""
    if model is None:
        return head
    at = 0 if head.startswith(_DATA) else head.find(b"\n" + _DATA) + 1
    if at == 0 and not head.startswith(_DATA):
        return head
    at += len(_DATA)
    separator = b"" if head[at : at + 1] == b"}" else b","
    return b"%s%s%s%s" % (head[:at], _member(model), separator, head[at:])


@lru_cache
def _member(model: str) -> bytes:
    return b'"model_used":' + msgspec.json.encode(model)
