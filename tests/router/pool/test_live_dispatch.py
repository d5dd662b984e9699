"""What dispatch makes of a pool's refusals."""

from __future__ import annotations

import json

import pytest

from sluice.backends.base import (
    BackendError,
    Dialect,
    Endpoint,
    Overloaded,
    Placed,
    PoolFailed,
    UpstreamRequest,
)
from sluice.backends.vllm import VLLM_DIALECT, VLLM_PRIORITY_DIALECT
from sluice.gateway.errors import from_upstream
from sluice.router.breakers import BreakerConfig, Breakers
from sluice.router.catalog import Deployment, Model
from sluice.router.dispatch import Dispatcher, StreamStart, UpstreamFailure
from sluice.router.plan import Route, Step
from sluice.router.translation import Call, translate
from sluice.wire.answer import Answer
from sluice.wire.codec import StreamCodec
from sluice.wire.request import read_request
from tests.harness.upstream import completion
from tests.router.pool.live_fakes import FakeResponse

BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "priority": -9}
).encode()


class Pool:
    """Answers, or fails as a test says."""

    kind = "vllm"

    def __init__(self, error: BackendError | None = None, dialect: Dialect = VLLM_DIALECT) -> None:
        self.error = error
        self.dialect = dialect
        self.requests: list[UpstreamRequest] = []

    async def send(self, request: UpstreamRequest) -> FakeResponse:
        self.requests.append(request)
        request.placed(Placed("r" if self.error is None else None, 0.5))
        if self.error is not None:
            raise self.error
        return FakeResponse(200, [json.dumps(completion("m")).encode()])

    async def close(self) -> None:
        pass


class Attempts:
    """Remembers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.placed: list[Placed] = []

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None:
        pass

    def attempt_placed(self, placed: Placed) -> None:
        self.placed.append(placed)

    def attempt_streams(self, stream: StreamCodec) -> None:
        pass

    def attempt_ended(self, step: Step, reason: str) -> None:
        self.reasons.append(reason)


def model_of(provider: str) -> Model:
    return Model(
        provider,
        1000,
        frozenset({"chat"}),
        frozenset({"interactive", "batch"}),
        (Deployment(provider, "m"),),
    )


class Scene:
    """A dispatcher before a pool, and before another model to fall back to."""

    def __init__(self, error: BackendError | None) -> None:
        self.pool, self.other, self.attempts = Pool(error), Pool(), Attempts()
        self.breakers = Breakers(BreakerConfig(min_calls=2))
        backends = {"pool": self.pool, "other": self.other}
        self.dispatcher = Dispatcher(backends, {}, self.breakers, lambda text: text)

    async def ask(self, fall_back: bool = False) -> Answer | StreamStart:
        others = (model_of("other"),) if fall_back else ()
        call = Call(Endpoint.CHAT, read_request(BODY, "messages"), "id", team_id="t", tier="batch")
        return await self.dispatcher.dispatch(
            Route(model_of("pool"), general=others), call, self.attempts, lambda: 7.0
        )


async def test_an_overload_is_not_tried_there_again_and_opens_nothing() -> None:
    scene = Scene(Overloaded("full", 3))
    for number in range(1, 6):
        with pytest.raises(UpstreamFailure) as failed:
            await scene.ask()
        assert len(scene.pool.requests) == number
    assert scene.breakers.state("pool/m") == "closed"
    assert scene.breakers.resting("pool/m") is None
    refusal = from_upstream(failed.value)
    assert (refusal.status, refusal.detail.code) == (503, "server_is_overloaded")
    assert refusal.headers == {"retry-after": "3"}
    assert scene.attempts.reasons[-1] == "pool_overloaded"


@pytest.mark.parametrize("error", [Overloaded("full", 3), PoolFailed("dead")])
async def test_another_model_may_answer(error: BackendError) -> None:
    scene = Scene(error)
    assert isinstance(await scene.ask(fall_back=True), Answer)
    assert len(scene.pool.requests) == len(scene.other.requests) == 1


async def test_a_pool_that_fails_opens_its_breaker() -> None:
    scene = Scene(PoolFailed("dead"))
    for _ in range(2):
        with pytest.raises(UpstreamFailure) as failed:
            await scene.ask()
    assert scene.breakers.state("pool/m") == "open"
    assert from_upstream(failed.value).status == 502


async def test_a_pool_knows_whose_request_it_is() -> None:
    scene = Scene(None)
    await scene.ask()
    (sent,) = scene.pool.requests
    assert (sent.team_id, sent.tier, sent.priority, sent.max_tokens) == ("t", "batch", "normal", 5)
    assert sent.remaining == 7.0
    assert scene.attempts.placed == [Placed("r", 0.5)]


@pytest.mark.parametrize(
    ("dialect", "priority"), [(VLLM_DIALECT, -9), (VLLM_PRIORITY_DIALECT, 3 + 2)]
)
def test_engines_with_priorities_get_ours(dialect: Dialect, priority: int) -> None:
    request = read_request(BODY, "messages")
    call = Call(Endpoint.CHAT, request, "id", tier="batch", priority="low")
    sent = translate(call, model_of("pool"), Deployment("pool", "m"), dialect)
    assert json.loads(sent.body)["priority"] == priority
