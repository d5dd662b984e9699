"""The credentials of one provider: several at once, each resting when it is limited or refused.

Secrets leave this module only as a `Credential`'s `secret`, which no `repr` shows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sluice.router.breakers import Rest

#: Cap on the rest of a credential: what an operator mends comes back within it.
MAX_REST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Credential:
    """One key of a provider.

    Attributes:
        secret: for the request to the upstream, and for nothing else.
        label: tells keys apart in logs and metrics; reveals nothing of the key.
    """

    secret: str = field(repr=False)
    label: str

    @classmethod
    def of(cls, secret: str) -> Credential:
        """The credential of a secret."""
        return cls(secret, f"key-{hashlib.sha256(secret.encode()).hexdigest()[:8]}")


@dataclass(slots=True)
class _Held:
    """A credential in use.

    Attributes:
        turn: when it was last chosen.
        rests: until when it rests and whether because of a limit, by scope.
    """

    credential: Credential
    turn: int = 0
    rests: dict[str | None, tuple[float, bool]] = field(default_factory=dict)

    def rest(self, scope: str | None) -> tuple[float, bool]:
        """The later of its rest altogether and its rest in a scope."""
        return max(self.rests.get(None, _NEVER), self.rests.get(scope, _NEVER))


_NEVER = (0.0, False)


class Credentials:
    """The keys of one provider, taken in turn.

    Limits usually hold for a key and a model, so that a rest may have a scope (the deployment's
    name): the key goes on serving other scopes. A rest without a scope holds for all.
    """

    def __init__(
        self,
        secrets: Iterable[str],
        max_rest: float = MAX_REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        secrets: the keys; none of two equal ones counts twice.
        max_rest: cap on a rest, in seconds.
        clock: seconds that never go back.

        Raises:
            ValueError: there is no key.
        """
        self._max_rest = max_rest
        self._clock = clock
        self._turn = 0
        self._held: dict[str, _Held] = {}
        self.replace(secrets)

    def choose(self, scope: str | None = None) -> Credential | None:
        """The key whose turn it is among those that don't rest; None where all do."""
        now = self._clock()
        awake = [held for held in self._held.values() if held.rest(scope)[0] <= now]
        if not awake:
            return None
        held = min(awake, key=lambda each: each.turn)
        self._turn += 1
        held.turn = self._turn
        return held.credential

    def rest(
        self,
        credential: Credential,
        seconds: float,
        scope: str | None = None,
        limited: bool = True,
    ) -> None:
        """Leave a key alone, up to the cap, and never for less than was known before.

        A key that has been replaced meanwhile is no matter.

        Args:
            credential: as `choose` gave it.
            seconds: from now.
            scope: for this only; None: for everything.
            limited: because of a limit, and not because the key was refused.
        """
        held = self._held.get(credential.secret)
        if held is not None and seconds > 0:
            until = (self._clock() + min(seconds, self._max_rest), limited)
            held.rests[scope] = max(until, held.rests.get(scope, _NEVER))

    def resting(self, scope: str | None = None) -> Rest | None:
        """How long until the first key is back; None where one is free."""
        now = self._clock()
        until, limited = min(held.rest(scope) for held in self._held.values())
        return Rest(until - now, limited) if until > now else None

    def replace(self, secrets: Iterable[str]) -> None:
        """Rotate: from now on these keys. Those that stay keep their rest and their turn; calls
        under way with others end as they may.

        Raises:
            ValueError: there is no key, and nothing has changed.
        """
        held = {
            secret: self._held.get(secret) or _Held(Credential.of(secret)) for secret in secrets
        }
        if not held:
            raise ValueError("a provider needs at least one key")
        self._held = held

    def secrets(self) -> tuple[str, ...]:
        """The keys, for whoever must keep them out of texts."""
        return tuple(self._held)

    def __len__(self) -> int:
        return len(self._held)
