"""The teams that asked for something of late: which ask for more than their share, and how much the
others ask for."""

from __future__ import annotations

from math import exp

import msgspec

#: Seconds for which a team that asks for nothing more is counted.
ACTIVE_SECONDS = 10.0

#: Time constant in seconds with which it is forgotten what a team has asked for.
_MEMORY_SECONDS = 3.0

#: A team that asks for so many times its share asks for too much: what comes by chance varies.
_TOO_MUCH = 1.5

#: Seconds after the first request before which nothing is concluded.
_FIRST_SECONDS = 1.5

#: Seconds after which it is looked again.
_LOOK_SECONDS = 0.05


class _Team(msgspec.Struct):
    """One team; amounts are weighted tokens.

    Attributes:
        asked: when it last did, seconds.
        weight: its share relative to other teams'.
        since: what it has asked for since the last look.
        before: what it had asked for until then, fading.
    """

    asked: float
    weight: float
    since: float = 0.0
    before: float = 0.0


class ActiveTeams:
    """See the module. Tokens are weighted, as service is in `fair_queue`."""

    def __init__(self) -> None:
        self._teams: dict[str, _Team] = {}
        self._over: frozenset[str] = frozenset()
        self._within = 0.0
        self._share_of_over = 0.0
        self._seconds = 0.0
        self._looked = 0.0
        self._stale = True

    def asks(self, team: str, weight: float, tokens: float, now: float) -> None:
        """A team's request came, whatever becomes of it.

        Args:
            team: whose.
            weight: its share relative to other teams'.
            tokens: that it asks for, weighted.
            now: seconds.
        """
        if not self._teams:
            self._looked, self._seconds = now, 0.0
        known = self._teams.get(team)
        if known is None:
            self._teams[team] = _Team(now, weight, tokens)
            self._stale = True
        else:
            known.asked = now
            known.since += tokens

    def generated(self, team: str, tokens: float) -> None:
        """A team's answers turned out to be so many weighted tokens longer."""
        if (known := self._teams.get(team)) is not None:
            known.since += tokens

    def over(self, team: str, most: float, now: float) -> bool:
        """Whether a team asks for more than its share of what all ask too much of.

        Args:
            team: which.
            most: weighted tokens a second that the pool serves at most.
            now: seconds.
        """
        self._look(most, now)
        return team in self._over

    def share(self, team: str) -> float:
        """A team's share among all, 0 to 1."""
        known = self._teams.get(team)
        return known.weight / sum(team.weight for team in self._teams.values()) if known else 0.0

    def share_of_over(self) -> float:
        """The share of those teams together which ask for more than theirs, as of the last look."""
        return self._share_of_over

    @property
    def crowded(self) -> bool:
        """Whether any team asked for more than its share, as of the last look."""
        return bool(self._over)

    def within(self) -> float:
        """Weighted tokens a second that those teams ask for which ask for no more than their
        share, as of the last look."""
        return self._within

    def _look(self, most: float, now: float) -> None:
        elapsed = now - self._looked
        if elapsed < _LOOK_SECONDS and not self._stale:
            return
        fade = exp(-elapsed / _MEMORY_SECONDS)
        self._seconds = self._seconds * fade + elapsed
        self._looked, self._stale = now, False
        teams = self._teams = {
            name: team for name, team in self._teams.items() if team.asked >= now - ACTIVE_SECONDS
        }
        for team in teams.values():
            team.before = team.before * fade + team.since
            team.since = 0.0
        asked = sum(team.before for team in teams.values())
        all_of_it = most * self._seconds
        self._over = frozenset()
        # Where they don't ask for more than all of it, there is enough for everybody.
        if self._seconds >= _FIRST_SECONDS and asked > all_of_it:
            most_each = _TOO_MUCH * all_of_it / sum(team.weight for team in teams.values())
            self._over = frozenset(
                name for name, team in teams.items() if team.before > most_each * team.weight
            )
        within = sum(team.before for name, team in teams.items() if name not in self._over)
        self._within = within / max(self._seconds, _FIRST_SECONDS)
        if self._over:
            self._share_of_over = sum(map(self.share, self._over))
