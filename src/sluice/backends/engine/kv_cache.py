"""The KV blocks of each request."""

from __future__ import annotations

from sluice.backends.engine.block_pool import BlockPool
from sluice.backends.engine.request import Progress


class KVCache:
    """Gives requests blocks from one pool, and finds them prefixes that are in it.

    A block is found from the moment it is given to a request that fills it in the step to come, as
    in vLLM: what is computed in one step can be shared within it.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching

    @property
    def usage(self) -> float:
        """The share of the blocks that requests hold, 0 to 1."""
        return 1 - self.pool.free / self.pool.size

    def fits(self, tokens: int) -> bool:
        """Whether a request of so many tokens could run alone."""
        return self._blocks(tokens) <= self.pool.size

    def prefix(self, progress: Progress) -> list[int]:
        """Blocks that hold the longest known prefix; the last token is always left to compute."""
        found: list[int] = []
        if not self._prefix_caching:
            return found
        find = self.pool.find
        for index in range((progress.length - 1) // self._block_size):
            block = find(progress.hash(index))
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, progress: Progress, prefix: list[int], tokens: int) -> bool:
        """Give a request its prefix and room for `tokens` more, if all that is known of it fits."""
        pool = self.pool
        needed = self._blocks(progress.length) - len(prefix)
        # A block of the prefix that nobody uses is free no longer, once it is shared.
        if needed > pool.free or needed + pool.free_among(prefix) > pool.free:
            return False
        pool.share(prefix)
        progress.blocks = prefix
        progress.hashed = len(prefix)
        progress.computed = len(prefix) * self._block_size
        self._extend(progress, progress.computed + tokens)
        return True

    def grow(self, progress: Progress, total: int) -> bool:
        """Give a running request room for `total` tokens, if there is."""
        missing = self._blocks(total) - len(progress.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0 or total // self._block_size > progress.hashed:
            self._extend(progress, total)
        return True

    def shortage(self, progress: Progress, total: int) -> int:
        """Blocks that a request is short of for `total` tokens."""
        return self._blocks(total) - len(progress.blocks)

    def release(self, progress: Progress) -> None:
        """Take a request's blocks back; the end of a prefix is forgotten before its beginning."""
        self.pool.release(reversed(progress.blocks))
        progress.blocks = []
        progress.hashed = 0
        progress.computed = 0

    def _extend(self, progress: Progress, total: int) -> None:
        missing = self._blocks(total) - len(progress.blocks)
        if missing > 0:
            progress.blocks += self.pool.take(missing)
        if not self._prefix_caching:
            return
        full = total // self._block_size
        for index in range(progress.hashed, full):
            self.pool.publish(progress.blocks[index], progress.hash(index))
        progress.hashed = max(progress.hashed, full)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
