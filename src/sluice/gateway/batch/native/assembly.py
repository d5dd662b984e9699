"""Where the parts of native batches are made and joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import asyncpg

from sluice.backends.base import Backend
from sluice.billing.prices import Price
from sluice.gateway.auth import KeyRing
from sluice.gateway.batch.items import Items
from sluice.gateway.batch.native.preparation import Preparation
from sluice.gateway.batch.native.provider import NativeProvider, ProviderBatches
from sluice.gateway.batch.native.records import NativeRecords
from sluice.gateway.batch.native.rules import NativeRules
from sluice.gateway.batch.native.service import NativeBatches
from sluice.gateway.batch.native.submitter import Submitter
from sluice.gateway.batch.native.watcher import Watcher
from sluice.gateway.batch.storage import Storage
from sluice.gateway.quotas.admission import Admission
from sluice.gateway.quotas.needs import Needs
from sluice.gateway.settings import AnthropicProvider, Config, OpenAIProvider
from sluice.router.catalog import Catalog
from sluice.router.credentials import Credentials


def create_native_providers(
    config: Config, credentials: Mapping[str, Credentials]
) -> dict[str, NativeProvider]:
    """The providers whose batches are used, by name."""
    found: dict[str, NativeProvider] = {}
    for name, provider in config.providers.items():
        if not isinstance(provider, OpenAIProvider | AnthropicProvider):
            continue
        held = credentials.get(name)
        if provider.native_batch is None or held is None:
            continue
        found[name] = NativeProvider(_batches(provider), provider.native_batch.policy(), held)
    return found


def _batches(provider: OpenAIProvider | AnthropicProvider) -> ProviderBatches:
    """By the provider's SDK, which costs a second and 50 MB to import: only where it is used."""
    if isinstance(provider, OpenAIProvider):
        from sluice.gateway.batch.native.openai_batches import OpenAIBatches  # noqa: PLC0415

        return OpenAIBatches(provider.base_url)
    from sluice.gateway.batch.native.anthropic_batches import AnthropicBatches  # noqa: PLC0415

    return AnthropicBatches(provider.base_url)


def create_native_rules(catalog: Catalog, providers: Mapping[str, NativeProvider]) -> NativeRules:
    """The rules that the providers' policies make."""
    return NativeRules(catalog, {name: each.policy for name, each in providers.items()})


def create_native_batches(
    *,
    pool: asyncpg.Pool,
    storage: Storage,
    items: Items,
    providers: Mapping[str, NativeProvider],
    rules: NativeRules,
    catalog: Catalog,
    backends: Mapping[str, Backend],
    prices: Mapping[str, Price],
    needs: Needs,
    admission: Admission,
    keys: KeyRing,
    gateway: str,
    observe: Callable[[str, str, int], None],
) -> NativeBatches:
    """Join the parts; nothing runs until `run`.

    Args:
        providers: see `create_native_providers`.
        rules: see `create_native_rules`.
        backends: by provider name.
        prices: by model name.
        gateway: this process's id.
        observe: is told of how many items of a provider ended how: `ok` or `live`.
    """
    records = NativeRecords(pool)
    dialects = {name: backend.dialect for name, backend in backends.items()}
    preparation = Preparation(catalog, dialects, needs)
    submitter = Submitter(
        records=records,
        rules=rules,
        providers=providers,
        preparation=preparation,
        storage=storage,
        keys=keys,
        admission=admission,
    )
    watcher = Watcher(
        records=records,
        providers=providers,
        submitter=submitter,
        preparation=preparation,
        storage=storage,
        items=items,
        prices=prices,
        keys=keys,
        admission=admission,
        gateway=gateway,
        observe=observe,
    )
    return NativeBatches(submitter, watcher, providers)
