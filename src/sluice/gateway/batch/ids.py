"""Ids of files and batches as callers see them; inside they are UUIDs."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

Prefix = Literal["file-", "batch_"]


def public_id(prefix: Prefix, id: UUID) -> str:
    """The id of a file or a batch, for its callers."""
    return prefix + id.hex


def private_id(prefix: Prefix, text: str) -> UUID | None:
    """The UUID of a caller's id; None: it is not an id of this kind."""
    given, hexadecimal = text[: len(prefix)], text[len(prefix) :]
    if given != prefix or len(hexadecimal) != 32:
        return None
    try:
        return UUID(hex=hexadecimal)
    except ValueError:
        return None
