"""The input text of the items of a batch at a provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.gateway.batch.native.records import NativeBatch, NativeItem
from sluice.gateway.batch.storage import Storage


class InputText:
    """The lines of a batch's items, read from the store as one range of its input."""

    def __init__(self, items: Sequence[NativeItem], text: bytes) -> None:
        """Args:
        items: in the order of their lines.
        text: from the first of them to the end of the last.
        """
        self._text = text
        self._start = items[0].offset if items else 0
        self.items: Mapping[int, NativeItem] = {item.line: item for item in items}

    @classmethod
    async def read(
        cls, storage: Storage, native: NativeBatch, items: Sequence[NativeItem]
    ) -> InputText:
        """Read it.

        Raises:
            StorageAway, ObjectMissing: it can't be read now, or not any more.
        """
        if not items:
            return cls((), b"")
        first, last = items[0], items[-1]
        length = last.offset + last.length - first.offset
        return cls(items, await storage.range(native.object, first.offset, length))

    def line(self, item: NativeItem) -> bytes:
        """An item's line."""
        begin = item.offset - self._start
        return self._text[begin : begin + item.length]
