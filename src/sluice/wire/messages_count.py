"""`count_tokens` of Anthropic's Messages API, for upstreams that have nothing like it."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.inline_data import tokens_of_data
from sluice.wire.messages_request import read_members
from sluice.wire.objects import mended
from sluice.wire.usage import estimate_tokens

_anything = msgspec.json.Decoder(Any)


def count_tokens_estimate(body: bytes) -> int:
    """Tokens of the prompt, about; at least 1.

    Args:
        body: of a `count_tokens` request.

    Raises:
        InvalidRequest: with the parameter named.
    """
    members = read_members(body)
    characters = tokens = 0
    for name in ("system", "messages", "tools"):
        part = members.get(name)
        if part is None:
            continue
        try:
            encoded, media = _media(mended(_anything, bytes(part)))
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"`{name}` can't be read", name) from None
        characters += len(bytes(part).decode(errors="replace")) - encoded
        tokens += media
    return max(estimate_tokens(characters) + tokens, 1)


def _media(value: Any) -> tuple[int, int]:
    """Characters of base64 inside a value, which are no text, and the tokens they stand for."""
    if isinstance(value, list):
        found = [_media(item) for item in value]
    elif isinstance(value, dict):
        data = value.get("data")
        if value.get("type") == "base64" and isinstance(data, str):
            pdf = value.get("media_type") == "application/pdf"
            return len(data), tokens_of_data(len(data), pdf)
        found = [_media(item) for item in value.values()]
    else:
        return 0, 0
    return sum(part[0] for part in found), sum(part[1] for part in found)
