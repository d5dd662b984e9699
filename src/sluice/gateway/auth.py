"""Who is calling: keys in process memory, kept fresh from Postgres.

Nothing on the request path talks to Postgres. The key ring holds every valid key's hash; a poll
asks for changes newer than the last revision seen, several times a second, so that a revocation
is in force everywhere within a second, by construction and without a message that could be lost.
While Postgres is away the ring serves what it knows, and says how old that is.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice.gateway.database_poll import DatabasePoll
from sluice.gateway.secrets import key_hash
from sluice.gateway.tenancy.changes import Changes, KeyChange, TokenChange
from sluice.gateway.tenancy.limits import NO_POLICY, Policy, Scope
from sluice.gateway.tenancy.roles import Administrator

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        policy: what it may do and spend.
        valid_until: seconds since the epoch after which the key is refused; None: no end.
    """

    organisation_id: str
    team_id: str
    team_name: str
    key_id: str
    policy: Policy = NO_POLICY
    valid_until: float | None = None


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The caller's credential: of `Authorization: Bearer …` (any case of the scheme), else of
    `x-api-key`, which Anthropic's clients may send; or None."""
    api_key: str | None = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, credential = value.partition(b" ")
            if scheme.lower() == b"bearer" and credential:
                return credential.strip().decode("latin-1")
        elif name == b"x-api-key" and value:
            api_key = value.strip().decode("latin-1")
    return api_key


class KeyRing:
    """The keys that are valid now, by hash."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._principals: dict[bytes, Principal] = {}
        self._by_id: dict[str, Principal] = {}
        self._successors: dict[str, str] = {}
        self.revision = 0

    def authenticate(self, credential: str | None) -> Principal | None:
        """The caller behind a credential; None for unknown, revoked and expired keys.

        The look-up is by the hash, so that its timing tells nothing about the key.
        """
        if credential is None:
            return None
        return self._valid(self._principals.get(key_hash(credential)))

    def holder(self, key_id: str) -> Principal | None:
        """Who has a key, by the key's id: for work that was accepted with it; None as above.

        Of a key that was rotated, once it is refused, that is the key in its place: rotation
        hands over what was begun, revocation ends it.
        """
        principal = self._valid(self._by_id.get(key_id))
        while principal is None and key_id in self._successors:  # a new key never leads back
            key_id = self._successors[key_id]
            principal = self._valid(self._by_id.get(key_id))
        return principal

    def _valid(self, principal: Principal | None) -> Principal | None:
        if principal is None:
            return None
        if principal.valid_until is not None and principal.valid_until <= self._clock():
            return None
        return principal

    def apply(self, changes: Iterable[KeyChange]) -> None:
        """Take over changes."""
        for change in changes:
            principal = self._principals[change.hash] = _principal(change)
            self._by_id[principal.key_id] = principal
            if change.replaced_by is not None:
                self._successors[principal.key_id] = str(change.replaced_by)
            self.revision = max(self.revision, change.revision)

    def of_team(self, name: str) -> Principal | None:
        """A caller of a team, by the team's name; None: it has no key."""
        return next((each for each in self._principals.values() if each.team_name == name), None)

    def budgeted(self) -> list[Scope]:
        """Every level of every key that has budgets, each once."""
        scopes = {
            (scope.level, scope.id): scope
            for principal in self._principals.values()
            for scope in principal.policy.counted
            if scope.limits.budgets
        }
        return list(scopes.values())

    def __len__(self) -> int:
        return len(self._principals)


def _principal(change: KeyChange) -> Principal:
    zone = change.time_zone
    organisation_id, team_id, key_id = map(
        str, (change.organisation_id, change.team_id, change.key_id)
    )
    return Principal(
        organisation_id=organisation_id,
        team_id=team_id,
        team_name=change.team_name,
        key_id=key_id,
        policy=Policy.of(
            (
                Scope(
                    "organisation",
                    organisation_id,
                    change.organisation_name,
                    change.organisation_limits,
                    zone,
                ),
                Scope("team", team_id, change.team_name, change.team_limits, zone),
                Scope("key", key_id, change.key_name, change.key_limits, zone),
            )
        ),
        valid_until=None if change.valid_until is None else change.valid_until.timestamp(),
    )


class TokenRing:
    """The admin tokens that are valid now, by hash."""

    def __init__(
        self, environment: bytes | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Args:
        environment: hash of the process's own admin key, if it has one: an owner of the
            installation, whatever the database says.
        """
        self._environment = environment
        self._clock = clock
        self._known: dict[bytes, tuple[Administrator, float | None]] = {}
        self.revision = 0

    def authenticate(self, credential: str | None) -> Administrator | None:
        """The administrator behind a credential; None for unknown, revoked and expired tokens.

        The look-up is by the hash, so that its timing tells nothing about the token.
        """
        if credential is None:
            return None
        given = key_hash(credential)
        if self._environment is not None and hmac.compare_digest(given, self._environment):
            return Administrator("environment", "SLUICE_ADMIN_KEY", "owner")
        administrator, valid_until = self._known.get(given, (None, None))
        if valid_until is not None and valid_until <= self._clock():
            return None
        return administrator

    def apply(self, changes: Iterable[TokenChange]) -> None:
        """Take over changes."""
        for change in changes:
            end = change.valid_until
            self._known[change.hash] = (
                _administrator(change),
                None if end is None else end.timestamp(),
            )
            self.revision = max(self.revision, change.revision)


def _administrator(change: TokenChange) -> Administrator:
    return Administrator(
        actor=f"token:{change.token_id}",
        name=change.name,
        role=change.role,
        organisation_id=None if change.organisation_id is None else str(change.organisation_id),
        team_id=None if change.team_id is None else str(change.team_id),
        scopes=None if change.scopes is None else frozenset(change.scopes),
        valid_until=change.valid_until,
    )


class KeySync:
    """Keeps the rings of keys and of tokens fresh."""

    def __init__(
        self,
        ring: KeyRing,
        tokens: TokenRing,
        changes: Changes,
        observe_staleness: Callable[[float], None],
        poll_seconds: float = POLL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ring = ring
        self._tokens = tokens
        self._changes = changes
        self._clock = clock
        self._fresh_at = clock()
        self._poll = DatabasePoll(
            "keys", self._refresh, poll_seconds, lambda: observe_staleness(self.staleness)
        )

    @property
    def staleness(self) -> float:
        """Seconds since the rings were last known to be complete."""
        return self._clock() - self._fresh_at

    async def start(self) -> None:
        """Load every key and token, then go on in the background.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        await self._poll.start()

    async def stop(self) -> None:
        """End the poll."""
        await self._poll.stop()

    async def _refresh(self) -> None:
        asked_at = self._clock()
        self._ring.apply(await self._changes.keys(self._ring.revision))
        self._tokens.apply(await self._changes.tokens(self._tokens.revision))
        self._fresh_at = asked_at
