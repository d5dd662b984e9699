"""Optimistic concurrency: a change that is meant for one revision only."""

from __future__ import annotations

from sluice.gateway.tenancy.refusals import Outdated

#: Revisions that a change is meant for; None: any.
Match = frozenset[int] | None


def check(match: Match, revision: int) -> None:
    """Raises:
    Outdated: the thing has another revision.
    """
    if match is not None and revision not in match:
        raise Outdated("It was changed since: read it again, and send its ETag in If-Match")
