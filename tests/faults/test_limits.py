"""Upstream limits: every form of `Retry-After`, and who is asked instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count

import pytest

from tests.faults import speech
from tests.faults.asking import ask, raised_by_sdk
from tests.faults.models import BUDGET, MAX_COOLDOWN_SECONDS
from tests.harness.gateway import Gateway
from tests.harness.upstream import Call, Upstream

pytestmark = pytest.mark.slow


def in_seconds(seconds: float) -> str:
    """An HTTP date."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


#: Header as the upstream sends it, and the wait that the caller is told.
FORMS: dict[str, tuple[str, Callable[[], str], tuple[int, int]]] = {
    "seconds": ("retry_after", lambda: "7", (7, 7)),
    "fraction": ("retry_after", lambda: "6.5", (7, 7)),
    "millis": ("retry_after_ms", lambda: "6500", (7, 7)),
    "date": ("retry_after", lambda: in_seconds(31), (28, 31)),
    "long": ("retry_after", lambda: "90", (90, 90)),
    "absurd": ("retry_after", lambda: "1e12", (MAX_COOLDOWN_SECONDS, MAX_COOLDOWN_SECONDS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_case_70_a_wait_in_any_form_reaches_the_caller(
    touchy: Gateway, scripted: Upstream, form: str
) -> None:
    name, value, (least, most) = FORMS[form]
    marker = f"form-{form}-marker"
    scripted.on(marker, speech.refusing(429, **{name: value()}))
    first = ask(touchy, "chat", f"form-{form}", marker)
    assert (first.status, len(first.attempts)) == (429, 1)
    assert least <= int(first.headers["retry-after"]) <= most
    assert ("x-should-retry" in first.headers) == (least > 60)
    assert touchy.record(first.request_id)["attempts"] == 1
    for endpoint in ("chat", "messages", "responses"):
        again = ask(touchy, endpoint, f"form-{form}", f"{marker}-again")
        assert (again.status, again.attempts) == (429, [])
        assert least - 5 < int(again.headers["retry-after"]) <= most
        assert type(raised_by_sdk(again)).__name__ == "RateLimitError"
    assert len(scripted.calls_with(marker)) == 1


@pytest.mark.parametrize(
    ("form", "value"),
    [("past", in_seconds(-60)), ("garbage", "soon, perhaps"), ("negative", "-5")],
    ids=["past", "garbage", "negative"],
)
def test_a_wait_that_is_none_rests_nobody(
    touchy: Gateway, scripted: Upstream, form: str, value: str
) -> None:
    scripted.on(f"form-{form}-marker", speech.refusing(429, retry_after=value))
    first = ask(touchy, "chat", f"form-{form}", f"form-{form}-marker")
    assert (first.status, len(first.attempts)) == (429, BUDGET)
    assert first.headers.get("retry-after", "0") == "0"
    assert ask(touchy, "chat", f"form-{form}", "works").status == 200


def test_a_short_wait_is_waited_out(touchy: Gateway, scripted: Upstream) -> None:
    numbers, times = count(), list[float]()

    def script(call: Call) -> None:
        times.append(time.monotonic())
        limited = next(numbers) == 0
        (speech.refusing(429, retry_after="1") if limited else speech.answer)(call)

    scripted.on("short-wait", script)
    seen = ask(touchy, "chat", "recovers-in-time", "short-wait")
    assert seen.status == 200
    assert [attempt.split("=")[1] for attempt in seen.attempts] == ["http_429", "ok"]
    assert times[1] - times[0] >= 1.0
    record = touchy.record(seen.request_id)
    assert (record["status"], record["attempts"], record["output_tokens"]) == ("ok", 2, 7)


def test_the_upstreams_word_against_retries_is_kept(touchy: Gateway, scripted: Upstream) -> None:
    scripted.on("do-not-retry", speech.refusing(500, x_should_retry="false"))
    seen = ask(touchy, "chat", "not-asked-twice", "do-not-retry")
    assert (seen.status, len(seen.attempts)) == (502, 1)


def limiting(waits: dict[str, str]) -> Callable[[Call], None]:
    """A script that limits some models of the upstream and serves others."""

    def script(call: Call) -> None:
        wait = waits.get(call.json["model"])
        (speech.answer if wait is None else speech.refusing(429, retry_after=wait))(call)

    return script


def test_a_limited_deployment_rests_and_the_other_answers(
    touchy: Gateway, scripted: Upstream
) -> None:
    scripted.on("limits-the-first", limiting({"at-first-limited-first": "30"}))
    first = ask(touchy, "chat", "first-limited", "limits-the-first")
    assert first.status == 200
    assert first.attempts == [
        "openai/at-first-limited-first=http_429",
        "openai/at-first-limited-second=ok",
    ]
    record = touchy.record(first.request_id)
    assert (record["attempts"], record["deployment"]) == (2, "openai/at-first-limited-second")
    later = ask(touchy, "chat", "first-limited", "limits-the-first")
    assert later.attempts == ["openai/at-first-limited-second=ok"]


def test_with_all_at_rest_the_soonest_is_named(touchy: Gateway, scripted: Upstream) -> None:
    waits = {"at-both-limited-first": "50", "at-both-limited-second": "20"}
    scripted.on("limits-both", limiting(waits))
    first = ask(touchy, "chat", "both-limited", "limits-both")
    assert (first.status, first.headers["retry-after"]) == (429, "20")
    assert len(first.attempts) == 2
    second = ask(touchy, "chat", "both-limited", "limits-both")
    assert (second.status, second.attempts) == (429, [])
    assert 15 < int(second.headers["retry-after"]) <= 20
    assert second.json["error"]["code"] == "rate_limit_exceeded"


def keyed(refused: dict[str, Callable[[Call], object]]) -> Callable[[Call], None]:
    """A script that refuses some keys and serves others."""

    def script(call: Call) -> None:
        refused.get(call.headers["authorization"].removeprefix("Bearer "), speech.answer)(call)

    return script


def keys_used(upstream: Upstream, marker: str) -> list[str]:
    """The keys of an upstream's calls."""
    calls = upstream.calls_with(marker)
    return [call.headers["authorization"].removeprefix("Bearer ") for call in calls]


@pytest.mark.parametrize(
    ("name", "status", "wait"), [("limited", 429, {"retry_after": "60"}), ("refused", 401, {})]
)
def test_another_key_takes_over_from_one_that_is_refused(
    touchy: Gateway, scripted: Upstream, name: str, status: int, wait: dict[str, str]
) -> None:
    marker = f"one-key-{name}-marker"
    bad, good = f"KEY-ONE-{name}", f"KEY-TWO-{name}"
    scripted.on(marker, keyed({bad: speech.refusing(status, f"key {bad} refused", **wait)}))
    answers = [ask(touchy, "chat", name, marker) for _ in range(4)]
    assert {answer.status for answer in answers} == {200}
    used = keys_used(scripted, marker)
    assert used.count(bad) == 1
    assert used[-3:] == [good] * 3
    assert sum(len(answer.attempts) for answer in answers) == 5


def test_keys_that_are_all_limited_are_a_429(touchy: Gateway, scripted: Upstream) -> None:
    refused = {
        "KEY-ONE-all-limited": speech.refusing(429, retry_after="50"),
        "KEY-TWO-all-limited": speech.refusing(429, retry_after="20"),
    }
    scripted.on("all-keys-limited", keyed(dict(refused)))
    first = ask(touchy, "chat", "all-limited", "all-keys-limited")
    assert (first.status, len(first.attempts)) == (429, 2)
    assert first.headers["retry-after"] == "20"
    second = ask(touchy, "chat", "all-limited", "all-keys-limited")
    assert (second.status, second.attempts) == (429, [])


def test_keys_that_are_all_refused_are_never_the_callers_401(
    touchy: Gateway, scripted: Upstream
) -> None:
    scripted.on("all-keys-refused", lambda call: speech.refusing(
        401, f"Incorrect API key provided: {call.headers['authorization']}"
    )(call))  # fmt: skip
    first = ask(touchy, "chat", "all-refused", "all-keys-refused")
    assert (first.status, len(first.attempts)) == (502, 2)
    assert first.json["error"]["code"] == "upstream_credential_refused"
    assert first.headers["x-should-retry"] == "false"
    second = ask(touchy, "chat", "all-refused", "all-keys-refused")
    assert (second.status, second.attempts) == (503, [])
    assert b"KEY-" not in first.content + second.content
    assert "KEY-ONE" not in touchy.log_text()


def test_a_key_that_is_limited_for_one_model_serves_another(
    touchy: Gateway, scripted: Upstream
) -> None:
    waits = {"at-per-model": "60"}
    scripted.on("limits-one-model", limiting(waits))
    first = ask(touchy, "chat", "per-model", "limits-one-model")
    assert (first.status, len(first.attempts)) == (429, 2)
    assert ask(touchy, "chat", "per-model-other", "limits-one-model").status == 200
