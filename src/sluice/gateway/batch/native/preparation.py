"""From an item's line to what a provider gets, and to how its answer is read: by the checks and the
codecs of requests that are called live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sluice.backends.base import Dialect, Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.batch.native.provider import NativeRequest
from sluice.gateway.batch.native.records import NativeBatch, NativeItem
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.gateway.intake import read_body
from sluice.gateway.output_bounds import bounded
from sluice.gateway.quotas.needs import Needs
from sluice.router.catalog import Catalog, Deployment, Model
from sluice.router.translation import Call, Translation, translate
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import MalformedJSON, decode_object

#: What an item's text can be refused for.
_FAULTS = (
    *(GatewayError, InvalidRequest, MalformedJSON, KeyError),
    *(msgspec.DecodeError, RecursionError),
)


class Unfit(Exception):
    """An item can't go to the provider; called live, it is heard what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An item as its provider takes it.

    Attributes:
        endpoint: the provider's operation.
        translation: reads the answer.
        need_nano_usd: more than it can cost, called live.
    """

    item: NativeItem
    model: Model
    request: NativeRequest
    endpoint: Endpoint
    translation: Translation
    need_nano_usd: int


class Preparation:
    """Prepares items."""

    def __init__(self, catalog: Catalog, dialects: Mapping[str, Dialect], needs: Needs) -> None:
        """Args:
        dialects: of the providers, by name.
        """
        self._catalog = catalog
        self._dialects = dialects
        self._needs = needs

    def prepare(
        self,
        native: NativeBatch,
        item: NativeItem,
        text: bytes,
        principal: Principal,
        sent: bool = False,
    ) -> Prepared:
        """An item for the provider.

        Args:
            text: the item's line.
            principal: whose it is.
            sent: it was handed over before; how much it may ask for now does not matter.

        Raises:
            Unfit: see there.
        """
        try:
            return self._prepare(native, item, text, principal, sent)
        except _FAULTS as error:
            raise Unfit(str(error)) from None

    def _prepare(
        self,
        native: NativeBatch,
        item: NativeItem,
        text: bytes,
        principal: Principal,
        sent: bool,
    ) -> Prepared:
        body = bytes(decode_object(text)["body"])
        model = self._catalog.get(native.model)
        provider, _, name = native.deployment.partition("/")
        dialect = self._dialects.get(provider)
        if model is None or dialect is None:
            raise Unfit("the model is not served any more")
        received = read_body(_exchange(native.endpoint), principal, body)
        request = received.request
        if not sent:
            request = bounded(native.endpoint, request, model, principal.policy)
        elif request.max_tokens is None:
            request = request.bounded(model.context_length)
        call = Call(
            endpoint=native.endpoint,
            request=request,
            request_id=native.id.hex,
            created=int(native.created_at.timestamp()),
            encoding=received.encoding,
            team_id=principal.team_id,
            tier="batch",
        )
        translation = translate(call, model, Deployment(provider, name), dialect)
        if not sent:
            msgspec.json.decode(translation.body)  # providers' SDKs read what is passed on raw here
        return Prepared(
            item=item,
            model=model,
            request=NativeRequest(name_of(native, item.line), translation.body),
            endpoint=translation.endpoint,
            translation=translation,
            need_nano_usd=self._needs.of(native.endpoint, request, body, [model]).nano_usd,
        )


def name_of(native: NativeBatch, line: int) -> str:
    """An item's `custom_id` at the provider: like no other item's, and nothing that its tenant
    wrote."""
    return f"{native.id.hex}-{line}"


def line_of(native: NativeBatch, name: str) -> int | None:
    """The line of an item by its name at the provider; None: it is no item of this batch."""
    prefix, _, line = name.partition("-")
    return int(line) if prefix == native.id.hex and line.isascii() and line.isdigit() else None


def _exchange(endpoint: Endpoint) -> Exchange:
    """What the checks of a request want to see of it besides its body."""
    headers = [(b"x-tier", b"batch")]
    return Exchange(endpoint, {"method": "POST", "headers": headers}, _nothing, _nothing)


async def _nothing(*_: object) -> None:
    """There is nobody to receive from, and nobody to send to."""
