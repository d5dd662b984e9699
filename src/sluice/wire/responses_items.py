"""Items of the Responses format: their ids, and reasoning that comes back with its origin.

Ids are made from the response's own: an item's id tells which response it belongs to, so that an
`item_reference` needs no index of items, only the store of responses.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.wire.objects import encode

#: An input or output item as parsed JSON.
Item = dict[str, Any]

#: What ids of the item types start with, where that isn't the type itself.
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "reasoning": "rs",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}

_ITEM_ID = re.compile(r"[a-z_]+?_(?P<response>[A-Za-z0-9-]+)_i?\d+")

#: Marks reasoning that this gateway wrapped. It is not secret, only opaque: what has to be
#: protected in it (a provider's signature) protects itself.
_SEAL = "sluice1."


def item_id(kind: str, response_id: str, index: int, *, given: bool = False) -> str:
    """The id of an item.

    Args:
        kind: the item's type.
        response_id: of the response that it belongs to, `resp_` and letters or digits.
        index: its place among the response's output, or among its input.
        given: it is input.
    """
    own = response_id.removeprefix("resp_")
    return f"{_PREFIXES.get(kind, kind)}_{own}_{'i' if given else ''}{index}"


def response_of(item: str) -> str | None:
    """The id of the response that an item came from, going by the item's id; None if that is
    none of ours. Whether there is such a response, and such an item in it, is not known here."""
    found = _ITEM_ID.fullmatch(item)
    return None if found is None else f"resp_{found['response']}"


def seal(text: str, blocks: list[Any]) -> str:
    """Reasoning as `encrypted_content`: opaque to the client, ours when it comes back.

    Args:
        text: the reasoning text.
        blocks: a provider's signed blocks, which must return unchanged.
    """
    value: dict[str, Any] = {"text": text}
    if blocks:
        value["blocks"] = blocks
    return _SEAL + base64.urlsafe_b64encode(encode(value)).decode()


def unseal(sealed: Any) -> tuple[str, list[Any]] | None:
    """Text and blocks of `encrypted_content` that we made; None for anybody else's."""
    if not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return None
    try:
        value = msgspec.json.decode(base64.urlsafe_b64decode(sealed.removeprefix(_SEAL)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("text"), str):
        return None
    blocks = value.get("blocks")
    return value["text"], blocks if isinstance(blocks, list) else []
