"""The watch: follows the tape of another gateway's generation, or of a finished one.

One watch serves everybody here who wants the tape; it looks many times a second while the tape
grows, and ends with the tape or with its last listener.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sluice.gateway.idempotency.reel import End, Reel
from sluice.gateway.idempotency.tapes import Tapes, TapesAway, View

#: Between two looks at a tape, in seconds: while it grows, and at most while it does not.
LOOK_SECONDS, SLOW_LOOK_SECONDS = 0.025, 0.1

#: How often the owner is told that somebody listens, in seconds.
PRESENCE_SECONDS = 0.5


class Watch:
    """One tape's; see the module.

    Attributes:
        reel: what is seen of it.
    """

    def __init__(
        self,
        owner: str,
        tapes: Tapes,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        owner: whose tape.
        patience: how long Redis may be away, in seconds.
        """
        self._owner = owner
        self._tapes = tapes
        self._patience = patience
        self._clock = clock
        self._seen_at = clock()
        self._present_at = float("-inf")
        self.reel = Reel(lambda offset: tapes.read(owner, offset))

    async def run(self) -> None:
        """Look until the tape ends, or nobody listens any more."""
        rest = LOOK_SECONDS
        while self.reel.end is None and self.reel.heard:
            if await self._look():
                rest = LOOK_SECONDS
            await asyncio.sleep(rest)
            rest = min(rest * 1.1, SLOW_LOOK_SECONDS)

    async def _look(self) -> bool:
        """Look once; whether it has grown."""
        now = self._clock()
        present = now - self._present_at >= PRESENCE_SECONDS
        try:
            view = await self._tapes.view(self._owner, self.reel.length, present)
        except TapesAway:
            if now - self._seen_at > self._patience:
                self.reel.advance(b"", None, "lost")
            return False
        self._seen_at = now
        if present:
            self._present_at = now
        if view is None:
            self.reel.advance(b"", None, "lost")
            return False
        return self._take(view)

    def _take(self, view: View) -> bool:
        reel = self.reel
        if view.part or (view.head is not None and reel.head is None):
            reel.advance(view.part, view.head)
        if reel.length < view.length:  # listeners read the rest by themselves
            reel.skip_to(view.length)
        end = _end(view)
        if end is not None:
            reel.advance(b"", view.head, end)
        return bool(view.part)


def _end(view: View) -> End | None:
    if view.large:
        return "large"
    return None if view.state == "running" else view.state
