"""What a replica can hold: by configuration, by its worker's word, by its metrics, or by custom."""

from __future__ import annotations

from sluice.router.pool.bounds import ReplicaLimits
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.roster import Replica

#: KV cache of a replica that does not say how much it has, in tokens.
_USUAL_KV_TOKENS = 500_000

#: Sequences that a replica batches, where nobody says: vLLM's own default.
_USUAL_RUNNING = 256

#: Tokens that one step of it computes, likewise.
_USUAL_BATCHED_TOKENS = 2_048


def limits_of(replica: Replica, config: PoolConfig, block_tokens: int) -> ReplicaLimits:
    """The limits of a replica that joins.

    Args:
        replica: as it is known so far.
        config: of its pool.
        block_tokens: tokens that a block of text stands for.
    """
    said = None if replica.announcement is None else replica.announcement.limits
    running = config.max_running or (said and said.max_num_seqs) or _USUAL_RUNNING
    batched = (
        config.max_batched_tokens or (said and said.max_num_batched_tokens) or _USUAL_BATCHED_TOKENS
    )
    queued = (said and said.max_queued_requests) or config.max_queued
    blocks = max(1, _kv_tokens(replica, config) // block_tokens)
    return ReplicaLimits(blocks, block_tokens, running, queued, config.prefill_rate, batched)


def _kv_tokens(replica: Replica, config: PoolConfig) -> int:
    if config.kv_blocks is not None:
        return config.kv_blocks * config.block_size
    said = None if replica.announcement is None else replica.announcement.limits
    if said is not None and said.kv_blocks and said.block_size:
        return said.kv_blocks * said.block_size
    read = None if replica.readings is None else replica.readings.kv_tokens
    return read or _USUAL_KV_TOKENS
