"""Sharing: whose items run next. Pure.

Teams have equal shares of what may run, weighted by the priority of what they have; within a
team so have its batches. The running items of all workers are counted, so that every worker's
choice moves the whole towards the shares. Batches that would miss their windows at that come
first, with a part of the room that leaves everybody else the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil
from uuid import UUID

from sluice.gateway.tenancy.limits import Priority

#: What a priority is worth.
WEIGHTS: Mapping[Priority, float] = {"high": 4.0, "normal": 2.0, "low": 1.0}

#: Part of what may run that batches have before all others where they need it for their windows.
URGENT_SHARE = 0.5

#: Windows are aimed at as if they were shorter by this part, since the last items take longest.
_MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """An open batch.

    Attributes:
        model: of its items.
        live: its items may be called live; otherwise it is still open whether a provider's own
            batches take them.
        seconds_left: until its window closes.
        waiting: items that are to be run.
        running: items that any worker runs.
        native: items that are with a provider.
        age_seconds: since it was made.
    """

    id: UUID
    team_id: UUID
    model: str
    priority: Priority
    live: bool
    seconds_left: float
    waiting: int
    running: int
    native: int = 0
    age_seconds: float = 0.0


def share(room: int, jobs: Sequence[Job], item_seconds: float) -> dict[UUID, int]:
    """How many items of which batch are to be taken.

    Args:
        room: so many in all.
        jobs: that have the same room to share.
        item_seconds: that an item is seen to run.
    """
    given = _urgent(room, jobs, item_seconds)
    teams = [_Team(own, given) for own in _by_team(jobs).values()]
    turns = [(team.turn, number) for number, team in enumerate(teams) if team.waits]
    heapify(turns)
    for _ in range(room - sum(given.values())):
        if not turns:
            break
        team = teams[turns[0][1]]
        given[team.take()] += 1
        if team.waits:
            heapreplace(turns, (team.turn, turns[0][1]))
        else:
            heappop(turns)
    return {batch: number for batch, number in given.items() if number}


def needed(job: Job, item_seconds: float) -> int:
    """How many items of a batch have to run at a time for its window to be met."""
    seconds = max(job.seconds_left * (1 - _MARGIN) - item_seconds, 1e-3)
    return ceil((job.waiting + job.running) * item_seconds / seconds)


def _urgent(room: int, jobs: Sequence[Job], item_seconds: float) -> dict[UUID, int]:
    """What batches get so that they meet their windows, those that close first before others."""
    given = dict.fromkeys((job.id for job in jobs), 0)
    spare = int((room + sum(job.running for job in jobs)) * URGENT_SHARE)
    for job in sorted(jobs, key=lambda each: each.seconds_left):
        due = min(needed(job, item_seconds), spare)
        given[job.id] = max(0, min(due - job.running, job.waiting, room))
        room -= given[job.id]
        spare -= min(due, job.running + given[job.id])
    return given


def _by_team(jobs: Sequence[Job]) -> dict[UUID, list[Job]]:
    teams: dict[UUID, list[Job]] = {}
    for job in jobs:
        teams.setdefault(job.team_id, []).append(job)
    return teams


class _Team:
    """A team's batches, in the order of their turns."""

    def __init__(self, jobs: Sequence[Job], given: Mapping[UUID, int]) -> None:
        """Args:
        given: what they have got already.
        """
        self._running = sum(job.running + given[job.id] for job in jobs)
        self._turns = [
            (self._turn(job, given[job.id]), job.seconds_left, number, job, given[job.id])
            for number, job in enumerate(jobs)
            if given[job.id] < job.waiting
        ]
        heapify(self._turns)

    @property
    def waits(self) -> bool:
        """Whether there is anything left to take."""
        return bool(self._turns)

    @property
    def turn(self) -> float:
        """The smaller the sooner: what the team would have with one more, by its weight, which
        is that of the batch whose turn it is."""
        return (self._running + 1) / WEIGHTS[self._turns[0][3].priority]

    def take(self) -> UUID:
        """One more item: of which batch."""
        _, seconds, number, job, given = self._turns[0]
        self._running += 1
        if given + 1 < job.waiting:
            heapreplace(self._turns, (self._turn(job, given + 1), seconds, number, job, given + 1))
        else:
            heappop(self._turns)
        return job.id

    @staticmethod
    def _turn(job: Job, given: int) -> float:
        return (job.running + given + 1) / WEIGHTS[job.priority]
