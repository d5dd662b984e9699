"""Pools from the configuration."""

from __future__ import annotations

from sluice.gateway.settings import Config, PoolSettings, VLLMProvider
from sluice.router.pool.config import HealthChecks, PoolConfig
from sluice.router.pool.fair_queue import QueuePolicy
from sluice.router.pool.membership import HealthPolicy
from sluice.router.pool.observer import PoolObserver
from sluice.router.pool.pool import PoolBackend


def create_pools(config: Config, observer: PoolObserver, gateway: str) -> dict[str, PoolBackend]:
    """The backends of the providers that have several replicas, by provider."""
    return {
        name: PoolBackend(pool_config(name, provider), observer, gateway)
        for name, provider in config.providers.items()
        if isinstance(provider, VLLMProvider) and provider.pooled
    }


def pool_config(name: str, provider: VLLMProvider) -> PoolConfig:
    """A provider's pool."""
    given = provider.pool or PoolSettings()
    slo = given.ttft_slo_seconds
    return PoolConfig(
        name=name,
        replicas=tuple(provider.replicas),
        discover=given.discover,
        placement=given.placement,
        interactive_slo=slo.interactive,
        batch_slo=slo.batch,
        max_running=given.max_running,
        max_batched_tokens=given.max_batched_tokens,
        max_queued=given.max_queued,
        kv_blocks=given.kv_blocks,
        block_size=given.block_size,
        prefill_rate=given.prefill_tokens_per_second,
        bytes_per_token=given.bytes_per_token,
        engine_priority=given.engine_priority,
        kv_events=given.kv_events,
        team_weights=given.team_weights,
        team_priorities=given.team_priorities,
        replica_header=given.replica_header,
        connect_seconds=provider.timeouts.connect,
        health=_checks(given),
        membership=_membership(given),
        queue=QueuePolicy(
            ageing=given.ageing_seconds, max_waiting=given.max_waiting, spare=given.isolation
        ),
    )


def _checks(given: PoolSettings) -> HealthChecks:
    health = given.health
    return HealthChecks(
        interval=health.interval_seconds,
        timeout=health.timeout_seconds,
        probe_idle=health.idle_probe_seconds,
        scrape=health.metrics_seconds,
        stall=health.stall_seconds,
    )


def _membership(given: PoolSettings) -> HealthPolicy:
    health = given.health
    return HealthPolicy(
        failures=health.failures,
        slow_probes=health.slow_probes,
        first_ejection=health.ejection_seconds,
        longest_ejection=health.longest_ejection_seconds,
        ramp=health.ramp_seconds,
    )
