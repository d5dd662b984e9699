"""Which replica a request goes to: values in, a decision with its reason out.

`prefix_load` is the default: the least `queue_weight * queued prefill tokens + uncached tokens`,
and a little for those of them that push others out of the cache. A weight below one prefers
warming one cache to starting the prompt a little earlier somewhere else; it pays back at the next
prompt with that prefix. `consistent_hash` needs neither index nor loads that are shared, so that
gateways that share nothing still agree.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Literal, Protocol

import msgspec

from sluice.router.pool.load import Load

Reason = Literal["prefix", "load", "no_prefix", "hash", "spill", "turn"]
PolicyName = Literal["prefix_load", "consistent_hash", "least_loaded", "round_robin"]


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What placement knows of a prompt.

    Attributes:
        tokens: its length, as far as it is known.
        hashes: its chained block hashes.
        block_tokens: tokens that a block stands for.
    """

    tokens: int
    hashes: tuple[int, ...]
    block_tokens: int

    def uncached(self, blocks: int) -> int:
        """Tokens to compute where that many leading blocks are cached.

        At least one: an engine computes the last token of a prompt that it has entirely.
        """
        return max(1, self.tokens - blocks * self.block_tokens)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a prompt goes.

    Attributes:
        replica: its name.
        cached_blocks: leading blocks that the replica is believed to have.
        uncached_tokens: tokens that it has to compute.
        reason: `prefix`, it has the longest match; `load`, a longer match or none was beaten by
            a lighter load; `no_prefix`, nobody has any; `hash`, its place on the ring; `spill`,
            that place was over its bound; `turn`, round robin.
    """

    replica: str
    cached_blocks: int
    uncached_tokens: int
    reason: Reason


class Placement(Protocol):
    """A policy. One instance belongs to one gateway process and one pool."""

    def place(
        self, prompt: Prompt, candidates: Sequence[Load], depths: Mapping[str, int]
    ) -> Decision:
        """Choose among replicas that may take the request.

        Args:
            prompt: what is to be placed.
            candidates: their loads, at least one.
            depths: leading blocks that each is believed to have; without an entry none.

        Returns:
            One of the candidates.
        """
        ...


def _decide(prompt: Prompt, load: Load, depths: Mapping[str, int], reason: Reason) -> Decision:
    blocks = depths.get(load.replica, 0)
    return Decision(load.replica, blocks, prompt.uncached(blocks), reason)


def _lightest(loads: Sequence[Load], random: Random) -> Load:
    """The one with the fewest requests for its weight, then the least context; then by lot."""
    if len(loads) == 1:
        return loads[0]
    least, context = math.inf, math.inf
    ties: list[Load] = []
    for load in loads:
        running = load.running / load.weight
        if running < least or (running == least and load.context_tokens < context):
            least, context = running, load.context_tokens
            ties = [load]
        elif running == least and load.context_tokens == context:
            ties.append(load)
    return ties[0] if len(ties) == 1 else random.choice(ties)


class PrefixLoad:
    """The least of weighted queue and what this prompt would add to it."""

    def __init__(
        self,
        random: Random,
        queue_weight: float = 0.5,
        request_tokens: float = 0.0,
        eviction_weight: float = 0.25,
    ) -> None:
        """Args:
        random: breaks the ties that load leaves.
        queue_weight: of a queued token against an uncached one of this prompt.
        request_tokens: prefill tokens that one running request counts for, since decoding
            shares the engine's steps.
        eviction_weight: of a token that another prompt's must make room for. Without it, idle
            replicas stay cold as long as a few warm ones have the common system prompt.
        """
        self._random = random
        self._queue_weight = queue_weight
        self._request_tokens = request_tokens
        self._eviction_weight = eviction_weight

    def place(
        self, prompt: Prompt, candidates: Sequence[Load], depths: Mapping[str, int]
    ) -> Decision:
        """The replica with the least cost. See `Placement.place`."""
        weight, per_request = self._queue_weight, self._request_tokens
        evicting = self._eviction_weight
        tokens, block_tokens = prompt.tokens, prompt.block_tokens
        depth_of = depths.get
        least = math.inf
        best: list[Load] = []
        for load in candidates:
            uncached = tokens - depth_of(load.replica, 0) * block_tokens
            evicted = uncached - load.free_blocks * block_tokens
            cost = (
                (uncached if uncached > 1 else 1)
                + (evicting * evicted if evicted > 0 else 0)
                + weight * load.queued_prefill_tokens
                + per_request * load.running
            ) / load.weight
            if cost < least:
                least = cost
                best = [load]
            elif cost == least:
                best.append(load)
        chosen = _lightest(best, self._random)
        reason: Reason = "no_prefix"
        if depths and (longest := max(depths.values())):
            reason = "prefix" if depth_of(chosen.replica, 0) == longest else "load"
        return _decide(prompt, chosen, depths, reason)


class ConsistentHash:
    """A ring keyed by the first blocks, with bounded loads (Mirrokni et al.)."""

    def __init__(
        self, random: Random, blocks: int = 2, bound: float = 1.25, points: int = 100
    ) -> None:
        """Args:
        random: places prompts without a full block.
        blocks: leading blocks that make the key. One alone would send everybody who shares a
            system prompt to one replica.
        bound: the most requests a replica may have, as a multiple of the mean.
        points: of each replica on the ring.
        """
        self._random = random
        self._blocks = blocks
        self._bound = bound
        self._points = points
        self._keys: list[int] = []
        self._owners: list[str] = []
        self._members: frozenset[str] = frozenset()

    def place(
        self, prompt: Prompt, candidates: Sequence[Load], depths: Mapping[str, int]
    ) -> Decision:
        """The first replica clockwise from the key that is under its bound."""
        if not prompt.hashes:
            return _decide(prompt, _lightest(candidates, self._random), depths, "load")
        loads = {load.replica: load for load in candidates}
        self._include(loads)
        running = sum(load.running for load in candidates)
        share = self._bound * (running + 1) / sum(load.weight for load in candidates)
        key = _ring_point(repr(prompt.hashes[: self._blocks]))
        home = True
        for replica in self._clockwise(key):
            load = loads.get(replica)
            if load is None:
                continue
            if load.running + 1 <= math.ceil(share * load.weight):
                return _decide(prompt, load, depths, "hash" if home else "spill")
            home = False
        return _decide(prompt, _lightest(candidates, self._random), depths, "spill")

    def _clockwise(self, key: int) -> Iterator[str]:
        start = bisect_left(self._keys, key)
        seen: set[str] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in seen:
                seen.add(owner)
                yield owner

    def _include(self, replicas: Mapping[str, Load]) -> None:
        """Put new replicas on the ring. Those that are away keep their places, up to a number."""
        members = self._members.union(replicas)
        if len(members) > 2 * len(replicas) + 8:
            members = frozenset(replicas)
        if members == self._members:
            return
        self._members = members
        points = sorted(
            (_ring_point(f"{name} {number}"), name)
            for name in self._members
            for number in range(self._points)
        )
        self._keys = [point for point, _ in points]
        self._owners = [name for _, name in points]


def _ring_point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class LeastLoaded:
    """The least queued prefill tokens; then the fewest requests."""

    def __init__(self, random: Random) -> None:
        """Args:
        random: breaks ties.
        """
        self._random = random

    def place(
        self, prompt: Prompt, candidates: Sequence[Load], depths: Mapping[str, int]
    ) -> Decision:
        """The replica with the least to do."""
        least = min(load.queued_prefill_tokens / load.weight for load in candidates)
        ties = [load for load in candidates if load.queued_prefill_tokens / load.weight == least]
        return _decide(prompt, _lightest(ties, self._random), depths, "load")


class RoundRobin:
    """In turn, by name."""

    def __init__(self) -> None:
        """Starts with the first."""
        self._last = ""

    def place(
        self, prompt: Prompt, candidates: Sequence[Load], depths: Mapping[str, int]
    ) -> Decision:
        """The next replica after the one before."""
        after = [load for load in candidates if load.replica > self._last]
        chosen = min(after or candidates, key=lambda load: load.replica)
        self._last = chosen.replica
        return _decide(prompt, chosen, depths, "turn")


#: How to make each policy.
POLICIES: Mapping[PolicyName, Callable[[Random], Placement]] = {
    "prefix_load": PrefixLoad,
    "consistent_hash": ConsistentHash,
    "least_loaded": LeastLoaded,
    "round_robin": lambda random: RoundRobin(),
}
