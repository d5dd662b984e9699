"""Which teams use more of a pool than their share, while others use it too.

The fair queue divides what becomes free. That is not enough for the time to the first token: where
a team that sends too much has every sequence of an engine's batch, another's request waits for the
end of a whole answer, however early its turn is. So a team above its share leaves a few sequences
of each batch free, for those below theirs; see `ReplicaBound.admits`.

A team's share is its weight among the teams that were here of late; what it uses is counted in the
requests that run, of those of this gateway alone: fractions of them need no numbers of the others.
"""

from __future__ import annotations

from collections import OrderedDict

#: Seconds for which a team that asks for nothing more still has its share kept.
ACTIVE_SECONDS = 10.0


class TeamShares:
    """The teams of one tier of a pool, as one gateway sees them."""

    def __init__(self) -> None:
        self._active: OrderedDict[str, tuple[float, float]] = OrderedDict()  # weight, last seen
        self._weights = 0.0
        self._running: dict[str, int] = {}
        self._total = 0

    def asks(self, team: str, weight: float, now: float) -> None:
        """A team's request came.

        Args:
            team: its id.
            weight: of the team; the newest counts.
            now: seconds.
        """
        active = self._active
        known = active.pop(team, None)
        self._weights += weight - (known[0] if known is not None else 0.0)
        active[team] = (weight, now)
        while (oldest := next(iter(active.items())))[1][1] < now - ACTIVE_SECONDS:
            self._weights -= active.pop(oldest[0])[0]

    def count(self, team: str, change: int) -> None:
        """So many more requests of the team run at replicas; below zero, fewer."""
        running = self._running.get(team, 0) + change
        if running:
            self._running[team] = running
        else:
            del self._running[team]
        self._total += change

    def over(self, team: str) -> bool:
        """Whether the team has more than its share of what runs; never where it is alone."""
        known = self._active.get(team)
        if known is None or len(self._active) == 1:
            return False
        return self._running.get(team, 0) * self._weights > self._total * known[0]
