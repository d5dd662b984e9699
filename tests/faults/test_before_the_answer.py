"""Faults before the first token: an error of the right status in the caller's own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.faults.asking import Seen, raised_by_sdk
from tests.faults.catalogue import EARLY, Early
from tests.faults.drills import Drill, Run, drills
from tests.harness.gateway import Gateway
from tests.harness.upstream import Upstream

pytestmark = pytest.mark.slow

DRILLS = drills(EARLY, (False, True))

#: What the SDKs raise for a status.
OPENAI_ERRORS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
}
ANTHROPIC_ERRORS: dict[int, type[anthropic.APIStatusError]] = {
    400: anthropic.BadRequestError,
    404: anthropic.NotFoundError,
    429: anthropic.RateLimitError,
}


@pytest.fixture(scope="module")
def run(steady: Gateway, scripted: Upstream) -> Iterator[Run[Early]]:
    """All drills of this module, begun."""
    running = Run(steady, scripted, DRILLS)
    yield running
    running.close()


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_the_caller_hears_of_it_and_one_record_is_kept(
    run: Run[Early], drill: Drill[Early]
) -> None:
    fault, seen = drill.fault, run.seen(drill)
    assert seen.headers["content-type"] == "application/json"
    _assert_told(fault, seen)
    deployment = f"{drill.upstream}{'' if fault.script else '-refused'}/backend-model"
    assert seen.attempts == [f"{deployment}={fault.reason}"] * fault.attempts
    assert len(run.calls(drill)) == (fault.attempts if fault.script else 0)
    record = run.gateway.record(seen.request_id)
    assert (record["status"], record["attempts"]) == ("error", fault.attempts)
    assert record["attempt_log"] == seen.headers["x-attempts"]
    assert record["output_tokens"] == 0 or drill.upstream == "anthropic"
    assert record["model_used"] == seen.headers["x-model-used"]


def _assert_told(fault: Early, seen: Seen) -> None:
    error = seen.json["error"]
    assert error["message"]
    if seen.endpoint == "messages":
        assert seen.status == (529 if fault.status == 503 else fault.status)
        assert seen.json["type"] == "error"
        assert error["type"] == fault.kind
        assert seen.json["request_id"] == seen.headers["request-id"] == seen.request_id
    else:
        assert seen.status == fault.status
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == fault.code


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_the_official_sdk_raises_the_error_of_the_status(
    run: Run[Early], drill: Drill[Early]
) -> None:
    seen = run.seen(drill)
    error: Any = raised_by_sdk(seen)
    if drill.endpoint == "messages":
        server: Any = {
            504: anthropic.DeadlineExceededError,
            529: anthropic.OverloadedError,
        }.get(seen.status, anthropic.InternalServerError)
        assert type(error) is ANTHROPIC_ERRORS.get(seen.status, server)
    else:
        assert type(error) is OPENAI_ERRORS.get(seen.status, openai.InternalServerError)
        assert error.code == drill.fault.code
    assert error.request_id == seen.request_id
