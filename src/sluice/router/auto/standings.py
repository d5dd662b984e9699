"""Conversations: what stands for one, and what it had until now.

A gateway process remembers the conversations that it serves; where several share the traffic, a
load balancer that keeps a conversation on one of them keeps it in its tier.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from sluice.router.auto.documents import AutoPolicy
from sluice.router.complexity.view import RequestView

#: Conversations that are remembered at most; those that were silent the longest go first.
CONVERSATIONS = 50_000

#: Seconds of silence after which one is over.
SILENCE_SECONDS = 3_600.0

#: Bytes that BLAKE2s takes in at a time.
_BLOCK = 64

#: What a conversation had: the highest score of its requests, the position of its tier, the policy
#: which that is a position in, and when its last request came, on the monotonic clock.
Standing = tuple[float, int, AutoPolicy, float]


class Conversations:
    """What stands for the conversations of a team and alias: other teams' are others, and so are
    other aliases'."""

    def __init__(self, team: str, alias: str) -> None:
        names = f"{team}\0{alias}\0".encode()
        # Whole blocks of the hash and a byte: then these are taken in once, and not by each key.
        self.begun = names.ljust(-(-len(names) // _BLOCK) * _BLOCK + 1, b"\0")

    def key(self, session: bytes | None, view: RequestView) -> bytes:
        """What stands for a request's conversation: the session that the client names, else how
        the conversation began, which each of its requests repeats.

        Args:
            session: `x-session-id`.
            view: of the request.

        Returns:
            16 bytes (BLAKE2s), which tell nothing of the text.
        """
        return hashlib.blake2s(self.begun + (session or view.opening), digest_size=16).digest()


class Standings:
    """Remembers what conversations had.

    Attributes:
        young: those that had a request lately.
        clock: seconds that never go back.
        half: when so many are young, those that are not are forgotten.
    """

    def __init__(
        self, most: int = CONVERSATIONS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        most: that are remembered.
        clock: see the attribute.
        """
        self.half = most // 2
        self.clock = clock
        self.young: dict[bytes, Standing] = {}
        self._old: dict[bytes, Standing] = {}

    def get(self, key: bytes, policy: AutoPolicy) -> tuple[float, int] | None:
        """Score and position that a conversation had until now; None: it is new, or over, or the
        policy is."""
        known = self.young.get(key) or self._old.get(key)
        if known is None:
            return None
        score, tier, of, seen = known
        return (score, tier) if of is policy and self.clock() - seen <= SILENCE_SECONDS else None

    def put(self, key: bytes, score: float, tier: int, policy: AutoPolicy) -> None:
        """What it has from now on."""
        self.young[key] = score, tier, policy, self.clock()
        if len(self.young) >= self.half:
            self.rotate()

    def rotate(self) -> None:
        """Forget those that had no request since the last time."""
        self._old, self.young = self.young, {}
