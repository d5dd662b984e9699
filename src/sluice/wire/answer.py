"""A complete (not streamed) answer of the OpenAI dialect, made fit for the client."""

from __future__ import annotations

import msgspec

from sluice.wire.chat_repairs import repaired_choices
from sluice.wire.embeddings import Encoding, encode_items
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.objects import MalformedJSON, decode_object, encode, raw
from sluice.wire.usage import Usage, UsageBody, estimate_tokens

UNREADABLE = ErrorDetail(
    "the upstream's answer is not what its protocol promises", code="upstream_invalid_response"
)


_NULL = msgspec.Raw(b"null")
_decode_usage = msgspec.json.Decoder(UsageBody | None).decode


class Answer(msgspec.Struct, frozen=True):
    """A body for the client and the usage that it reports."""

    body: bytes
    usage: Usage


#: What chat and completions, embeddings, and moderations answer with.
_ANSWERS = ("choices", "data", "results")


def read_answer(
    body: bytes, model: str, prompt_characters: int, encoding: Encoding | None = None
) -> Answer | ErrorDetail:
    """Read an upstream's 200 answer.

    Args:
        body: as it came.
        model: the name that the client asked for.
        prompt_characters: length of the prompt, for an estimate where usage is missing.
        encoding: for embeddings, the encoding that the client asked for.

    Returns:
        The answer for the client, or what is wrong with it: an error under a 200, a body that
        is no answer.
    """
    try:
        members = decode_object(body)
        if "error" in members and bytes(members["error"]) != b"null":
            return read_error(body) or UNREADABLE
        if not any(name in members for name in _ANSWERS):
            return UNREADABLE
        changed = _rename(members, model)
        if (b'"tool_calls"' in body or b'"reasoning"' in body) and "choices" in members:
            repaired = repaired_choices(members["choices"])
            members["choices"] = repaired or members["choices"]
            changed = changed or repaired is not None
        usage = _usage(members)
        if encoding is not None and (data := encode_items(bytes(members["data"]), encoding)):
            members["data"] = msgspec.Raw(data)
            changed = True
    except (MalformedJSON, msgspec.DecodeError, KeyError, ValueError, RecursionError):
        return UNREADABLE
    if usage is None:
        usage = _estimate(members, prompt_characters)
    return Answer(encode(members) if changed else body, usage)


def _rename(members: dict[str, msgspec.Raw], model: str) -> bool:
    name = raw(model)
    if bytes(members.get("model", msgspec.Raw(b""))) == bytes(name):
        return False
    members["model"] = name
    return True


def _usage(members: dict[str, msgspec.Raw]) -> Usage | None:
    body = _decode_usage(members.get("usage", _NULL))
    return None if body is None else body.usage()


def _estimate(members: dict[str, msgspec.Raw], prompt_characters: int) -> Usage:
    generated = len(bytes(members["choices"])) if "choices" in members else 0
    return Usage(
        estimate_tokens(prompt_characters),
        output_tokens=estimate_tokens(generated),
        estimated=True,
    )
