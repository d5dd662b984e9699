"""vLLM's KV events: what an engine says of its prefix cache as it stores and evicts blocks.

A batch is one message of the engine's publisher, in msgpack. Of an event only that is read which
places a block in its chain: the tokens themselves, which are most of a message, are stepped over,
so that prompts are not seen here, and those of 8k tokens cost 0.13 ms.

Blocks are named by 64 bits of the engine's own hash, which covers the tokens, everything before
them, the `cache_salt` and the adapter. vLLM's default hash starts from a fixed seed: equal blocks
have equal names at all engines of a pool, unless they were started with different
`PYTHONHASHSEED`s, or with an algorithm that is not cryptographic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

#: A block's hash: vLLM sends its last 64 bits as a number, or with
#: `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` all of it.
_Hash: TypeAlias = int | bytes

_LAST_64_BITS = 8

#: Groups of layers that remember a prompt from its beginning. Those with a window forget what lies
#: behind it, and say nothing of whether a prefix can be used again.
_WHOLE_PREFIX = frozenset({None, "full_attention", "sink_full_attention", "mla_attention"})


class UnreadableEvents(ValueError):
    """A message is no batch of events, or of another release's form."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that follow one another are in the cache from now on.

    Attributes:
        blocks: their names, in the order of the prompt.
        parent: the block before them; None: they begin a prompt.
        block_size: tokens in each.
        session: of the request that computed them, as its header named it.
        group: the layers that they belong to.
    """

    blocks: tuple[int, ...]
    parent: int | None
    block_size: int
    session: str | None
    group: int | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A copy of each of these blocks was evicted."""

    blocks: tuple[int, ...]
    group: int | None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was emptied."""


KvEvent = Stored | Removed | Cleared
EventKind = Literal["stored", "removed", "cleared"]


class _Event(msgspec.Struct, gc=False):
    """Any event; members that are not named here are stepped over."""

    type: str
    block_hashes: list[_Hash] = []
    parent_block_hash: _Hash | None = None
    block_size: int = 0
    medium: str | None = None
    locality: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True, gc=False):
    """One message; what other releases add to its end is ignored."""

    ts: float
    events: list[_Event]


_DECODER = msgspec.msgpack.Decoder(_Batch)


def read_batch(payload: bytes) -> list[KvEvent]:
    """The events of one message that are about prefixes in the engine's own memory.

    Tiers below (CPU, storage, other machines) are left out: a block that has moved there counts as
    evicted.

    Raises:
        UnreadableEvents: it is none.
    """
    try:
        batch = _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise UnreadableEvents(str(error)) from None
    return [known for event in batch.events if (known := _known(event)) is not None]


def _known(event: _Event) -> KvEvent | None:
    if event.type == "AllBlocksCleared":
        return Cleared()
    if event.medium not in (None, "GPU") or event.locality == "REMOTE":
        return None
    blocks = tuple(_name(block) for block in event.block_hashes)
    if event.type == "BlockRemoved":
        return Removed(blocks, event.group_idx)
    if event.type != "BlockStored" or event.kv_cache_spec_kind not in _WHOLE_PREFIX:
        return None
    parent = None if event.parent_block_hash is None else _name(event.parent_block_hash)
    return Stored(blocks, parent, event.block_size, event.session_id, event.group_idx)


def _name(block: _Hash) -> int:
    return block if isinstance(block, int) else int.from_bytes(block[-_LAST_64_BITS:], "big")
