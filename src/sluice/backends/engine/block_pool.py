"""KV blocks: free, used by one request or more, and in either case perhaps cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """A number of equal blocks; see vLLM's `block_pool.py`.

    Freed blocks keep their content until they are taken again, the longest free first; blocks
    whose content nobody can find go before all others. Two blocks may have the same content, when
    two requests computed it at the same time: the older one is found.

    Attributes:
        size: how many blocks there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        self._hashes: list[Hashable | None] = [None] * size
        #: Ordered as they are taken.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._cached: dict[Hashable, int] = {}
        #: Blocks with a content that an older block has too, oldest first.
        self._copies: dict[Hashable, list[int]] = {}

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks whose content can be found."""
        return len(self._cached) + sum(len(copies) for copies in self._copies.values())

    def references(self, block: int) -> int:
        """How many requests use the block."""
        return self._references[block]

    def find(self, key: Hashable) -> int | None:
        """The block with this content."""
        return self._cached.get(key)

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks no request uses."""
        references = self._references
        return sum(not references[block] for block in blocks)

    def take(self, count: int) -> list[int]:
        """Blocks for a new content; their old one is forgotten.

        Raises:
            KeyError: fewer are free.
        """
        pop, hashes, references = self._free.popitem, self._hashes, self._references
        blocks = []
        for _ in range(count):
            block, _none = pop(last=False)
            if hashes[block] is not None:
                self._forget(block)
            references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Use blocks for their content, that others may use too."""
        references, free = self._references, self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def publish(self, block: int, key: Hashable) -> None:
        """Let a block in use be found by its content."""
        self._hashes[block] = key
        if self._cached.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Stop using blocks; the first of them is the first to be taken again."""
        references, hashes, free = self._references, self._hashes, self._free
        for block in blocks:
            references[block] -= 1
            if references[block]:
                continue
            free[block] = None
            if hashes[block] is None:
                free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        key, self._hashes[block] = self._hashes[block], None
        copies = self._copies.get(key)
        if copies is None:
            del self._cached[key]
            return
        if self._cached[key] == block:
            self._cached[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
