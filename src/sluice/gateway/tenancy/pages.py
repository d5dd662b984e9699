"""Pages of lists, by cursor.

Lists go by id. Ids are UUIDv7, made under the lock that orders changes, so that what is added while
somebody turns pages is at the end: nothing that was there is left out or seen twice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from sluice.billing.reports import InvalidCursor

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list; `next` is the cursor of the following page."""

    data: list[T]
    has_more: bool
    next: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """Which page is asked for.

    Attributes:
        limit: how many on it.
        after: id of the last one on the page before; None: the first page.
    """

    limit: int = 100
    after: UUID | None = None

    @classmethod
    def of(cls, limit: int, cursor: str | None) -> Turn:
        """As a caller asks for it.

        Raises:
            InvalidCursor: the cursor is none of ours.
        """
        if cursor is None:
            return cls(limit)
        try:
            return cls(limit, UUID(bytes=base64.b64decode(cursor + "==", b"-_", validate=True)))
        except (binascii.Error, ValueError) as error:
            raise InvalidCursor("the cursor is not one that a page gave") from error

    def page(self, rows: Sequence[asyncpg.Record], make: Callable[[asyncpg.Record], T]) -> Page[T]:
        """The page of rows that were asked for with one more than fits."""
        shown, has_more = rows[: self.limit], len(rows) > self.limit
        return Page(
            data=[make(row) for row in shown],
            has_more=has_more,
            next=_cursor(shown[-1]["id"]) if has_more else None,
        )


def _cursor(last: UUID) -> str:
    return base64.urlsafe_b64encode(last.bytes).decode().rstrip("=")
