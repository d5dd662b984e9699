"""Who is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from sluice.backends.engine.config import Policy
from sluice.backends.engine.request import Progress


class Waiting(Protocol):
    """Requests without a place in the batch, in the order of a policy."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Progress]: ...

    def add(self, progress: Progress) -> None:
        """Take in a request that just came."""
        ...

    def put_back(self, progress: Progress) -> None:
        """Take in a request that lost its place."""
        ...

    def first(self) -> Progress:
        """The next one, left where it is."""
        ...

    def pop(self) -> Progress:
        """The next one, taken out."""
        ...

    def remove(self, progress: Progress) -> None:
        """Take out any one."""
        ...


class Arrivals(deque[Progress]):
    """In the order in which they came, before them those that lost their place."""

    def add(self, progress: Progress) -> None:
        self.append(progress)

    def put_back(self, progress: Progress) -> None:
        self.appendleft(progress)

    def first(self) -> Progress:
        return self[0]

    def pop(self) -> Progress:  # type: ignore[override]
        return self.popleft()


class Priorities:
    """By priority, equals by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Progress]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Progress]:
        return (progress for _, progress in sorted(self._heap, key=lambda item: item[0]))

    def add(self, progress: Progress) -> None:
        heappush(self._heap, (progress.rank, progress))

    put_back = add

    def first(self) -> Progress:
        return self._heap[0][1]

    def pop(self) -> Progress:
        return heappop(self._heap)[1]

    def remove(self, progress: Progress) -> None:
        self._heap.remove((progress.rank, progress))
        heapify(self._heap)


def create_waiting(policy: Policy) -> Waiting:
    """An empty queue."""
    return Priorities() if policy is Policy.PRIORITY else Arrivals()
