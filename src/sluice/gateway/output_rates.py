"""How fast deployments generate, by the whole answers that they gave."""

from __future__ import annotations

from sluice.wire.codec import StreamCodec
from sluice.wire.request import Request
from sluice.wire.usage import Usage, estimate_tokens

#: Weight of the newest observation in a deployment's mean.
_WEIGHT = 0.1


class OutputRates:
    """Means by deployment; see the module."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def learn(self, deployment: str, seconds: float, tokens: int) -> None:
        """A whole answer of so many tokens took so long."""
        if seconds <= 0 or not tokens:
            return
        rate = tokens / seconds
        known = self._rates.get(deployment, rate)
        self._rates[deployment] = known + _WEIGHT * (rate - known)

    def used(
        self, deployment: str, seconds: float, request: Request, stream: StreamCodec | None
    ) -> Usage:
        """What was used by an answer that broke off.

        Streams know it exactly or by their text. Of an answer that was to come whole nothing has
        been seen: its output is taken from the time it ran, at the deployment's usual rate, up to
        what was asked for.

        Args:
            seconds: for which it ran.
            stream: its codec, once it is a stream that has begun.
        """
        if stream is not None:
            return stream.usage(request.prompt_characters)
        output = 0
        if not request.stream:
            output = self.likely(deployment, seconds, request.max_tokens)
        return Usage(
            estimate_tokens(request.prompt_characters), output_tokens=output, estimated=True
        )

    def likely(self, deployment: str, seconds: float, most: int | None) -> int:
        """Tokens of an answer that was cut off after so long, of which nothing was seen: 0 where
        nothing is known of the deployment, or nothing of how many there might have been.

        Args:
            most: that were asked for.
        """
        if most is None:
            return 0
        return min(int(self._rates.get(deployment, 0.0) * seconds), most)
