"""What follows from a provider's result: an item's result and its charge, or a live call. Pure.

Only answers end an item. Whatever else comes of it (an error, no run, an answer that can't be
read) the item is called live: what is wrong with it is then heard in the usual way, and what was
not its fault is made up for. It costs nothing until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sluice.billing.events import UsageEvent
from sluice.billing.prices import Price
from sluice.gateway.batch.items import Result
from sluice.gateway.batch.native.preparation import Prepared
from sluice.gateway.batch.native.records import NativeBatch
from sluice.gateway.batch.native.results import Outcome
from sluice.gateway.batch.output import answered_line
from sluice.wire.answer import Answer
from sluice.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Moment:
    """What is new with each result.

    Attributes:
        request_id: UUIDv7, of the usage record.
        key_id: the key that is charged.
        now_us: microseconds since the epoch.
        gateway: the process that writes it down.
    """

    request_id: UUID
    key_id: str
    now_us: int
    gateway: str


def result_of(
    native: NativeBatch,
    prepared: Prepared,
    outcome: Outcome,
    price: Price,
    moment: Moment,
) -> Result | None:
    """The end of an item; None: it is to be called live.

    Args:
        price: of the model there, see `NativePolicy.price`.
    """
    if outcome.status != 200:
        return None
    answer = prepared.translation.read_answer(outcome.body)
    if not isinstance(answer, Answer):
        return None
    return Result(
        batch_id=native.batch_id,
        line=prepared.item.line,
        ok=True,
        text=answered_line(moment.request_id, prepared.item.custom_id, 200, answer.body),
        event=_event(native, answer.usage, price.cost(answer.usage, batch=True), moment),
    )


def _event(native: NativeBatch, usage: Usage, cost: int, moment: Moment) -> UsageEvent:
    waited_us = moment.now_us - int(native.created_at.timestamp() * 1e6)
    return UsageEvent(
        request_id=str(moment.request_id),
        time_us=moment.now_us,
        team_id=str(native.team_id),
        key_id=moment.key_id,
        endpoint=native.endpoint.value,
        model=native.model,
        model_used=native.model,
        deployment=native.deployment,
        tier="batch",
        status="ok",
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        cost_nano_usd=cost,
        latency_us=max(waited_us, 0),
        attempts=1,
        attempt_log=f"{native.deployment}=native_batch",
        estimated=usage.estimated,
        gateway=moment.gateway,
    )
