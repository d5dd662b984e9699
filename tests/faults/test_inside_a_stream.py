"""Faults after the first token: an error in the stream, and no end that looks like success."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.faults.asking import Seen, raised_by_sdk
from tests.faults.catalogue import LATE, Late
from tests.faults.drills import Drill, Run, drills
from tests.harness.gateway import Gateway
from tests.harness.upstream import Upstream

pytestmark = pytest.mark.slow

DRILLS = drills(LATE, (True,))

#: Signs of a finished answer in any of the formats.
ENDS = {"message_stop", "message_delta", "response.completed", "response.incomplete", "[DONE]"}


@pytest.fixture(scope="module")
def run(steady: Gateway, scripted: Upstream) -> Iterator[Run[Late]]:
    """All drills of this module, begun."""
    running = Run(steady, scripted, DRILLS)
    yield running
    running.close()


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_the_stream_ends_with_an_error_and_is_billed(run: Run[Late], drill: Drill[Late]) -> None:
    seen = run.seen(drill)
    assert seen.status == 200
    assert text_of(seen) == "one two"
    _assert_ends_with_error(seen)
    assert len(run.calls(drill)) == 1
    record = run.gateway.record(seen.request_id)
    assert (record["status"], record["attempts"]) == ("error", 1)
    assert record["error_code"] == (drill.fault.code or _own_code(drill))
    assert record["output_tokens"] > 0
    assert record["estimated"] is True
    assert record["cost_nano_usd"] > 0


def _own_code(drill: Drill[Late]) -> str:
    """An error inside a stream has a code where its format has codes, or where it is translated."""
    translated = drill.upstream == "anthropic" and drill.endpoint != "messages"
    return "server_is_overloaded" if translated else "upstream_error"


def _assert_ends_with_error(seen: Seen) -> None:
    events = seen.events()
    assert not {name for name, _ in events} & ENDS
    assert "[DONE]" not in [data for _, data in events]
    name, last = events[-1]
    assert last["error"]["message"]
    if seen.endpoint == "chat":
        assert set(last["error"]) == {"message", "type", "param", "code"}
        reasons = [c["finish_reason"] for _, e in events[:-1] for c in e["choices"]]
        assert not any(reasons)
    elif seen.endpoint == "messages":
        assert (name, last["type"]) == ("error", "error")
    else:
        assert (name, last["type"]) == ("error", "error")
        failed, body = events[-2]
        assert failed == "response.failed"
        assert body["response"]["status"] == "failed"
        assert body["response"]["error"]["message"]


def text_of(seen: Seen) -> str:
    """The text that the caller got."""
    events = [data for _, data in seen.events()]
    if seen.endpoint == "chat":
        choices = [c for e in events for c in e.get("choices", ())]
        return "".join(c["delta"].get("content") or "" for c in choices)
    if seen.endpoint == "messages":
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_the_official_sdk_raises(run: Run[Late], drill: Drill[Late]) -> None:
    error: Any = raised_by_sdk(run.seen(drill))
    expected = anthropic.APIStatusError if drill.endpoint == "messages" else openai.APIError
    assert isinstance(error, expected)


@pytest.mark.parametrize(
    "drill", [d for d in DRILLS if d.fault.name == "error"], ids=lambda d: d.id
)
def test_case_34_the_type_of_the_upstreams_error_is_kept(
    run: Run[Late], drill: Drill[Late]
) -> None:
    _, last = run.seen(drill).events()[-1]
    assert last["error"]["type"] == "overloaded_error"
