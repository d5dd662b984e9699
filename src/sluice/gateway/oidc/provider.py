"""The identity provider: its metadata, its keys, and its token endpoint."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import jwt
import msgspec

from sluice.gateway.egress import Egress, EgressFailed, EgressRefused
from sluice.gateway.oidc.tokens import (
    Expected,
    TokenRefused,
    believed_claims,
    read_header,
    usable_keys,
)

#: How long metadata and keys are good for, in seconds.
FRESH_SECONDS = 3600.0

#: A token with an unknown key makes us look for new ones, this often at most, in seconds: callers
#: can make up keys as fast as they like.
REFRESH_SECONDS = 30.0


class ProviderUnavailable(Exception):
    """The identity provider can't be reached, or what it says can't be used."""


class CodeRefused(Exception):
    """The identity provider takes no such authorization code."""


class Metadata(msgspec.Struct, frozen=True):
    """What a provider says of itself, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class IdentityProvider:
    """One issuer."""

    def __init__(
        self, issuer: str, egress: Egress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.issuer = issuer
        self._egress = egress
        self._clock = clock
        self._metadata: Metadata | None = None
        self._metadata_at = 0.0
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._keys_at: float | None = None
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def metadata(self) -> Metadata:
        """The provider's metadata, an hour old at most while it can be reached.

        Raises:
            ProviderUnavailable: there is none.
        """
        async with self._lock:
            return await self._fresh_metadata()

    async def claims(self, token: str, expected: Expected) -> dict[str, Any]:
        """The claims of a token of this provider's.

        Raises:
            TokenRefused: it is not believed.
            ProviderUnavailable: the keys can't be had.
        """
        header = read_header(token)
        key = await self._key(header.key_id)
        if key is None:
            raise TokenRefused("the token is signed with an unknown key")
        return believed_claims(token, key, expected)

    async def redeem(self, code: str, form: Mapping[str, str], secret: str | None) -> str:
        """The ID token for an authorization code.

        Args:
            form: the redirect URI, the client's id and the code's verifier.
            secret: the client's; None for a public client.

        Raises:
            CodeRefused: the provider refused.
            ProviderUnavailable: it can't be reached.
        """
        metadata = await self.metadata()
        fields = {"grant_type": "authorization_code", "code": code, **form}
        headers = {
            "accept": "application/json",
            "content-type": "application/x-www-form-urlencoded",
        }
        if secret is not None:
            if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
                pair = f"{quote(form['client_id'], '')}:{quote(secret, '')}"
                headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
            else:
                fields["client_secret"] = secret
        status, body = await self._fetch(
            "POST", metadata.token_endpoint, headers, urlencode(fields).encode()
        )
        answer = _object(body)
        token = answer.get("id_token") if answer else None
        if status != 200 or not isinstance(token, str):
            raise CodeRefused
        return token

    async def _key(self, key_id: str | None) -> jwt.PyJWK | None:
        async with self._lock:
            now = self._clock()
            stale = self._keys_at is None or now - self._keys_at > FRESH_SECONDS
            rested = self._asked_at is None or now - self._asked_at > REFRESH_SECONDS
            if (stale or key_id not in self._keys) and rested:
                self._asked_at = now
                try:
                    await self._load_keys()
                except ProviderUnavailable:
                    if key_id not in self._keys:
                        raise
            elif self._keys_at is None:
                raise ProviderUnavailable("the identity provider's keys are not known")
            return self._keys.get(key_id)

    async def _load_keys(self) -> None:
        metadata = await self._fresh_metadata()
        status, body = await self._fetch("GET", metadata.jwks_uri)
        document = _object(body)
        keys = usable_keys(document) if status == 200 and document else {}
        if not keys:
            raise ProviderUnavailable("the identity provider has no usable keys")
        self._keys, self._keys_at = keys, self._clock()

    async def _fresh_metadata(self) -> Metadata:
        now = self._clock()
        if self._metadata is not None and now - self._metadata_at < FRESH_SECONDS:
            return self._metadata
        url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
        status, body = await self._fetch("GET", url)
        try:
            metadata = msgspec.json.decode(body, type=Metadata)
        except msgspec.DecodeError:
            raise ProviderUnavailable("the identity provider's metadata is malformed") from None
        if status != 200 or metadata.issuer != self.issuer:
            raise ProviderUnavailable("the identity provider's metadata is another issuer's")
        self._metadata, self._metadata_at = metadata, now
        return metadata

    async def _fetch(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        try:
            answer = await self._egress.request(method, url, headers, body)
        except (EgressRefused, EgressFailed) as error:
            raise ProviderUnavailable(f"the identity provider can't be reached: {error}") from None
        return answer.status, answer.body


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None
