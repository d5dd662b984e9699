"""When a crashed engine starts again, and when no more. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Times in seconds.

    Attributes:
        first: wait before the first restart; each further one waits twice as long.
        longest: what doubling leads to at most.
        attempts: failures in a row after which the worker gives up.
        forgive_after: an engine that was ready for so long failed for the first time.
    """

    first: float = 1.0
    longest: float = 60.0
    attempts: int = 5
    forgive_after: float = 300.0


class Restarts:
    """Counts an engine's failures."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures = 0
        #: All of them, the forgiven ones included.
        self.total = 0

    def failed(self, ready_seconds: float) -> float | None:
        """The engine ended or had to be ended.

        Args:
            ready_seconds: for how long it had been ready; 0: it never was.

        Returns:
            Seconds to wait before it starts again; None: give up.
        """
        policy = self._policy
        if ready_seconds >= policy.forgive_after:
            self._failures = 0
        self._failures += 1
        self.total += 1
        if self._failures >= policy.attempts:
            return None
        return min(policy.longest, policy.first * 2.0 ** (self._failures - 1))
