"""The login of a person in a browser: authorization code flow with PKCE, state and nonce."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from sluice.gateway.oidc.people import People, Person, person
from sluice.gateway.oidc.provider import CodeRefused, IdentityProvider
from sluice.gateway.oidc.sessions import LoginAttempt, Sessions, secret_hash
from sluice.gateway.oidc.tokens import Expected, TokenRefused


class LoginFailed(Exception):
    """The login did not come to an end; the message may be shown."""


@dataclass(frozen=True, slots=True)
class Client:
    """What we are to the identity provider.

    Attributes:
        secret: None for a public client.
        cli_id: the public client of the command line, whose tokens count too.
        audiences: of other tokens that are accepted as a bearer.
        public_url: where browsers find this gateway, without a slash at the end.
    """

    id: str
    secret: str | None
    cli_id: str | None
    scopes: tuple[str, ...]
    audiences: tuple[str, ...]
    public_url: str

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back to."""
        return f"{self.public_url}/auth/callback"

    @property
    def origin(self) -> str:
        """What browsers call the origin of our own pages."""
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def parties(self) -> frozenset[str]:
        """Our own clients."""
        return frozenset({self.id} if self.cli_id is None else {self.id, self.cli_id})


@dataclass(frozen=True, slots=True)
class Begun:
    """A login on its way to the provider.

    Attributes:
        url: where the browser goes.
        browser: secret that the browser brings back, in a cookie.
    """

    url: str
    browser: str


class Login:
    """See the module."""

    def __init__(
        self, client: Client, provider: IdentityProvider, sessions: Sessions, people: People
    ) -> None:
        self._client = client
        self._provider = provider
        self._sessions = sessions
        self._people = people

    async def begin(self, return_to: str) -> Begun:
        """Send a browser to the provider.

        Raises:
            ProviderUnavailable: its metadata can't be had.
        """
        metadata = await self._provider.metadata()
        state, nonce, verifier, browser = (secrets.token_urlsafe(32) for _ in range(4))
        await self._sessions.begin_login(
            state, LoginAttempt(nonce, verifier, secret_hash(browser), local_path(return_to))
        )
        query = {
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": self._client.redirect_uri,
            "scope": " ".join(self._client.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return Begun(metadata.authorization_endpoint + joint + urlencode(query), browser)

    async def complete(
        self, state: str, code: str, browser: str | None, issuer: str | None
    ) -> tuple[Person, str]:
        """Who has come back from the provider, and the path that they go on to.

        Args:
            state, code, issuer: what the provider sent along; the issuer where it names itself.
            browser: the secret of `begin`.

        Raises:
            LoginFailed: it is none of ours, another browser's, or not believed.
            ProviderUnavailable: the code can't be redeemed.
        """
        attempt = await self._sessions.take_login(state)
        if attempt is None:
            raise LoginFailed("this login is over, or was never begun: begin again")
        if browser is None or not hmac.compare_digest(attempt.browser, secret_hash(browser)):
            raise LoginFailed("this login was begun in another browser")
        if issuer is not None and issuer != self._provider.issuer:
            raise LoginFailed("this login was answered by another identity provider")
        form = {
            "redirect_uri": self._client.redirect_uri,
            "client_id": self._client.id,
            "code_verifier": attempt.verifier,
        }
        own = frozenset({self._client.id})
        try:
            token = await self._provider.redeem(code, form, self._client.secret)
            claims = await self._provider.claims(
                token, Expected(self._provider.issuer, own, own, attempt.nonce)
            )
        except CodeRefused:
            raise LoginFailed("the identity provider refused the login") from None
        except TokenRefused as refusal:
            raise LoginFailed(str(refusal)) from None
        return person(claims, self._people.grants), attempt.return_to


def challenge(verifier: str) -> str:
    """The code challenge of a verifier (RFC 7636, S256)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def local_path(given: str) -> str:
    """A path of our own to go on to; `/auth/session` for everything that leads elsewhere."""
    plain = given.isascii() and given.isprintable() and "\\" not in given
    if plain and given.startswith("/") and not given.startswith("//"):
        return given
    return "/auth/session"
