"""What each replica is believed to have in its prefix cache.

Two structures, kept in step:

- for each replica, the block hashes in the order of last use, sized to its KV cache;
- for each hash, the replicas that hold it, as the bits of one integer. The longest match over
  all replicas is then one walk along the prompt with an `and` at each block, whatever their
  number.

A prompt is touched tail first, so that its root ends up the most recent and chains are evicted
from the tail, as in vLLM.

The size of a cache is never quite what it says: generated tokens, pinned blocks and the mapping
from bytes to tokens all take their part. So the size in use is learnt, between a quarter of what
was declared and all of it, from what the engine reports as cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: The least part of the declared size that corrections leave.
_FLOOR = 0.25

#: What an over-estimate leaves of the size in use; what an under-estimate adds, of the declared.
_SHRINK, _GROW = 0.97, 0.01


@dataclass(slots=True)
class _Cache:
    """One replica's blocks, oldest first; `full` once it is known to have evicted any."""

    bit: int
    declared: int
    capacity: int
    full: bool = False
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)


class PrefixIndex:
    """The believed caches of all replicas of a pool."""

    def __init__(self) -> None:
        """An index of no replica; `add` brings them in."""
        self._caches: dict[str, _Cache] = {}
        self._names: list[str] = []  # by bit; "" where one left
        self._holders: dict[int, int] = {}
        self._last: tuple[Sequence[int], dict[str, int]] | None = None

    def add(self, replica: str, capacity: int) -> None:
        """Take a replica in, with nothing cached.

        Args:
            replica: its name.
            capacity: blocks in its KV cache.

        Raises:
            ValueError: it is there already, or has no capacity.
        """
        if replica in self._caches:
            raise ValueError(f"{replica} is in the index already")
        if capacity < 1:
            raise ValueError("a cache has at least one block")
        try:
            slot = self._names.index("")
            self._names[slot] = replica
        except ValueError:
            slot = len(self._names)
            self._names.append(replica)
        self._caches[replica] = _Cache(1 << slot, capacity, capacity)

    def remove(self, replica: str) -> None:
        """Forget a replica that left; an unknown one is ignored."""
        cache = self._caches.get(replica)
        if cache is None:
            return
        self.clear(replica)
        del self._caches[replica]
        self._names[cache.bit.bit_length() - 1] = ""

    def __contains__(self, replica: str) -> bool:
        """Whether the replica is known."""
        return replica in self._caches

    def size(self, replica: str) -> int:
        """Blocks that the replica is believed to hold."""
        return len(self._caches[replica].blocks)

    def capacity(self, replica: str) -> int:
        """Blocks that the replica's cache is believed to have room for."""
        return self._caches[replica].capacity

    def free(self, replica: str) -> int:
        """Blocks that the replica can take in before it evicts any."""
        cache = self._caches[replica]
        return 0 if cache.full else cache.capacity - len(cache.blocks)

    def match(self, hashes: Sequence[int]) -> Mapping[str, int]:
        """How many leading blocks of a prompt each replica holds.

        Returns:
            The number for each replica that holds at least the first block.
        """
        if self._last is not None and self._last[0] is hashes:
            return self._last[1]  # a request is matched when it comes and again when it goes
        depths: dict[str, int] = {}
        self._last = (hashes, depths)
        holders = self._holders.get
        mask = holders(hashes[0], 0) if hashes else 0
        for depth, block in enumerate(hashes):
            if not mask:
                return depths
            still = mask & holders(block, 0)
            if still != mask:
                self._note(mask & ~still, depth, depths)
                mask = still
        self._note(mask, len(hashes), depths)
        return depths

    def _note(self, mask: int, depth: int, depths: dict[str, int]) -> None:
        names = self._names
        while mask:
            slot = mask.bit_length() - 1
            depths[names[slot]] = depth
            mask ^= 1 << slot

    def depth(self, replica: str, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt one replica holds."""
        blocks = self._caches[replica].blocks
        depth = 0
        for block in hashes:
            if block not in blocks:
                break
            depth += 1
        return depth

    def insert(self, replica: str, hashes: Sequence[int]) -> None:
        """The replica has these blocks now, and used them last; an unknown one is ignored.

        Args:
            replica: its name.
            hashes: of a prompt, from its root.
        """
        cache = self._caches.get(replica)
        if cache is None:
            return
        self._last = None
        blocks, holders, bit = cache.blocks, self._holders, cache.bit
        touch = blocks.move_to_end
        for block in reversed(hashes):
            if block in blocks:
                touch(block)
            else:
                blocks[block] = None
                holders[block] = holders.get(block, 0) | bit
        self._trim(cache)

    def forget(self, replica: str, hashes: Iterable[int]) -> None:
        """The replica does not have these blocks; unknown replicas and blocks are ignored."""
        cache = self._caches.get(replica)
        if cache is None:
            return
        for block in hashes:
            if block in cache.blocks:
                del cache.blocks[block]
                self._release(block, cache.bit)

    def evicted(self, replica: str, hashes: Iterable[int]) -> None:
        """The replica's engine took these blocks' room for others, so that it has none to spare:
        what fills it need not be known here."""
        cache = self._caches.get(replica)
        if cache is not None:
            cache.full = True
            self.forget(replica, hashes)

    def clear(self, replica: str) -> None:
        """The replica lost its whole cache; an unknown one is ignored."""
        cache = self._caches.get(replica)
        if cache is None:
            return
        for block in cache.blocks:
            self._release(block, cache.bit)
        cache.blocks.clear()
        cache.full = False

    def correct(self, replica: str, hashes: Sequence[int], believed: int, cached: int) -> None:
        """Learn from what the engine says it found cached of a prompt that it has computed.

        The prompt's blocks are there now in any case, since it was computed. Where more was
        believed, the replica evicts earlier than the index does: the size in use shrinks, and
        the oldest blocks go, which are those that the engine has lost as well. Where the replica
        had more, the size grows again.

        Args:
            replica: its name; an unknown one is ignored.
            hashes: of the prompt.
            believed: leading blocks that were expected at dispatch.
            cached: leading blocks that the engine reports.
        """
        cache = self._caches.get(replica)
        if cache is None:
            return
        if believed > cached:
            # It evicted with no more than this in it, so that this is too much. An engine that
            # lost everything restarted, which is `clear`'s business.
            used = min(cache.capacity, len(cache.blocks))
            floor = max(1, int(cache.declared * _FLOOR))
            cache.capacity = max(floor, int(used * _SHRINK))
        elif believed < cached:
            grown = cache.capacity + max(1, int(cache.declared * _GROW))
            cache.capacity = min(cache.declared, grown)
        self.insert(replica, hashes)

    def _trim(self, cache: _Cache) -> None:
        blocks = cache.blocks
        while len(blocks) > cache.capacity:
            block, _ = blocks.popitem(last=False)
            self._release(block, cache.bit)

    def _release(self, block: int, bit: int) -> None:
        self._last = None
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
