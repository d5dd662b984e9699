"""An identity provider's tokens: which are believed. Pure; keys come from outside.

Signatures are checked by PyJWT. Only asymmetric algorithms are taken, whatever a token says of
itself: `none` and those with a shared secret would let a caller sign its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

ALGORITHMS = ("RS256", "ES256", "EdDSA")

#: How far the provider's clock may be off, in seconds.
LEEWAY_SECONDS = 30

#: What the header of a token for an API may say it is; a logout token is none.
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})

_Claims = Mapping[str, Any]


class TokenRefused(Exception):
    """The token is not believed; the message says why, and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a token must say.

    Attributes:
        issuer: exactly.
        audiences: of which it must name one.
        parties: of which `azp` must be one, where the token has it and is meant for a client.
        nonce: exactly; None: not looked at.
    """

    issuer: str
    audiences: frozenset[str]
    parties: frozenset[str]
    nonce: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What a token says of its own signature, before it is believed."""

    key_id: str | None
    algorithm: str


def looks_like_token(credential: str) -> bool:
    """Whether a credential is a signed token, and no key."""
    return credential.startswith("ey") and credential.count(".") == 2


def read_header(token: str) -> Header:
    """The header of a token.

    Raises:
        TokenRefused: it is malformed, or signed in a way that proves nothing.
    """
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        raise TokenRefused("the token is malformed") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused("the token's signature algorithm is not accepted")
    if str(header.get("typ", "JWT")).lower() not in _TYPES:
        raise TokenRefused("the token is of another type")
    if "crit" in header:
        raise TokenRefused("the token has critical extensions")
    return Header(key_id if isinstance(key_id, str) else None, str(algorithm))


def usable_keys(key_set: Mapping[str, Any]) -> dict[str | None, jwt.PyJWK]:
    """The keys of a JWKS document that may sign tokens, by id; a key alone counts without one.

    Keys of other kinds are left out: a provider may have more than we need.
    """
    found: dict[str | None, jwt.PyJWK] = {}
    entries = key_set.get("keys")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        if entry.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        try:
            key = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            found[key.key_id] = key
    if len(found) == 1:
        found[None] = next(iter(found.values()))
    return found


def believed_claims(token: str, key: jwt.PyJWK, expected: Expected) -> dict[str, Any]:
    """The claims of a token.

    Raises:
        TokenRefused: its signature, issuer, audience, party, times or nonce are not as expected.
    """
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            audience=expected.audiences,
            issuer=expected.issuer,
            leeway=LEEWAY_SECONDS,
            options={
                "require": ["exp", "iat", "iss", "aud", "sub"],
                "enforce_minimum_key_length": True,
            },
        )
    except jwt.ExpiredSignatureError:
        raise TokenRefused("the token has expired") from None
    except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError) as error:
        raise TokenRefused(f"the token is not valid: {_reason(error)}") from None
    _check_party(claims, expected)
    if expected.nonce is not None and claims.get("nonce") != expected.nonce:
        raise TokenRefused("the token belongs to another login")
    if not isinstance(claims["sub"], str) or not 1 <= len(claims["sub"]) <= 255:
        raise TokenRefused("the token names no subject")
    return claims


def _check_party(claims: _Claims, expected: Expected) -> None:
    """A token for several audiences says which of them asked for it."""
    audiences: Collection[str] = claims["aud"]
    several = not isinstance(audiences, str) and len(audiences) > 1
    party = claims.get("azp")
    for_a_client = not expected.parties.isdisjoint(
        [audiences] if isinstance(audiences, str) else audiences
    )
    if for_a_client and (party not in expected.parties if party is not None else several):
        raise TokenRefused("the token was issued to another client")


def _reason(error: Exception) -> str:
    """The kind of fault, without the token's contents."""
    return type(error).__name__.removesuffix("Error").removeprefix("Invalid").lower()
