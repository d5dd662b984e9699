"""What follows from an answer to an item: its line in a file, or another run. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.gateway.batch.items import Item, Outcome, Result, Retry
from sluice.gateway.batch.output import answered_line
from sluice.gateway.batch.runner import Answer

#: Answers that another run may better.
_PASSING = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long.

    Attributes:
        attempts: runs of an item that failed by a fault; its last answer is then what it gets.
        refusals: runs that no deployment had room for, faults included.
        first_seconds, longest_seconds: before the second run, and at most; doubling in between.
    """

    attempts: int = 5
    refusals: int = 20
    first_seconds: float = 1.0
    longest_seconds: float = 300.0

    def wait(self, attempts: int, draw: Callable[[], float]) -> float:
        """Seconds until the next run: half to all of a bound that doubles.

        Args:
            attempts: so far, 1 or more.
            draw: gives a number in [0, 1).
        """
        bound = min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempts - 1, 30))
        return bound * (0.5 + draw() / 2)


def judge(
    item: Item, answer: Answer, patience: Patience, draw: Callable[[], float], left: float
) -> Outcome:
    """What follows from an answer.

    Args:
        draw: gives a number in [0, 1).
        left: seconds until the item's batch expires. A wait beyond that is none: the item gets
            the answer that it has.
    """
    if answer.status == 0:
        return Retry(item.batch_id, item.line, item.request_id, counts=False)
    if not _may_pass(answer):
        return _result(item, answer)
    counts = answer.refuser is None or answer.tried
    attempts = item.attempts + counts
    most = patience.attempts if answer.refuser is None else patience.refusals
    if attempts >= most:
        return _result(item, answer)
    wait = max(patience.wait(max(attempts, 1), draw), answer.retry_after or 0.0)
    if wait > left:
        return _result(item, answer)
    return Retry(item.batch_id, item.line, item.request_id, wait, counts, answer.event)


def _may_pass(answer: Answer) -> bool:
    """Whether another run may come to something else. Batches have time: what is of no use to
    try again within a minute is of use later, where the answer says when."""
    if answer.status < 500 and answer.status not in _PASSING:
        return False
    return not answer.hopeless or answer.retry_after is not None


def _result(item: Item, answer: Answer) -> Result:
    text = answered_line(item.request_id, item.custom_id, answer.status, answer.body)
    return Result(item.batch_id, item.line, answer.status < 400, text, answer.event)
