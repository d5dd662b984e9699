"""vLLM's former members for guided decoding, which it has come to ignore without a word, as its
present `structured_outputs`."""

from __future__ import annotations

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import RawObject, raw
from sluice.wire.request import Request

#: By the former name, the one inside of `structured_outputs`.
_PRESENT = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
}
#: A matter of the engine's start by now.
_BACKEND = "guided_decoding_backend"
_FORMER = frozenset((*_PRESENT, _BACKEND))


def with_structured_outputs(request: Request) -> Request:
    """A request to vLLM whose output is constrained as its former members ask.

    Raises:
        InvalidRequest: it has `structured_outputs` as well, and one of both would be lost.
    """
    if _FORMER.isdisjoint(request.members):
        return request
    asked: RawObject = {}
    members = dict(request.members)
    for name in request.members.keys() & _FORMER:
        value = members.pop(name)
        if name != _BACKEND and bytes(value) != b"null":
            asked[_PRESENT[name]] = value
            former = name
    if asked:
        if bytes(members.get("structured_outputs", b"null")) != b"null":
            what = f"`{former}` is the former name of what `structured_outputs` asks; give one"
            raise InvalidRequest(what, former)
        members["structured_outputs"] = raw(asked)
    return msgspec.structs.replace(request, members=members)
