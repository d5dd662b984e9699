"""How many sequences each team has at the replicas."""

from __future__ import annotations

from collections import Counter

from sluice.router.pool.actions import PoolRequest


class TeamSequences:
    """Counts the interactive ones; who has none is not kept."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def of(self, team: str) -> int:
        """A team's."""
        return self._running[team]

    def began(self, request: PoolRequest) -> None:
        """A request went to a replica."""
        if request.tier == "interactive":
            self._running[request.team] += 1

    def ended(self, request: PoolRequest) -> None:
        """One is there no longer."""
        if request.tier == "interactive":
            self._running[request.team] -= 1
            if not self._running[request.team]:
                del self._running[request.team]
