"""Which block of an engine stands for which block of prompt text.

Both are chains: one over 512 bytes of a request's JSON, the other over tokens of what the template
made of it. For a block of text stands the engine's block that ends nearest to where its tokens end,
reckoned from the prompt's length in bytes and in tokens; two prompts that share a block of text
share what stands for it, so that what one got wrong the next one puts right.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

#: Blocks of text that are kept: 100 MB of it, 25 million tokens or so, in about 50 MB.
MOST_MAPPED = 200_000

#: Blocks of an engine that no prompt has more of.
_LONGEST = 100_000


class PrefixMap:
    """Text to engine and back, for all replicas of a pool; the least recently learnt goes."""

    def __init__(self, most: int = MOST_MAPPED) -> None:
        """Args:
        most: blocks of text that are kept.
        """
        self._most = most
        self._images: OrderedDict[int, int] = OrderedDict()
        self._sources: dict[int, tuple[int, ...]] = {}

    def images(self, text_blocks: Iterable[int]) -> list[int]:
        """The engine's blocks that stand for blocks of text, up to the first that is not known."""
        images: list[int] = []
        for text_block in text_blocks:
            if (image := self._images.get(text_block)) is None:
                break
            images.append(image)
        return images

    def sources(self, block: int) -> tuple[int, ...]:
        """The blocks of text that an engine's block stands for."""
        return self._sources.get(block, ())

    def learn(
        self,
        hashes: Sequence[int],
        chain: Sequence[int],
        blocks_per_text_block: float,
        before: Callable[[int], int | None],
    ) -> Sequence[int]:
        """A prompt is known in both forms.

        Args:
            hashes: its blocks of text, from its root.
            chain: its blocks in the engine, from its root.
            blocks_per_text_block: blocks of the engine that one of text makes.
            before: the engine's block before another one.

        Returns:
            Those of the hashes that were not known before.
        """
        if not chain:
            return ()
        members = frozenset(chain)
        new = []
        for number, text_block in enumerate(hashes, 1):
            known = self._images.get(text_block)
            if known is None:
                new.append(text_block)
            else:
                self._images.move_to_end(text_block)
                if known in members:
                    continue
                known = _common(known, members, before)
            if known is None:
                blocks = max(round(number * blocks_per_text_block), 1)
                known = chain[min(blocks, len(chain)) - 1]
            self._set(text_block, known)
        while len(self._images) > self._most:
            text_block, image = self._images.popitem(last=False)
            self._release(text_block, image)
        return new

    def _set(self, text_block: int, image: int) -> None:
        old = self._images.get(text_block)
        if old is not None:
            self._release(text_block, old)
        self._images[text_block] = image
        self._sources[image] = (*self._sources.get(image, ()), text_block)

    def _release(self, text_block: int, image: int) -> None:
        left = tuple(each for each in self._sources[image] if each != text_block)
        if left:
            self._sources[image] = left
        else:
            del self._sources[image]


def _common(block: int, members: frozenset[int], before: Callable[[int], int | None]) -> int | None:
    """The last block before this one that is among the members; None where there is none."""
    at: int | None = block
    for _ in range(_LONGEST):
        if at is None or at in members:
            return at
        at = before(at)
    return None
