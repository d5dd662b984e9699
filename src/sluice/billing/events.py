"""The usage event: one request as it is charged, on its way from a gateway to the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluice.billing.prices import Price
from sluice.wire.usage import Usage

STREAM = "sluice:usage"
FIELD = b"events"


class RouteDecision(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a request to an `auto` alias went where it went.

    Attributes:
        alias: that was asked for, without the word after it.
        mode: `score`, or the word of the caller's that overrode it.
        tier: that was decided on.
        model: that was asked first.
        tier_used: of the model that answered.
        score: of the request, or the highest of its conversation.
        scorer: the name of what scored.
        strong_model: what would have answered without `auto`.
        strong_price: `Price.text` there, at that time; see `UsageEvent.strong_cost`.
        strong_cost_nano_usd: what that makes, of gateways that did not yet tell the price.
        threshold: the score from which on a request is the tier's; None where it has none.
        reasons: what moved the score most.
        features: what was scored, hashed; base64 in JSON.
        needs: capabilities that the request needs.
        tokens: context that it needs, estimated.
        conversation: hash of what stands for its conversation; base64 in JSON.
    """

    alias: str
    mode: str
    tier: str
    model: str
    tier_used: str
    score: float
    scorer: str
    strong_model: str
    strong_price: str = ""
    strong_cost_nano_usd: int = 0
    threshold: float | None = None
    reasons: tuple[str, ...] = ()
    features: bytes = b""
    needs: tuple[str, ...] = ()
    tokens: int = 0
    conversation: bytes = b""


class UsageEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One request that reached an upstream.

    Attributes:
        request_id: UUIDv7, unique for all time; the ledger takes an id once.
        time_us: when the request came, microseconds since the epoch, UTC.
        team_id, key_id: who pays.
        endpoint: path below `/v1`.
        model: the model asked for.
        model_used: the catalogue's model that answered.
        deployment: `provider/upstream model`.
        tier: `interactive` or `batch`.
        status: `ok`, `error` or `cancelled`.
        error_code: machine-readable reason when not ok.
        input_tokens: prompt tokens, cached and written ones included.
        cost_nano_usd: by the price at that time.
        latency_us: from the request's arrival to the end of the answer.
        ttft_us: from arrival to the first generated token; None if there was none.
        attempts: upstream calls made.
        attempt_log: each call's deployment and how it went, `provider/model=reason, …`.
        estimated: tokens were counted by us.
        gateway: the process that served it.
        decision: why it went where it went, where `auto` was asked for.
    """

    request_id: str
    time_us: int
    team_id: str
    key_id: str
    endpoint: str
    model: str
    model_used: str
    deployment: str
    tier: str
    status: str
    error_code: str | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0
    latency_us: int = 0
    ttft_us: int | None = None
    attempts: int = 0
    attempt_log: str = ""
    estimated: bool = False
    gateway: str = ""
    decision: RouteDecision | None = None

    def strong_cost(self, decision: RouteDecision) -> int:
        """What the same tokens would have cost at the model that would have answered without
        `auto`, in nano-USD.

        Args:
            decision: the event's.

        Raises:
            ValueError: the price is none.
        """
        if not decision.strong_price:
            return decision.strong_cost_nano_usd
        usage = Usage(
            self.input_tokens,
            self.cached_input_tokens,
            self.cache_write_tokens,
            self.output_tokens,
        )
        return Price.of_text(decision.strong_price).cost(usage, batch=self.tier == "batch")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[UsageEvent])


def encode_events(events: Sequence[UsageEvent]) -> bytes:
    """A group of events as one line of JSON, for the stream and for the spool alike."""
    return _encoder.encode(events)


def decode_events(text: bytes) -> list[UsageEvent]:
    """The events of a group.

    Raises:
        msgspec.DecodeError: it isn't a group of events.
    """
    return _decoder.decode(text)
