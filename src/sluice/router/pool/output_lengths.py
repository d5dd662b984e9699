"""How long answers get: `max_tokens` is a bound that few come near, and KV cache planned for it
would stand empty."""

from __future__ import annotations

#: Assumed before an answer was seen.
_USUAL = 256.0

#: The weight of a new answer in the mean, and how far above the mean is planned for.
_WEIGHT, _SAFETY = 0.02, 2.0


class OutputLengths:
    """The mean length of a pool's answers, in tokens."""

    def __init__(self) -> None:
        """Starts with a guess."""
        self._mean = _USUAL

    def learn(self, tokens: int) -> None:
        """An answer had so many tokens."""
        self._mean += _WEIGHT * (tokens - self._mean)

    def expected(self, max_tokens: int | None) -> int:
        """What is to be planned for an answer of at most so many tokens."""
        likely = max(1, round(_SAFETY * self._mean))
        return likely if max_tokens is None else min(likely, max_tokens)
