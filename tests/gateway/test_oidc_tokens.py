"""Tokens of people: which are believed, and which keys are asked for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.gateway.egress import Egress, EgressPolicy
from sluice.gateway.oidc.cookies import Cookies, is_own_doing
from sluice.gateway.oidc.login import local_path
from sluice.gateway.oidc.people import Grant, grant_of, person
from sluice.gateway.oidc.provider import (
    FRESH_SECONDS,
    REFRESH_SECONDS,
    IdentityProvider,
    ProviderUnavailable,
)
from sluice.gateway.oidc.tokens import Expected, TokenRefused, looks_like_token
from tests.harness.issuer import AUDIENCE, CLIENT, Issuer


class World:
    """An issuer, and our view of it with a clock that stands still."""

    def __init__(self) -> None:
        self.issuer = Issuer()
        self.now = 1000.0
        port = int(self.issuer.url.rpartition(":")[2])
        policy = EgressPolicy(allow_hosts=("127.0.0.1",), ports=frozenset({port}))
        self.provider = IdentityProvider(self.issuer.url, Egress(policy), lambda: self.now)

    async def claims(self, token: str, nonce: str | None = None) -> dict[str, Any]:
        """The claims of a token, as the admin API wants them."""
        own = frozenset({CLIENT})
        expected = Expected(self.issuer.url, own | {AUDIENCE}, own, nonce)
        return await self.provider.claims(token, expected)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.issuer.close()


@pytest.mark.parametrize("key", ["rsa", "ec", "ed"])
async def test_honest_tokens_of_every_key_are_believed(world: World, key: str) -> None:
    assert (await world.claims(world.issuer.token(key)))["sub"] == "subject-1"
    assert (await world.claims(world.issuer.token(key, aud=AUDIENCE)))["aud"] == AUDIENCE


REFUSED: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"},
    "the issuer with a slash": {"iss": "http://127.0.0.1/"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "somebody-else"},
    "no audience": {"aud": None},
    "an empty audience": {"aud": []},
    "expired": {"exp": int(time.time()) - 60},
    "no expiry": {"exp": None},
    "an expiry that is no number": {"exp": "never"},
    "not yet": {"nbf": int(time.time()) + 86_400},
    "issued in the future": {"iat": int(time.time()) + 86_400},
    "no subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "a long subject": {"sub": "x" * 256},
    "two audiences and no party": {"aud": [CLIENT, "other"]},
    "two audiences and another party": {"aud": [CLIENT, "other"], "azp": "other"},
    "another party": {"azp": "other"},
}


@pytest.mark.parametrize("name", REFUSED)
async def test_tokens_that_say_the_wrong_things_are_refused(world: World, name: str) -> None:
    token = world.issuer.token(**REFUSED[name])
    with pytest.raises(TokenRefused) as refused:
        await world.claims(token)
    assert not any(part in str(refused.value) for part in token.split("."))


async def test_a_party_of_our_own_is_fine(world: World) -> None:
    token = world.issuer.token(aud=[CLIENT, "other"], azp=CLIENT)
    assert await world.claims(token)
    assert await world.claims(world.issuer.token(aud=AUDIENCE, azp="a-program"))


async def test_clocks_may_differ_a_little(world: World) -> None:
    now = int(time.time())
    assert await world.claims(world.issuer.token(exp=now - 10))
    assert await world.claims(world.issuer.token(nbf=now + 10, iat=now + 10))


async def test_the_nonce_must_be_the_logins(world: World) -> None:
    assert await world.claims(world.issuer.token(nonce="mine"), "mine")
    for nonce in ("other", None, ""):
        with pytest.raises(TokenRefused, match="another login"):
            await world.claims(world.issuer.token(nonce=nonce), "mine")


def unsigned(world: World, algorithm: str, signature: str = "") -> str:
    """A token that nobody signed."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    header = {"alg": algorithm, "typ": "JWT", "kid": "rsa"}
    return f"{part(header)}.{part(world.issuer.claims())}.{signature}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", "HS256", "RS512", "x"])
async def test_no_algorithm_and_weak_ones_are_refused(world: World, algorithm: str) -> None:
    for signature in ("", "AAAA"):
        with pytest.raises(TokenRefused):
            await world.claims(unsigned(world, algorithm, signature))


async def test_a_public_key_is_no_shared_secret(world: World) -> None:
    """The old confusion: an HMAC with the public key's text, that everybody has."""
    public = world.issuer.keys["rsa"].public_key()
    text = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = unsigned(world, "HS256").rpartition(".")[0]
    signature = hmac.new(text, head.encode(), hashlib.sha256).digest()
    forged = f"{head}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    with pytest.raises(TokenRefused):
        await world.claims(forged)


async def test_a_signature_by_another_key_is_refused(world: World) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for key_id in ("rsa", "ec", "unknown"):
        forged = jwt.encode(world.issuer.claims(), stranger, "RS256", {"kid": key_id})
        with pytest.raises(TokenRefused):
            await world.claims(forged)


async def test_a_token_that_was_changed_is_refused(world: World) -> None:
    head, _, signature = world.issuer.token().split(".")
    claims = json.dumps(world.issuer.claims(groups=["everything"])).encode()
    changed = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    for token in (f"{head}.{changed}.{signature}", f"{head}.{changed}.", f"{head}.{changed}.AA"):
        with pytest.raises(TokenRefused):
            await world.claims(token)


@pytest.mark.parametrize(
    "header",
    [
        {"typ": "logout+jwt"},
        {"typ": "secevent+jwt"},
        {"crit": ["exp"]},
        {"jwk": {"kty": "oct", "k": "AAAA"}, "kid": "own"},
        {"jku": "http://evil.example/jwks", "kid": "own"},
        {"x5u": "http://evil.example/cert", "kid": "own"},
    ],
)
async def test_headers_that_choose_their_own_rules_are_refused(
    world: World, header: dict[str, Any]
) -> None:
    with pytest.raises(TokenRefused):
        await world.claims(world.issuer.token(header=header))


@pytest.mark.parametrize(
    "token", ["", "ey", "ey.ey.ey", "e30.e30.e30", "ey" + "x" * 9000 + "..", "é"]
)
async def test_what_is_no_token_is_refused(world: World, token: str) -> None:
    with pytest.raises(TokenRefused):
        await world.claims(token)


def test_keys_of_ours_are_not_taken_for_tokens() -> None:
    assert not looks_like_token("sk-sluice-abc")
    assert not looks_like_token("eyebrows")
    assert looks_like_token("eyJhbGciOiJSUzI1NiJ9.e30.AA")


async def test_unknown_keys_are_looked_for_but_not_at_every_callers_word(world: World) -> None:
    await world.claims(world.issuer.token())
    for _ in range(20):
        with pytest.raises(TokenRefused, match="unknown key"):
            await world.claims(world.issuer.token(header={"kid": "made-up"}))
    assert world.issuer.asked["/jwks"] == 1
    world.now += REFRESH_SECONDS + 1
    with pytest.raises(TokenRefused, match="unknown key"):
        await world.claims(world.issuer.token(header={"kid": "made-up"}))
    assert world.issuer.asked["/jwks"] == 2


async def test_rotated_keys_are_found_and_withdrawn_ones_forgotten(world: World) -> None:
    world.issuer.published = ["rsa"]
    old = world.issuer.token("rsa")
    assert await world.claims(old)
    world.issuer.published = ["ec"]
    world.now += REFRESH_SECONDS + 1
    assert await world.claims(world.issuer.token("ec"))
    with pytest.raises(TokenRefused, match="unknown key"):
        await world.claims(old)


async def test_known_keys_serve_while_the_provider_is_away(world: World) -> None:
    token = world.issuer.token()
    world.issuer.down = True
    with pytest.raises(ProviderUnavailable):
        await world.claims(token)
    with pytest.raises(ProviderUnavailable):  # and is not asked again at once
        await world.claims(token)
    world.issuer.down = False
    world.now += REFRESH_SECONDS + 1
    assert await world.claims(token)
    world.issuer.down = True
    world.now += FRESH_SECONDS + 1
    assert await world.claims(token)


async def test_metadata_of_another_issuer_is_not_taken(world: World) -> None:
    port = int(world.issuer.url.rpartition(":")[2])
    policy = EgressPolicy(allow_hosts=("localhost",), ports=frozenset({port}))
    other = IdentityProvider(f"http://localhost:{port}", Egress(policy))
    with pytest.raises(ProviderUnavailable, match="another issuer"):
        await other.metadata()


async def test_metadata_is_fetched_once_an_hour(world: World) -> None:
    path = "/.well-known/openid-configuration"
    for _ in range(3):
        await world.provider.metadata()
    assert world.issuer.asked[path] == 1
    world.now += FRESH_SECONDS + 1
    await world.provider.metadata()
    assert world.issuer.asked[path] == 2


GRANTS = [
    Grant("groups", "owners", "owner"),
    Grant("groups", "search-admins", "team_admin", team="search"),
    Grant("realm_access.roles", "auditor", "auditor"),
    Grant("department", "finance", "auditor", organisation="acme"),
]


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"groups": ["x", "owners"]}, "owner"),
        ({"groups": ["search-admins", "owners"]}, "owner"),
        ({"groups": ["search-admins"]}, "team_admin"),
        ({"groups": "search-admins"}, "team_admin"),
        ({"realm_access": {"roles": ["auditor"]}}, "auditor"),
        ({"realm_access.roles": ["auditor"]}, "auditor"),
        ({"department": "finance"}, "auditor"),
        ({"groups": ["Owners", "owners "]}, None),
        ({"groups": {"owners": True}}, None),
        ({"groups": [["owners"]]}, None),
        ({"groups": None}, None),
        ({"realm_access": ["auditor"]}, None),
        ({}, None),
    ],
)
def test_the_first_grant_that_fits_decides(claims: dict[str, Any], role: str | None) -> None:
    grant = grant_of(claims, GRANTS)
    assert (grant and grant.role) == role


def test_a_person_is_kept_without_what_nobody_asks_for() -> None:
    claims = {"sub": "s", "email": "a@b.test", "groups": ["g"], "picture": "large", "name": 7}
    somebody = person(claims, GRANTS)
    assert somebody.name == "a@b.test"
    assert somebody.claims == {"groups": ["g"]}


@pytest.mark.parametrize(
    ("method", "headers", "own"),
    [
        ("GET", {}, True),
        ("GET", {b"sec-fetch-site": b"cross-site"}, True),
        ("POST", {}, False),
        ("POST", {b"sec-fetch-site": b"same-origin"}, True),
        ("POST", {b"sec-fetch-site": b"same-site"}, False),
        ("POST", {b"sec-fetch-site": b"none"}, False),
        ("DELETE", {b"sec-fetch-site": b"cross-site"}, False),
        ("POST", {b"origin": b"https://gateway.test"}, True),
        ("POST", {b"origin": b"https://gateway.test.evil.test"}, False),
        ("POST", {b"origin": b"http://gateway.test"}, False),
        ("POST", {b"origin": b"null"}, False),
        ("POST", {b"sec-fetch-site": b"same-origin", b"origin": b"https://evil.test"}, False),
    ],
)
def test_only_our_own_pages_change_things(
    method: str, headers: dict[bytes, bytes], own: bool
) -> None:
    assert is_own_doing(method, headers, "https://gateway.test") is own


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/console?x=1", "/console?x=1"),
        ("//evil.test", "/auth/session"),
        ("https://evil.test", "/auth/session"),
        ("/\\evil.test", "/auth/session"),
        ("javascript:alert(1)", "/auth/session"),
        ("", "/auth/session"),
        ("/a\r\nset-cookie: x=y", "/auth/session"),
    ],
)
def test_logins_go_on_to_paths_of_ours_only(given: str, path: str) -> None:
    assert local_path(given) == path


def test_cookies_are_the_hosts_own_where_there_is_https() -> None:
    secure, plain = Cookies(secure=True), Cookies(secure=False)
    text = secure.set(secure.session, "v", 60).to_header(header="")
    assert text.startswith("__Host-sluice-session=v;")
    for part in ("HttpOnly", "Secure", "SameSite=lax", "Path=/", "Max-Age=60"):
        assert part in text
    assert "Domain" not in text
    assert "Secure" not in plain.set(plain.session, "v", 60).to_header(header="")
    assert plain.read([(b"cookie", b"a=b; sluice-session=v")], plain.session) == "v"
    assert plain.read([(b"cookie", b"a=b"), (b"x", b"y")], plain.session) is None
