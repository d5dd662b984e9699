"""Why a change of tenancy can't be made.

Each carries a message for people and, where one is at fault, the name of the parameter.
"""

from __future__ import annotations


class Refusal(Exception):
    """A change that was not made."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Missing(Refusal):
    """There is no such thing."""


class Conflict(Refusal):
    """It doesn't fit what is there."""


class Outdated(Refusal):
    """It was changed since it was read."""
