"""Engines under load: what happens when, and hypothesis strategies that make it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hypothesis import strategies as st

from sluice.backends.engine import EngineConfig, EngineRequest, Pace, Policy, Refusal, Step

#: Sums of these are exact, so that two ways to add them up give the same times.
TICK = 1 / 64
PACE = Pace(
    step_seconds=TICK,
    floor_seconds=5 * TICK / 2,
    prefill_token_seconds=TICK / 8,
    prefill_context_seconds=TICK / 64,
    decode_seconds=TICK / 16,
    decode_context_seconds=TICK / 32,
)


class Steppable(Protocol):
    @property
    def due(self) -> float | None: ...
    @property
    def kv_cache_usage_perc(self) -> float: ...
    def submit(self, request: EngineRequest, now: float) -> Refusal | None: ...
    def abort(self, request_id: str, now: float) -> bool: ...
    def step(self, now: float) -> Step: ...


@dataclass(frozen=True)
class Action:
    """A request that comes, or with `request` None, one that leaves."""

    at: float
    id: str
    request: EngineRequest | None


@dataclass
class Log:
    """What an engine did; `usage` is the share of used blocks after each step."""

    steps: list[Step]
    usage: list[float]
    refused: dict[str, Refusal]
    aborted: set[str]

    def tokens(self, request_id: str) -> int:
        return sum(o.tokens for step in self.steps for o in step.outputs if o.id == request_id)

    def first(self) -> dict[str, float]:
        """When each request had its first token."""
        return {o.id: step.end for step in self.steps for o in step.outputs if o.first}

    def finished(self) -> dict[str, float]:
        """When each request had its last token."""
        return {o.id: step.end for step in self.steps for o in step.outputs if o.finish_reason}

    def cached(self) -> dict[str, int]:
        return {o.id: o.cached_tokens for step in self.steps for o in step.outputs if o.first}

    def preempted(self) -> set[str]:
        return {id_ for step in self.steps for id_ in step.preempted}


def replay(
    engine: Steppable, actions: Sequence[Action], check: Callable[[], None] = lambda: None
) -> Log:
    """Let all that happens happen, until the engine has nothing to do."""
    log = Log([], [], {}, set())
    left = list(actions)
    while left or engine.due is not None:
        if left and (engine.due is None or left[0].at <= engine.due):
            _act(engine, left.pop(0), log)
        else:
            assert engine.due is not None
            log.steps.append(engine.step(engine.due))
            log.usage.append(engine.kv_cache_usage_perc)
        check()
        assert len(log.steps) < 100_000, "it never ends"
    return log


def _act(engine: Steppable, action: Action, log: Log) -> None:
    if action.request is None:
        if engine.abort(action.id, action.at):
            log.aborted.add(action.id)
        return
    refusal = engine.submit(action.request, action.at)
    if refusal is not None:
        log.refused[action.id] = refusal


caps = st.none() | st.integers(0, 30)


@st.composite
def configs(draw: st.DrawFn, policy: Policy | None = None, capped: bool = True) -> EngineConfig:
    """Small engines, which run out of everything."""
    return EngineConfig(
        num_blocks=draw(st.integers(3, 24)),
        block_size=draw(st.integers(1, 4)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 16)),
        policy=policy or draw(st.sampled_from(Policy)),
        prefix_caching=draw(st.booleans()),
        max_num_queued_reqs=draw(caps) if capped else None,
        max_num_queued_tokens=draw(caps) if capped else None,
        pace=PACE,
    )


@st.composite
def requests(draw: st.DrawFn, config: EngineConfig, number: int, at: float) -> EngineRequest:
    """A prompt of blocks that others have too, perhaps with a part of one at the end."""
    size = config.block_size
    content = draw(st.lists(st.integers(0, 1), max_size=config.num_blocks // 2))
    rest = draw(st.integers(0, size - 1)) if content or size > 1 else 0
    tokens = max(1, len(content) * size + rest)
    return EngineRequest(
        id=str(number),
        prompt_tokens=tokens,
        output_tokens=draw(st.integers(1, 30)),
        hashes=[tuple(content[: end + 1]) for end in range(len(content))],
        priority=draw(st.integers(0, 2)),
        salt=draw(st.sampled_from([None, None, None, "a", "b"])),
        arrival=at,
        finish_reason=draw(st.sampled_from(["stop", "length"])),
    )


@st.composite
def loads(draw: st.DrawFn, config: EngineConfig, aborts: bool = True) -> list[Action]:
    """Requests over a while, of which some leave again."""
    actions = []
    for number in range(draw(st.integers(1, 12))):
        at = draw(st.integers(0, 200)) * TICK
        actions.append(Action(at, str(number), draw(requests(config, number, at))))
        if aborts and draw(st.integers(0, 3)) == 0:
            leaves = at + draw(st.integers(0, 100)) * TICK
            actions.append(Action(leaves, str(number), None))
    return sorted(actions, key=lambda action: (action.at, action.request is None))
