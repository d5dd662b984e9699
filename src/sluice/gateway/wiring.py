"""Where objects are made and joined: one gateway process from its configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import asyncpg
import structlog
import uuid_utils
from litestar import Litestar
from prometheus_client import disable_created_metrics

from sluice.backends.anthropic import AnthropicBackend, AnthropicConfig
from sluice.backends.base import Backend
from sluice.backends.openai import OpenAIBackend, OpenAIConfig
from sluice.backends.simulator import SimulatorBackend
from sluice.backends.vllm import VLLMBackend, VLLMConfig
from sluice.billing.ledger import DATABASE_ERRORS
from sluice.billing.recorder import Charges, Recorder, RecorderConfig
from sluice.billing.redis_link import RedisLink
from sluice.billing.reports import UsageReports
from sluice.gateway.app import create_app
from sluice.gateway.auth import KeyRing, KeySync, TokenRing
from sluice.gateway.batch.callback_secrets import CallbackSecrets
from sluice.gateway.batch.doors import create_batch_doors, create_storage
from sluice.gateway.batch.sweeper import FileSweeper
from sluice.gateway.connections import connect_redis
from sluice.gateway.conversations import Conversations
from sluice.gateway.engine_options import simulator_config
from sluice.gateway.environment import Environment
from sluice.gateway.idempotency.assembly import Idempotency, create_idempotency
from sluice.gateway.key_files import KeyFiles
from sluice.gateway.learning.assembly import Learning, create_learning
from sluice.gateway.learning.side_calls import SideCalls
from sluice.gateway.lifeline import Lifelines
from sluice.gateway.listener import ConnectionLimits
from sluice.gateway.meter import Meter
from sluice.gateway.metrics import Metrics
from sluice.gateway.oidc.assembly import SignIn, sign_in
from sluice.gateway.output_rates import OutputRates
from sluice.gateway.pipeline import Pipeline
from sluice.gateway.pool_metrics import PoolMetrics
from sluice.gateway.pool_wiring import create_pools
from sluice.gateway.prefix_salts import PrefixSalts
from sluice.gateway.quotas.assembly import Quotas, create_quotas
from sluice.gateway.quotas.needs import Needs, TokenEstimates
from sluice.gateway.registry.prices import PriceBook
from sluice.gateway.registry.store import changed_versions
from sluice.gateway.registry.sync import RegistrySync
from sluice.gateway.responses import ResponseStore
from sluice.gateway.routes.access import Access, by_token
from sluice.gateway.routes.admin import admin_router
from sluice.gateway.routes.admin.models import Configured
from sluice.gateway.routes.admin.routing import Routing
from sluice.gateway.routes.callback_secrets import callback_secret_routes
from sluice.gateway.routes.completions import completion_routes
from sluice.gateway.routes.counted_calls import CountedCalls
from sluice.gateway.routes.feedback import feedback_routes
from sluice.gateway.routes.health import Check, health_routes
from sluice.gateway.routes.limits import limit_routes
from sluice.gateway.routes.models import model_routes
from sluice.gateway.routes.responses import response_routes
from sluice.gateway.routes.token_counts import TokenCounter, token_count_routes
from sluice.gateway.routes.usage import usage_routes
from sluice.gateway.routing.configured import configured_documents
from sluice.gateway.routing.preview import Previews
from sluice.gateway.routing.store import RoutingDocuments, changed_documents, last_scores
from sluice.gateway.routing.sync import RoutingSync
from sluice.gateway.secrets import key_hash, redactor
from sluice.gateway.settings import (
    AnthropicProvider,
    Config,
    ModelSettings,
    OpenAIProvider,
    Provider,
    VLLMProvider,
)
from sluice.gateway.tenancy.changes import Changes
from sluice.gateway.tenancy.teams import Teams
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.router import AutoRouter
from sluice.router.auto.scorers import Scorers
from sluice.router.auto.standings import Standings
from sluice.router.auto.table import RoutingTable
from sluice.router.breakers import BreakerConfig, Breakers
from sluice.router.catalog import Catalog, Deployment, Model, Timeouts
from sluice.router.credentials import Credentials
from sluice.router.dispatch import Dispatcher
from sluice.router.plan import Fallbacks
from sluice.router.policy import Router
from sluice.router.pool.pools import Pools
from sluice.router.shadows import Shadows

_log = structlog.get_logger("sluice")


def create_backends(config: Config) -> dict[str, Backend]:
    """The providers' backends, by name; without the pools, see `create_pools`."""
    return {
        name: _backend(provider)
        for name, provider in config.providers.items()
        if not (isinstance(provider, VLLMProvider) and provider.pooled)
    }


def _backend(provider: Provider) -> Backend:
    connect = provider.timeouts.connect
    match provider:
        case OpenAIProvider():
            return OpenAIBackend(
                OpenAIConfig(
                    provider.base_url, connect, provider.max_tokens_field, provider.responses
                )
            )
        case AnthropicProvider():
            return AnthropicBackend(AnthropicConfig(provider.base_url, connect))
        case VLLMProvider():
            return VLLMBackend(VLLMConfig(provider.replicas[0], connect))
        case _:
            return SimulatorBackend(
                simulator_config(provider.ttft_ms, provider.itl_ms, provider.engine)
            )


def create_credentials(config: Config) -> dict[str, Credentials]:
    """The keys of each provider that has any."""
    longest = config.dispatch.breaker.max_cooldown_seconds
    return {name: Credentials(keys, longest) for name, keys in config.credentials().items()}


def create_breakers(config: Config, metrics: Metrics) -> Breakers:
    """The breakers of all deployments."""
    given = config.dispatch.breaker
    return Breakers(
        BreakerConfig(
            window=given.window_seconds,
            min_calls=given.min_calls,
            failure_ratio=given.failure_ratio,
            open_seconds=given.open_seconds,
            max_cooldown=given.max_cooldown_seconds,
        ),
        observer=metrics,
    )


def create_dispatcher(
    config: Config,
    backends: Mapping[str, Backend],
    credentials: Mapping[str, Credentials],
    breakers: Breakers,
) -> Dispatcher:
    """The dispatcher with its credentials."""

    def redact(text: str) -> str:
        """With the credentials of now, rotated ones included."""
        return redactor([key for held in credentials.values() for key in held.secrets()])(text)

    return Dispatcher(backends, credentials, breakers, redact, config.dispatch.attempts)


def create_sign_in(config: Config, environment: Environment, pool: asyncpg.Pool) -> SignIn | None:
    """People's sign-in, where it is configured."""
    given = config.oidc
    if given is None or environment.redis_url is None:
        return None
    return sign_in(
        client=given.client(),
        issuer=given.issuer,
        grants=given.grants(),
        session_seconds=int(given.session_hours * 3600),
        egress=config.egress.policy(),
        pool=pool,
        redis=connect_redis(environment.redis_url),
    )


def create_router(config: Config, catalog: Catalog, table: RoutingTable) -> Router:
    """The router with the fallbacks of the configuration."""
    fallbacks = {
        model.name: Fallbacks(
            tuple(model.fallbacks), tuple(model.context_fallbacks), tuple(model.content_fallbacks)
        )
        for model in config.models
    }
    return Router(catalog, fallbacks, table)


def create_registry_sync(
    config: Config, pool: asyncpg.Pool, catalog: Catalog, prices: PriceBook, breakers: Breakers
) -> RegistrySync:
    """What keeps the catalogue as the registry has it."""
    pools = {
        name: _timeouts(provider)
        for name, provider in config.providers.items()
        if isinstance(provider, VLLMProvider)
    }
    return RegistrySync(
        partial(changed_versions, pool),
        catalog,
        prices,
        pools,
        lambda: breakers.retain(catalog.deployments()),
    )


def configured_models(config: Config) -> Configured:
    """What the registry has to know of the configuration."""
    return Configured(
        frozenset(model.name for model in config.models),
        frozenset(n for n, p in config.providers.items() if isinstance(p, VLLMProvider)),
    )


def create_catalog(config: Config) -> Catalog:
    """The catalogue of the configuration."""
    return Catalog([_model(model, config) for model in config.models], created=int(time.time()))


def _model(settings: ModelSettings, config: Config) -> Model:
    kinds = {config.providers[d.provider].kind for d in settings.deployments}
    return Model(
        name=settings.name,
        context_length=settings.context_length,
        capabilities=frozenset(settings.capabilities),
        tiers=frozenset(settings.tiers),
        deployments=tuple(
            Deployment(d.provider, d.model, d.weight, _timeouts(config.providers[d.provider]))
            for d in settings.deployments
        ),
        default_max_tokens=settings.default_max_tokens,
        owned_by="sluice-simulator" if kinds == {"simulator"} else "/".join(sorted(kinds)),
    )


def _timeouts(provider: Provider) -> Timeouts:
    given = provider.timeouts
    return Timeouts(given.first_token, given.between_tokens, given.total)


@dataclass(slots=True)
class Gateway:
    """One gateway process: its application, and what starts and stops with it."""

    app: Litestar
    pipeline: Pipeline
    lifelines: Lifelines
    recorder: Recorder
    quotas: Quotas
    idempotency: Idempotency
    keys: KeySync
    registry: RegistrySync
    routing: RoutingSync
    learning: Learning
    shadows: Shadows
    key_files: KeyFiles
    backends: Mapping[str, Backend]
    pools: Pools
    pool: asyncpg.Pool
    connections: ConnectionLimits
    salts: PrefixSalts
    files: FileSweeper
    callback_secrets: CallbackSecrets
    people: SignIn | None
    ring: KeyRing
    metrics: Metrics
    catalog: Catalog
    prices: PriceBook
    credentials: Mapping[str, Credentials]
    id: str

    async def start(self) -> None:
        """Load the keys and begin the background work."""
        await self.keys.start()
        await self.salts.start()
        await self.callback_secrets.start()
        await self.files.start()
        await self.registry.start()
        await self.routing.start()
        await self.learning.start()
        await self.key_files.start()
        await self.recorder.start()
        await self.quotas.start()
        await self.idempotency.start()
        await self.pools.start()
        await self.lifelines.start()

    async def stop(self) -> None:
        """Commit what is pending, then let go of everything."""
        await self.lifelines.stop()
        await self.idempotency.stop()
        await self.learning.stop()
        await self.quotas.stop()
        await self.recorder.stop()
        await self.files.stop()
        await self.keys.stop()
        await self.registry.stop()
        await self.routing.stop()
        await self.shadows.stop()
        await self.key_files.stop()
        await self.pools.stop()
        for backend in self.backends.values():
            await backend.close()
        if self.people is not None:
            await self.people.close()
        self.pool.terminate()


def create_gateway(
    config: Config,
    environment: Environment,
    pool: asyncpg.Pool,
    link: RedisLink,
    charges: Charges | None = None,
) -> Gateway:
    """Join one gateway's parts; nothing runs until `start`.

    Args:
        charges: takes the usage events of its pipeline; None: its own recorder.
    """
    disable_created_metrics()
    gateway_id = str(uuid_utils.uuid7())
    metrics = Metrics(environment.metrics_dir)
    ring = KeyRing()
    tokens = TokenRing(None if environment.admin_key is None else key_hash(environment.admin_key))
    sync = KeySync(ring, tokens, Changes(pool), metrics.staleness.set)
    store = ResponseStore(link, int(config.server.responses_retention_days * 86_400))
    recorder = Recorder(link, RecorderConfig(environment.spool), metrics)
    lifelines = Lifelines(
        config.server.heartbeat_seconds,
        metrics.loop_lag.set,
        stalled_seconds=config.server.stalled_reader_seconds,
    )
    catalog = create_catalog(config)
    prices = PriceBook({m.name: m.price.price() for m in config.models if m.price is not None})
    quotas = create_quotas(
        config.admission, gateway_id, pool, link, ring, metrics, metrics.sharers.set
    )
    rates = OutputRates()
    meter = Meter(prices, gateway_id, rates)
    idempotency = create_idempotency(config, link, recorder, meter, metrics)
    breakers = create_breakers(config, metrics)
    pooled = create_pools(
        config, PoolMetrics(metrics.registry, environment.metrics_dir is not None), gateway_id
    )
    backends = create_backends(config) | pooled
    credentials = create_credentials(config)
    dispatcher = create_dispatcher(config, backends, credentials, breakers)
    salts = PrefixSalts(pool, environment.salt_secret)
    callback_secrets = CallbackSecrets(pool, environment.callback_secret)
    table = RoutingTable(configured_documents(config.routing, catalog, prices))
    router, scorers, calibration = create_router(config, catalog, table), Scorers(), Calibration()
    shadows = Shadows(
        dispatcher, lambda model, outcome: metrics.shadow_requests.labels(model, outcome).inc()
    )
    learning = create_learning(
        config.learning,
        pool,
        ring=ring,
        catalog=catalog,
        prices=prices,
        calls=SideCalls(dispatcher, prices, recorder, rates, gateway_id),
        scorers=scorers,
        metrics=metrics,
    )
    auto = AutoRouter(catalog, table, router, scorers, calibration, Standings())
    pipeline = Pipeline(
        keys=ring,
        router=router,
        auto=auto,
        dispatcher=dispatcher,
        shadows=shadows,
        meter=meter,
        recorder=charges or recorder,
        lifelines=lifelines,
        metrics=metrics,
        conversations=Conversations(store),
        keyed=idempotency.keyed,
        needs=Needs(prices, TokenEstimates()),
        admission=quotas.admission,
        salts=salts,
        max_body_bytes=config.server.max_body_bytes,
        body_seconds=config.server.body_seconds,
        answers=learning.answers,
    )
    previews = Previews(pool, catalog, prices, scorers)
    routing = Routing(RoutingDocuments(pool), previews, catalog, table)
    pools = Pools(
        pooled,
        connect_redis(environment.redis_url) if pooled and environment.redis_url else None,
        lambda name: _first_secret(credentials.get(name)),
    )
    people = create_sign_in(config, environment, pool)
    persons = [] if people is None else [people.authentication.administrator]
    access = Access(ring, [by_token(tokens), *persons])
    storage = create_storage(config.batch, environment.files)
    counted = CountedCalls(access, quotas.admission, metrics)
    doors = create_batch_doors(config, storage, pool, catalog, auto.alias_of, access, counted)
    routes = [
        *(people.routes if people is not None else ()),
        *completion_routes(pipeline),
        *model_routes(catalog, table, access),
        *response_routes(store, access),
        *token_count_routes(
            TokenCounter(catalog, table, backends, credentials, quotas.admission), access
        ),
        *limit_routes(catalog, access, quotas.standing.of),
        *usage_routes(UsageReports(pool), Teams(pool), access),
        *feedback_routes(learning.box, access, counted),
        *doors.routes,
        *callback_secret_routes(callback_secrets, access),
        admin_router(pool, access, configured_models(config), pools, routing),
        *health_routes(_checks(pipeline, pool, recorder), frozenset({"gateway"}), metrics.render),
    ]
    return Gateway(
        create_app(routes),
        pipeline,
        lifelines,
        recorder,
        quotas,
        idempotency,
        sync,
        create_registry_sync(config, pool, catalog, prices, breakers),
        RoutingSync(
            partial(changed_documents, pool), partial(last_scores, pool), table, calibration
        ),
        learning,
        shadows,
        KeyFiles(config.key_files(), credentials),
        backends,
        pools,
        pool,
        ConnectionLimits(
            config.server.max_header_bytes,
            config.server.header_seconds,
            config.server.body_seconds,
            config.server.stalled_reader_seconds,
        ),
        salts,
        doors.sweeper,
        callback_secrets,
        people,
        ring,
        metrics,
        catalog,
        prices,
        credentials,
        gateway_id,
    )


def _first_secret(held: Credentials | None) -> str | None:
    """The key with which a provider is asked how it is."""
    return next(iter(held.secrets()), None) if held is not None else None


def _checks(pipeline: Pipeline, pool: asyncpg.Pool, recorder: Recorder) -> dict[str, Check]:
    async def gateway() -> str | None:
        return "draining" if pipeline.draining else None

    async def postgres() -> str | None:
        try:
            await pool.fetchval("SELECT 1", timeout=2)
        except DATABASE_ERRORS as error:
            return f"unreachable: {type(error).__name__}; keys and usage reports are not updated"
        return None

    async def usage_stream() -> str | None:
        return "unreachable; usage events go to the spool" if recorder.stream_away else None

    return {"gateway": gateway, "postgres": postgres, "redis": usage_stream}
