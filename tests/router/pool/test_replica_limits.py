"""What a replica can hold: the configuration's word, else its worker's, else what is usual."""

from __future__ import annotations

import pytest

from sluice.backends.replicas import Announcement, EngineLimits
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.membership import joined
from sluice.router.pool.replica_limits import limits_of
from sluice.router.pool.roster import Replica
from tests.router.pool.live_fakes import FakeInspector, FakeReplica

SAID = EngineLimits(
    max_num_seqs=64,
    max_num_batched_tokens=512,
    max_queued_requests=8,
    kv_blocks=100,
    block_size=32,
)


def replica(said: EngineLimits | None) -> Replica:
    fake = FakeReplica()
    made = Replica("r", "http://r", None, fake, FakeInspector(fake), joined(0.0), 0.0)
    if said is not None:
        made.announcement = Announcement(
            id="i",
            pool="p",
            url="http://r",
            model="m",
            version="1",
            state="ready",
            since=0.0,
            limits=said,
        )
    return made


@pytest.mark.parametrize(
    ("config", "said", "running", "batched", "queued", "kv_tokens"),
    [
        (PoolConfig("p"), None, 256, 2_048, 64, 500_000),
        (PoolConfig("p"), EngineLimits(), 256, 2_048, 64, 500_000),
        (PoolConfig("p"), SAID, 64, 512, 8, 3_200),
        (
            PoolConfig("p", max_running=16, max_batched_tokens=1_024, kv_blocks=50),
            SAID,
            16,
            1_024,
            8,
            800,
        ),
    ],
)
def test_limits(
    config: PoolConfig,
    said: EngineLimits | None,
    running: int,
    batched: int,
    queued: int,
    kv_tokens: int,
) -> None:
    limits = limits_of(replica(said), config, 16)
    assert (limits.max_running, limits.step_tokens, limits.max_queued) == (running, batched, queued)
    assert limits.kv_blocks * limits.block_tokens == kv_tokens
    assert limits.prefill_rate == config.prefill_rate
