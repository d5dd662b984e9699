"""Conversations: what stands for one, and what it had until now.

A gateway process remembers the conversations that it serves; where several share the traffic, a
load balancer that keeps a conversation on one of them keeps it in its tier.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from sluice.router.auto.documents import AutoPolicy
from sluice.router.complexity.view import RequestView

#: Conversations that are remembered; the one that was silent the longest goes first.
CONVERSATIONS = 50_000

#: Seconds of silence after which one is over.
SILENCE_SECONDS = 3_600.0


class Conversations:
    """What stands for the conversations of a team and alias: other teams' are others, and so are
    other aliases'."""

    def __init__(self, team: str, alias: str) -> None:
        self._begun = hashlib.blake2b(f"{team}\0{alias}\0".encode(), digest_size=16)

    def key(self, session: bytes | None, view: RequestView) -> bytes:
        """What stands for a request's conversation: the session that the client names, else how
        the conversation began, which each of its requests repeats.

        Args:
            session: `x-session-id`.
            view: of the request.

        Returns:
            16 bytes, which tell nothing of the text.
        """
        digest = self._begun.copy()
        digest.update(session or view.opening)
        return digest.digest()


class Standing(msgspec.Struct, gc=False):
    """What a conversation had.

    Attributes:
        score: the highest of its requests.
        tier: its tier's position.
        policy: which that is a position in.
        seen: when its last request came, on the monotonic clock.
    """

    score: float
    tier: int
    policy: AutoPolicy
    seen: float


class Standings:
    """Remembers what conversations had."""

    def __init__(
        self, most: int = CONVERSATIONS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        most: that are remembered.
        clock: seconds that never go back.
        """
        self._most = most
        self._clock = clock
        self._known: OrderedDict[bytes, Standing] = OrderedDict()

    def get(self, key: bytes, policy: AutoPolicy) -> Standing | None:
        """What a conversation had until now; None: it is new, or over, or the policy is."""
        known = self._known.get(key)
        if known is None or known.policy is not policy:
            return None
        return None if self._clock() - known.seen > SILENCE_SECONDS else known

    def put(self, key: bytes, score: float, tier: int, policy: AutoPolicy) -> None:
        """What it has from now on."""
        self._known[key] = Standing(score, tier, policy, self._clock())
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
