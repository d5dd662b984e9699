"""The teams that asked for something of late, and the one of them that has had the least."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

#: Seconds for which a team that asks for nothing more is counted.
ACTIVE_SECONDS = 10.0

#: Seconds after which it is looked again who has had the least.
_LOOK_SECONDS = 0.05


class ActiveTeams:
    """See the module. Service is a team's virtual token counter, see `fair_queue`."""

    def __init__(self, counters: Mapping[str, float]) -> None:
        """Args:
        counters: the service that each team has had, for its weight; of all that ever asked.
        """
        self._counters = counters
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._least = 0.0
        self._looked = float("-inf")

    def asks(self, team: str, now: float) -> None:
        """A team's request came, at so many seconds."""
        seen = self._seen
        if team not in seen:
            self._looked = float("-inf")
        seen[team] = now
        seen.move_to_end(team)

    def lead(self, team: str, now: float) -> float:
        """By how much more service than the team that has had the least; 0 where it is alone, or
        new."""
        if now - self._looked >= _LOOK_SECONDS:
            seen = self._seen
            while seen and next(iter(seen.values())) < now - ACTIVE_SECONDS:
                seen.popitem(last=False)
            self._least = min((self._counters[each] for each in seen), default=0.0)
            self._looked = now
        if team not in self._seen or len(self._seen) == 1:
            return 0.0
        return self._counters[team] - self._least
