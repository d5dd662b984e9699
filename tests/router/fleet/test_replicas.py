"""The small model of a replica."""

from __future__ import annotations

from sluice.backends.engine import EngineRequest, Output
from sluice.router.fleet.replicas import SerialEngine


def engine() -> SerialEngine:
    return SerialEngine(blocks=10, block_tokens=100, prefill_rate=1_000.0, decode_seconds=0.1)


def request(key: str, start: int, blocks: int = 5, output: int = 3) -> EngineRequest:
    return EngineRequest(key, blocks * 100, output, tuple(range(start, start + blocks)))


def run(model: SerialEngine) -> list[tuple[float, Output]]:
    seen = []
    while (due := model.due) is not None:
        seen += [(round(due, 6), output) for output in model.step(due).outputs]
    return seen


def test_prompts_are_computed_one_after_the_other() -> None:
    model = engine()
    model.submit(request("a", 0), 0.0)
    model.submit(request("b", 100), 0.0)
    assert run(model) == [
        (0.5, Output("a", 1, True, None, 0)),
        (0.8, Output("a", 2, False, "stop", 0)),
        (1.0, Output("b", 1, True, None, 0)),
        (1.3, Output("b", 2, False, "stop", 0)),
    ]


def test_what_is_cached_is_not_computed_but_for_the_last_token() -> None:
    model = engine()
    model.submit(request("a", 0), 0.0)
    model.submit(request("b", 0, blocks=7), 0.0)
    model.submit(request("c", 0), 0.0)
    firsts = {
        output.id: (time, output.cached_tokens) for time, output in run(model) if output.first
    }
    assert firsts == {"a": (0.5, 0), "b": (0.7, 500), "c": (0.701, 499)}


def test_the_oldest_blocks_go() -> None:
    model = engine()
    for start in (0, 100, 200):
        model.submit(request(f"{start}", start), 0.0)
    model.submit(request("again", 0), 0.0)
    assert next(output for _, output in run(model) if output.id == "again").cached_tokens == 0


def test_an_answer_of_one_token_is_complete_with_it() -> None:
    model = engine()
    model.submit(request("a", 0, output=1), 0.0)
    assert run(model) == [(0.5, Output("a", 1, True, "stop", 0))]


def test_who_leaves_frees_the_replica() -> None:
    model = engine()
    for key, start in (("computing", 0), ("queued", 100), ("last", 200)):
        model.submit(request(key, start), 0.0)
    assert model.abort("queued", 0.1)
    assert model.abort("computing", 0.1)
    assert not model.abort("computing", 0.1)
    assert model.due == 0.6
    model.step(0.6)
    assert model.abort("last", 0.7)
    assert run(model) == []
