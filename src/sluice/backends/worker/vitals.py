"""Whether an engine is well, by what it lets be seen. Pure: time is passed in.

A busy engine may answer a probe late, because other requests were first; an idle one makes no
tokens. So either counts as life: a probe that was answered, or tokens that were computed. An engine
that gives neither for long is hung, whatever its process says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["well", "silent", "hung"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may stand still, in seconds.

    Attributes:
        silent: without an answer to the question how it is; it takes no requests until it answers.
        hung: without life; it is started again.
    """

    silent: float = 5.0
    hung: float = 60.0


class Vitals:
    """What was last seen of an engine."""

    def __init__(self, patience: Patience, now: float) -> None:
        """Args:
        patience: the limits.
        now: an engine just proven to be alive.
        """
        self._patience = patience
        self._answered = now
        self._alive = now
        self._tokens: float | None = None

    def answered(self, tokens: float, now: float) -> None:
        """It said how it is; `tokens`: those that it has computed since its start."""
        self._answered = now
        if tokens != self._tokens:
            self._tokens = tokens
            self._alive = now

    def probed(self, now: float) -> None:
        """It answered a probe."""
        self._alive = now

    def verdict(self, now: float) -> Verdict:
        """How it is."""
        if now - self._alive > self._patience.hung:
            return "hung"
        return "silent" if now - self._answered > self._patience.silent else "well"
