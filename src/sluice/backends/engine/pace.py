"""How long a step takes, as a linear function of what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(slots=True)
class Load:
    """What one step computes.

    Attributes:
        prefill_tokens: prompt tokens, and answers' tokens that are computed again.
        prefill_context: for each of those, the tokens before it, summed.
        decodes: requests that get one token.
        decode_context: the tokens before those, summed.
    """

    prefill_tokens: int = 0
    prefill_context: float = 0.0
    decodes: int = 0
    decode_context: int = 0

    def add(self, computed: int, tokens: int) -> None:
        """Add a request that has `computed` tokens in its blocks and gets `tokens` more."""
        if tokens == 1:
            self.decodes += 1
            self.decode_context += computed
        else:
            self.prefill_tokens += tokens
            self.prefill_context += tokens * (computed + (tokens - 1) / 2)


@dataclass(frozen=True, slots=True)
class Pace:
    """The time model; all in seconds.

    A step takes the sum of its parts, and at least the floor: a GPU that decodes is bound by
    memory, so that a part of a prompt in the same step may cost nothing more.

    Attributes:
        step_seconds: each step.
        floor_seconds: the least that a step takes.
        prefill_token_seconds: each prompt token.
        prefill_context_seconds: each pair of a prompt token and a token before it.
        decode_seconds: each request that gets one token.
        decode_context_seconds: each token before those.
        request_seconds: what a request spends outside the engine until its first token arrives.
        request_token_seconds: the same, for each of its prompt tokens.

    Raises:
        ValueError: a time below zero, or steps that take none.
    """

    step_seconds: float = 0.0
    floor_seconds: float = 0.02
    prefill_token_seconds: float = 1 / 8000
    prefill_context_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_context_seconds: float = 0.0
    request_seconds: float = 0.0
    request_token_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        if self.step_seconds + self.floor_seconds <= 0:
            raise ValueError("step_seconds or floor_seconds must be positive: steps take time")

    def overhead(self, prompt_tokens: int) -> float:
        """What a first token's time has in it besides the engine's."""
        return self.request_seconds + prompt_tokens * self.request_token_seconds

    def duration(self, load: Load, count: int = 1) -> float:
        """How long `count` steps take of which the first has `load`.

        More than one step is of decodes only: each adds its tokens to the context of the next.
        """
        first = (
            self.step_seconds
            + load.prefill_tokens * self.prefill_token_seconds
            + load.prefill_context * self.prefill_context_seconds
            + load.decodes * self.decode_seconds
            + load.decode_context * self.decode_context_seconds
        )
        growth = load.decodes * self.decode_context_seconds
        if count == 1 or growth == 0:
            return count * max(self.floor_seconds, first)
        missing = self.floor_seconds - first
        # Compared before it is divided: the growth may be next to nothing.
        below = count if missing > growth * count else ceil(missing / growth) if missing > 0 else 0
        above = count - below
        positions = (count * (count - 1) - below * (below - 1)) / 2
        return below * self.floor_seconds + above * first + positions * growth

    def steps_within(self, load: Load, count: int, seconds: float) -> int:
        """Of `count` such steps, how many end before `seconds` or are the first not to."""
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            if self.duration(load, middle) < seconds:
                low = middle + 1
            else:
                high = middle
        return low
