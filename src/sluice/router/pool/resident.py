"""The blocks that one engine says it has, as a tree: each knows the block before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from sluice.router.pool.kv_events import Cleared, KvEvent, Removed, Stored

#: Blocks that are kept of one engine: 2 million tokens in blocks of 16, at about 80 bytes each.
#: An engine holds fewer; the bound is for one whose removals were not heard.
MOST_BLOCKS = 131_072

#: What stands before a prompt's first block.
_ROOT = -1


class ResidentBlocks:
    """One engine's.

    Only of its first group of layers that remembers whole prompts; all of these hold the same.

    Attributes:
        block_size: tokens in a block, as last said; 0 until then.
    """

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        """Args:
        most: blocks that are kept; beyond that the oldest are forgotten.
        """
        self.block_size = 0
        self._most = most
        self._before: dict[int, int] = {}
        self._copies: dict[int, int] = {}  # of blocks that the engine has more than once, the rest
        self._group: int | None = None
        self._groups_known = False

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._before)

    def depth(self, blocks: Iterable[int]) -> int:
        """How many of these blocks the engine has, up to the first that it has not."""
        return sum(1 for _ in takewhile(self._before.__contains__, blocks))

    def before(self, block: int) -> int | None:
        """The block before one that the engine has; None: there is none, or none is known."""
        parent = self._before.get(block, _ROOT)
        return None if parent == _ROOT else parent

    def chain(self, block: int) -> list[int] | None:
        """All blocks from a prompt's first one to this one; None where some are not known."""
        chain: list[int] = []
        while block != _ROOT:
            before = self._before.get(block)
            if before is None or len(chain) >= self._most:
                return None
            chain.append(block)
            block = before
        chain.reverse()
        return chain

    def apply(self, event: KvEvent, repeated: bool = False) -> Sequence[int]:
        """Take in what the engine says.

        Args:
            event: what it says.
            repeated: it tells of blocks that it may have told of before.

        Returns:
            The blocks that are new, or gone, by the event; of `Cleared` none.
        """
        match event:
            case Stored():
                return self._store(event, repeated)
            case Removed():
                return self._remove(event)
            case Cleared():
                self.clear()
                return ()

    def clear(self) -> None:
        """Forget all blocks."""
        self._before.clear()
        self._copies.clear()

    def _store(self, event: Stored, repeated: bool) -> Sequence[int]:
        if not self._groups_known:
            self._group, self._groups_known = event.group, True
        if event.group != self._group:
            return ()
        self.block_size = event.block_size
        before = _ROOT if event.parent is None else event.parent
        for block in event.blocks:
            if block not in self._before:
                self._before[block] = before
            elif not repeated:
                self._copies[block] = self._copies.get(block, 0) + 1
            before = block
        while len(self._before) > self._most:
            self._copies.pop(oldest := next(iter(self._before)), None)
            del self._before[oldest]
        return event.blocks

    def _remove(self, event: Removed) -> Sequence[int]:
        if event.group != self._group:
            return ()
        gone = []
        for block in event.blocks:
            copies = self._copies.get(block, 0)
            if copies > 1:
                self._copies[block] = copies - 1
            elif copies:
                del self._copies[block]
            elif self._before.pop(block, None) is not None:
                gone.append(block)
        return gone
