"""Settings: the configuration's fields, strictly checked.

How the file is read is `config_file`'s.
"""

from __future__ import annotations

from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sluice.billing.prices import Price, nano_usd
from sluice.gateway.batch.native.settings import NativeBatchSettings
from sluice.gateway.batch.settings import BatchSettings
from sluice.gateway.egress import EgressPolicy
from sluice.gateway.engine_options import EngineSettings
from sluice.gateway.key_files import read_keys
from sluice.gateway.learning.settings import LearningSettings
from sluice.gateway.oidc.login import Client
from sluice.gateway.oidc.people import Grant
from sluice.gateway.routing.configured import AutoSettings
from sluice.gateway.tenancy.roles import Role
from sluice.router.catalog import Capability, Tier
from sluice.router.pool.fair_queue import Priority
from sluice.router.pool.placement import PolicyName


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class TimeoutSettings(_Strict):
    """Limits on upstream calls, in seconds."""

    connect: float = Field(5.0, gt=0)
    first_token: float = Field(120.0, gt=0)
    between_tokens: float = Field(60.0, gt=0)
    total: float = Field(600.0, gt=0)


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # its text may hold a part of the URL, and so a credential
        usable = False
    if not usable or not value.isprintable() or " " in value:
        raise ValueError("must be an http:// or https:// URL")
    return value


def _credential(value: str) -> str:
    if not (value.isascii() and value.isprintable() and value.strip() == value):
        raise ValueError("must be printable ASCII, without spaces or line ends around it")
    return value


class _Keyed(_Strict):
    """A provider that wants credentials: one, or several that are taken in turn, or those of a
    file that may change."""

    api_key: str | None = None
    api_keys: list[str] = Field(default=[])
    api_keys_file: Path | None = None

    @field_validator("api_key")
    @classmethod
    def _usable_key(cls, value: str | None) -> str | None:
        return value and _credential(value)

    @field_validator("api_keys")
    @classmethod
    def _usable_keys(cls, value: list[str]) -> list[str]:
        return [_credential(key) for key in value]

    @field_validator("api_keys_file")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        try:
            keys = read_keys(value)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"can't be read: {type(error).__name__}") from None
        if not keys:
            raise ValueError("holds no key")
        for key in keys:
            _credential(key)
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.api_keys_file is not None and (self.api_key or self.api_keys):
            raise ValueError("give `api_keys_file`, or keys in the configuration, not both")
        return self

    def credentials(self) -> list[str]:
        """All keys, each once."""
        if self.api_keys_file is not None:
            return read_keys(self.api_keys_file)
        return list(dict.fromkeys([*([self.api_key] if self.api_key else []), *self.api_keys]))


class _WithBatches(_Keyed):
    """A provider that has batches of its own."""

    native_batch: NativeBatchSettings | None = None

    @model_validator(mode="after")
    def _key_for_batches(self) -> Self:
        if self.native_batch is not None and not self.credentials():
            raise ValueError("`native_batch` needs the provider's key")
        return self


class OpenAIProvider(_WithBatches):
    """OpenAI, or any server that speaks its protocol at `base_url`."""

    kind: Literal["openai"]
    base_url: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    responses: bool | None = None
    timeouts: TimeoutSettings = TimeoutSettings()

    _url = field_validator("base_url")(lambda value: value and _http_url(value))


class AnthropicProvider(_WithBatches):
    """Anthropic, or a server that speaks its protocol at `base_url`."""

    kind: Literal["anthropic"]
    base_url: str | None = None
    timeouts: TimeoutSettings = TimeoutSettings()

    _url = field_validator("base_url")(lambda value: value and _http_url(value))


class PoolHealthSettings(_Strict):
    """How replicas are watched, in seconds; see `HealthChecks` and `HealthPolicy`."""

    interval_seconds: float = Field(0.4, gt=0)
    timeout_seconds: float = Field(0.9, gt=0)
    idle_probe_seconds: float = Field(5.0, gt=0)
    metrics_seconds: float = Field(2.0, gt=0)
    stall_seconds: float = Field(30.0, gt=0)
    failures: int = Field(3, gt=0)
    slow_probes: int = Field(2, gt=0)
    ejection_seconds: float = Field(5.0, gt=0)
    longest_ejection_seconds: float = Field(60.0, gt=0)
    ramp_seconds: float = Field(30.0, gt=0)


class TTFTObjectives(_Strict):
    """Seconds to the first token, by tier; null: as long as the request's own deadline lets it."""

    interactive: float | None = Field(10.0, gt=0)
    batch: float | None = Field(None, gt=0)


class PoolSettings(_Strict):
    """How requests are spread over a provider's replicas; see `PoolConfig`."""

    discover: bool = False
    placement: PolicyName = "prefix_load"
    ttft_slo_seconds: TTFTObjectives = TTFTObjectives()
    max_running: int | None = Field(None, gt=0)
    max_batched_tokens: int | None = Field(None, gt=0)
    max_queued: int = Field(64, ge=0)
    max_waiting: int = Field(10_000, gt=0)
    kv_blocks: int | None = Field(None, gt=0)
    block_size: int = Field(16, gt=0)
    prefill_tokens_per_second: float = Field(8_000.0, gt=0)
    bytes_per_token: float = Field(4.0, ge=1, le=20)
    engine_priority: bool = False
    kv_events: bool = False
    team_weights: dict[str, float] = Field(default={})
    team_priorities: dict[str, Priority] = Field(default={})
    ageing_seconds: float = Field(10.0, gt=0)
    isolation: float = Field(2.0, ge=0, le=10)
    replica_header: Literal["name", "hash", "none"] = "hash"
    health: PoolHealthSettings = PoolHealthSettings()

    @field_validator("team_weights")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not 0 < weight <= 1e6 for weight in value.values()):
            raise ValueError("weights must be above 0")
        return value


class VLLMProvider(_Keyed):
    """vLLM replicas of one's own: a single one, or with `pool` or several a pool of equal ones."""

    kind: Literal["vllm"]
    replicas: list[str] = Field(default=[])
    pool: PoolSettings | None = None
    timeouts: TimeoutSettings = TimeoutSettings()

    @field_validator("replicas")
    @classmethod
    def _urls(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("names a replica twice")
        return [_http_url(url) for url in value]

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not self.replicas and not (self.pool is not None and self.pool.discover):
            raise ValueError("needs `replicas`, or a `pool` with `discover: true`")
        return self

    @property
    def pooled(self) -> bool:
        """Whether there is anything to choose."""
        return self.pool is not None or len(self.replicas) > 1


class SimulatorProvider(_Strict):
    """The built-in vLLM look-alike."""

    kind: Literal["simulator"]
    ttft_ms: float = Field(20.0, ge=0)
    itl_ms: float = Field(5.0, ge=0)
    engine: EngineSettings | None = None
    timeouts: TimeoutSettings = TimeoutSettings()


Provider = Annotated[
    OpenAIProvider | AnthropicProvider | VLLMProvider | SimulatorProvider,
    Field(discriminator="kind"),
]


class PriceSettings(_Strict):
    """USD per million tokens, as decimal text."""

    input_per_mtok: Decimal
    output_per_mtok: Decimal = Decimal(0)
    cached_input_per_mtok: Decimal | None = None
    cache_write_per_mtok: Decimal | None = None
    batch_share: Decimal | None = Field(None, ge=0, le=1)

    @field_validator("*")
    @classmethod
    def _exact(cls, value: Decimal | None) -> Decimal | None:
        if value is not None:
            nano_usd(value)
        return value

    def price(self) -> Price:
        """The same in nano-USD."""
        return Price.of_usd(
            self.input_per_mtok,
            self.output_per_mtok,
            self.cached_input_per_mtok,
            self.cache_write_per_mtok,
            self.batch_share,
        )


class DeploymentSettings(_Strict):
    """Where a model runs."""

    provider: str
    model: str = Field(min_length=1)
    weight: int = Field(100, ge=0)


class ModelSettings(_Strict):
    """A model that callers may name."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")
    context_length: int = Field(gt=0)
    capabilities: list[Capability] = Field(min_length=1)
    tiers: list[Tier] = Field(default=["interactive", "batch"], min_length=1)
    price: PriceSettings | None = None
    default_max_tokens: int | None = Field(None, gt=0)
    deployments: list[DeploymentSettings] = Field(min_length=1)
    fallbacks: list[str] = Field(default=[])
    context_fallbacks: list[str] = Field(default=[])
    content_fallbacks: list[str] = Field(default=[])


class BreakerSettings(_Strict):
    """When a deployment rests after failures; see `BreakerConfig`."""

    window_seconds: float = Field(30.0, gt=0)
    min_calls: int = Field(10, gt=0)
    failure_ratio: float = Field(0.5, gt=0, le=1)
    open_seconds: float = Field(15.0, gt=0)
    max_cooldown_seconds: float = Field(300.0, gt=0)


class DispatchSettings(_Strict):
    """How upstreams are called."""

    attempts: int = Field(3, ge=1, le=10)
    breaker: BreakerSettings = BreakerSettings()


class ServerSettings(_Strict):
    """The gateway itself."""

    max_body_bytes: int = Field(32 * 1024 * 1024, gt=0)
    drain_seconds: float = Field(30.0, ge=0)
    heartbeat_seconds: float = Field(15.0, gt=0)
    max_header_bytes: int = Field(64 * 1024, ge=8192)
    header_seconds: float = Field(30.0, gt=0)
    body_seconds: float = Field(60.0, gt=0)
    stalled_reader_seconds: float = Field(30.0, gt=0)
    responses_retention_days: float = Field(30.0, gt=0)


class AdmissionSettings(_Strict):
    """How limits are kept."""

    mode: Literal["leased", "exact"] = "leased"
    redis_away: Literal["closed", "open"] = "closed"
    lease_seconds: float = Field(10.0, ge=2, le=300)


class IdempotencySettings(_Strict):
    """How requests with an `Idempotency-Key` are answered."""

    retention_seconds: float = Field(86_400.0, gt=0)
    max_bytes: int = Field(8 * 1024 * 1024, gt=0, le=256 * 1024 * 1024)
    grace_seconds: float = Field(30.0, ge=0)
    lease_seconds: float = Field(5.0, ge=1, le=60)
    redis_away: Literal["closed", "open"] = "closed"


class EgressSettings(_Strict):
    """What the server itself may fetch, of URLs that others name; see `EgressPolicy`."""

    allow_hosts: list[str] = Field(default=[])
    allow_networks: list[IPv4Network | IPv6Network] = Field(default=[])
    only_hosts: list[str] = Field(default=[])
    ports: list[int] = Field(default=[80, 443], min_length=1)
    plain_http: bool = True
    timeout_seconds: float = Field(10.0, gt=0, le=300)
    max_response_bytes: int = Field(1024 * 1024, gt=0)

    def policy(self) -> EgressPolicy:
        """The same as a policy."""
        return EgressPolicy(
            allow_hosts=tuple(self.allow_hosts),
            allow_networks=tuple(self.allow_networks),
            only_hosts=tuple(self.only_hosts),
            ports=frozenset(self.ports),
            plain_http=self.plain_http,
            max_bytes=self.max_response_bytes,
            seconds=self.timeout_seconds,
        )


class GrantSettings(_Strict):
    """A role for everybody whose claim has a value; see `Grant`."""

    claim: str = Field("groups", min_length=1)
    value: str = Field(min_length=1)
    role: Role
    organisation: str | None = None
    team: str | None = None

    @model_validator(mode="after")
    def _confined(self) -> Self:
        if self.role == "team_admin" and self.team is None:
            raise ValueError("a team_admin needs a `team`")
        return self


class OIDCSettings(_Strict):
    """Sign-in of people with an OpenID Connect provider."""

    issuer: str
    client_id: str = Field(min_length=1)
    client_secret: str | None = None
    cli_client_id: str | None = None
    scopes: list[str] = Field(default=["openid", "profile", "email"])
    audiences: list[str] = Field(default=[])
    public_url: str
    session_hours: float = Field(8.0, gt=0, le=24 * 30)
    roles: list[GrantSettings] = Field(min_length=1)

    _urls = field_validator("public_url")(lambda value: _http_url(value).rstrip("/"))

    @field_validator("issuer")
    @classmethod
    def _issuer(cls, value: str) -> str:
        parts = urlsplit(_http_url(value))
        if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("must be an https:// URL, unless it is on this machine")
        return value

    @field_validator("scopes")
    @classmethod
    def _openid(cls, value: list[str]) -> list[str]:
        if "openid" not in value:
            raise ValueError("must have `openid` among them")
        return value

    def client(self) -> Client:
        """What we are to the provider."""
        return Client(
            id=self.client_id,
            secret=self.client_secret or None,
            cli_id=self.cli_client_id,
            scopes=tuple(self.scopes),
            audiences=tuple(self.audiences),
            public_url=self.public_url,
        )

    def grants(self) -> list[Grant]:
        """What its people are here."""
        return [
            Grant(each.claim, each.value, each.role, each.organisation, each.team)
            for each in self.roles
        ]


class Config(_Strict):
    """The configuration file."""

    providers: dict[str, Provider] = Field(min_length=1)
    models: list[ModelSettings] = Field(default=[], validate_default=True)
    server: ServerSettings = ServerSettings()
    dispatch: DispatchSettings = DispatchSettings()
    egress: EgressSettings = EgressSettings()
    oidc: OIDCSettings | None = None
    routing: dict[str, AutoSettings] | None = None
    learning: LearningSettings = LearningSettings()
    admission: AdmissionSettings = AdmissionSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    batch: BatchSettings = BatchSettings()

    @field_validator("models")
    @classmethod
    def _something(cls, value: list[ModelSettings], info: ValidationInfo) -> list[ModelSettings]:
        providers = info.data.get("providers", {}).values()
        if not value and not any(isinstance(each, VLLMProvider) for each in providers):
            raise ValueError("is empty; only vLLM providers serve models of the registry")
        return value

    def credentials(self) -> dict[str, list[str]]:
        """The keys of each provider that has any."""
        keyed = {
            name: provider.credentials()
            for name, provider in self.providers.items()
            if isinstance(provider, _Keyed)
        }
        return {name: keys for name, keys in keyed.items() if keys}

    def key_files(self) -> dict[str, Path]:
        """The key files of the providers that have one."""
        return {
            name: provider.api_keys_file
            for name, provider in self.providers.items()
            if isinstance(provider, _Keyed) and provider.api_keys_file is not None
        }

    def secrets(self) -> list[str]:
        """Credentials that must appear in no output."""
        own = [self.oidc.client_secret] if self.oidc and self.oidc.client_secret else []
        own += self.batch.storage_secrets()
        return [key for keys in self.credentials().values() for key in keys] + own
