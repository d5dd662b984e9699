"""Traces in Mooncake's format: one JSON object a line.

`timestamp` is milliseconds from the start, `input_length` and `output_length` are tokens, and
`hash_ids` has one id for each block of the prompt, the last one perhaps partial; an id stands for
its block and everything before it. Three members of ours are optional: `team`, `tier`
(`interactive` or `batch`) and `priority` (`high`, `normal` or `low`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import msgspec

from sluice.router.pool.fair_queue import Priority, Tier


class TraceError(ValueError):
    """A trace cannot be used; the message names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        time: of its arrival, seconds from the start.
        input_tokens: of its prompt.
        output_tokens: of its answer.
        hashes: its blocks.
        team: who asks; "" where the trace does not say.
        tier: interactive or batch.
        priority: within the tier.
    """

    time: float
    input_tokens: int
    output_tokens: int
    hashes: tuple[int, ...]
    team: str = ""
    tier: Tier = "interactive"
    priority: Priority = "normal"


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team that requests of a trace are given to.

    Attributes:
        name: of the team.
        share: of the requests, relative to the others.
        weight: in the fair queue, relative to the others.
    """

    name: str
    share: float = 1.0
    weight: float = 1.0


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    team: str = ""
    tier: Tier = "interactive"
    priority: Priority = "normal"


def read_trace(path: Path, speed_up: float = 1.0, limit: int | None = None) -> list[TraceRequest]:
    """Read a trace, in the order of arrival.

    Args:
        path: the file.
        speed_up: how much faster the requests arrive than they did.
        limit: how many lines to read; None: all.

    Raises:
        TraceError: a line is not a request, or there is none.
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Line)
    requests: list[TraceRequest] = []
    with path.open("rb") as lines:
        for number, text in enumerate(lines, 1):
            if limit is not None and len(requests) >= limit:
                break
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise TraceError(f"line {number}: {error}") from None
            if line.input_length < 1 or line.output_length < 0 or line.timestamp < 0:
                raise TraceError(f"line {number}: lengths and timestamp must not be negative")
            requests.append(
                TraceRequest(
                    line.timestamp / 1000.0 / speed_up,
                    line.input_length,
                    max(1, line.output_length),
                    tuple(line.hash_ids),
                    line.team,
                    line.tier,
                    line.priority,
                )
            )
    if not requests:
        raise TraceError("there is no request in the trace")
    requests.sort(key=lambda request: request.time)
    return requests


def assign(
    requests: Sequence[TraceRequest], teams: Sequence[TeamShare], batch_share: float, seed: int
) -> list[TraceRequest]:
    """Give requests that have no team to teams, and a part of them to the batch tier.

    Args:
        requests: of a trace.
        teams: among whom to draw, by their shares; empty: all go to "default".
        batch_share: part of all requests that becomes batch, 0 to 1.
        seed: of the drawing.
    """
    random = Random(seed)
    names = [team.name for team in teams] or ["default"]
    shares = [team.share for team in teams] or [1.0]
    assigned = []
    for request in requests:
        team = request.team or random.choices(names, shares)[0]
        batch = batch_share > 0 and random.random() < batch_share
        assigned.append(replace(request, team=team, tier="batch" if batch else request.tier))
    return assigned
