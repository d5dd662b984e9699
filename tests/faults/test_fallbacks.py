"""Other models that take over, the budget of calls, and callers who want neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from openai import OpenAI

from tests.faults import speech
from tests.faults.asking import Seen, ask
from tests.faults.models import BUDGET, KINDS
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.upstream import Call, Script, Upstream

pytestmark = pytest.mark.slow

ENDPOINTS = ["chat", "messages", "responses"]

#: Each kind's words for a prompt that doesn't fit.
TOO_LONG = {
    "openai": speech.refusing(
        400, "This model's maximum context length is 10 tokens.", "invalid_request_error",
        "context_length_exceeded",
    ),
    "vllm": speech.refusing(
        400, "This model's maximum context length is 10 tokens. However, you requested 90.",
        "BadRequestError", "400",
    ),
    "anthropic": speech.refusing(
        400, "prompt is too long: 250000 tokens > 200000 maximum", "invalid_request_error"
    ),
}  # fmt: skip

#: And for a prompt against its policy.
MODERATED = {
    "openai": speech.refusing(400, "filtered", "invalid_request_error", "content_filter"),
    "vllm": speech.refusing(400, "filtered", "invalid_request_error", "content_filter"),
    "anthropic": speech.refusing(
        400, "Output blocked by content filtering policy", "invalid_request_error"
    ),
}


def unless_spare(script: Script) -> Callable[[Call], None]:
    """A script for all but the fallback model, which is served."""

    def chosen(call: Call) -> None:
        (speech.answer if call.json["model"] == "at-spare" else script)(call)

    return chosen


def assert_spare_answered(gateway: Gateway, seen: Seen, attempts: int) -> None:
    assert seen.status == 200
    assert seen.headers["x-model-used"] == "spare"
    assert len(seen.attempts) == attempts
    assert seen.attempts[-1] == "openai/at-spare=ok"
    record = gateway.record(seen.request_id)
    assert (record["status"], record["model_used"], record["attempts"]) == ("ok", "spare", attempts)
    assert record["deployment"] == "openai/at-spare"
    assert (record["input_tokens"], record["output_tokens"]) == (11, 7)
    assert record["cost_nano_usd"] == 11 * 1000 + 7 * 2000  # the fallback's price


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_goes_to_the_longer_model(
    touchy: Gateway, scripted: Upstream, kind: str, endpoint: str, stream: bool
) -> None:
    marker = f"long-{kind}-{endpoint}-{stream}-end"
    scripted.on(marker, unless_spare(TOO_LONG[kind]))
    seen = ask(touchy, endpoint, f"long-{kind}", marker, stream)
    assert_spare_answered(touchy, seen, 2)
    assert touchy.record(seen.request_id)["model"] == f"long-{kind}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_without_a_longer_model_the_caller_is_told(
    touchy: Gateway, scripted: Upstream, kind: str, endpoint: str
) -> None:
    marker = f"bare-{kind}-{endpoint}-end"
    scripted.on(marker, TOO_LONG[kind])
    seen = ask(touchy, endpoint, f"bare-{kind}", marker)
    assert (seen.status, len(seen.attempts)) == (400, 1)
    if endpoint == "messages":
        assert "prompt is too long" in seen.json["error"]["message"]
    else:
        assert seen.json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_prompt_against_a_policy_goes_to_the_model_for_such(
    touchy: Gateway, scripted: Upstream, kind: str, endpoint: str
) -> None:
    marker = f"moderated-{kind}-{endpoint}-end"
    scripted.on(marker, unless_spare(MODERATED[kind]))
    assert_spare_answered(touchy, ask(touchy, endpoint, f"moderated-{kind}", marker), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_faults_lead_to_the_fallback_within_the_budget(
    touchy: Gateway, scripted: Upstream, kind: str
) -> None:
    marker = f"falls-{kind}-marker"
    scripted.on(marker, unless_spare(speech.refusing(500)))
    assert_spare_answered(touchy, ask(touchy, "chat", f"falls-{kind}", marker), BUDGET)
    assert len(scripted.calls_with(marker)) == BUDGET


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_fails_before_its_first_token_falls_back(
    touchy: Gateway, scripted: Upstream, kind: str
) -> None:
    marker = f"early-stream-{kind}-marker"
    scripted.on(marker, unless_spare(speech.before_words(speech.say_error)))
    seen = ask(touchy, "chat", f"falls-{kind}", marker, stream=True)
    assert seen.status == 200
    assert seen.headers["x-model-used"] == "spare"
    assert b"[DONE]" in seen.content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_case_36_no_fallbacks_means_one_call_and_the_first_error(
    touchy: Gateway, scripted: Upstream, kind: str, endpoint: str
) -> None:
    marker = f"stays-{kind}-{endpoint}-end"
    scripted.on(marker, speech.refusing(429, "the first error"))
    seen = ask(touchy, endpoint, f"stays-{kind}", marker, disable_fallbacks=True)
    assert seen.status == 429
    assert seen.json["error"]["message"] == "the first error"
    assert len(seen.attempts) == len(scripted.calls_with(marker)) == 1
    assert "disable_fallbacks" not in scripted.calls_with(marker)[0].json


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_case_36_no_fallbacks_inside_a_stream(
    touchy: Gateway, scripted: Upstream, kind: str, endpoint: str
) -> None:
    marker = f"stays-stream-{kind}-{endpoint}-end"
    scripted.on(marker, speech.after_words(speech.say_error))
    seen = ask(touchy, endpoint, f"bare-{kind}", marker, True, disable_fallbacks=True)
    assert b"scripted overload" in seen.content
    assert len(scripted.calls_with(marker)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_case_84_one_call_of_the_sdk_is_never_more_than_the_budget(
    steady: Gateway, scripted: Upstream, kind: str
) -> None:
    marker = f"budget-{kind}-marker"
    scripted.on(marker, speech.refusing(500))
    with OpenAI(base_url=f"{steady.url}/v1", api_key=TEAM_KEY, max_retries=0) as sdk:
        failed = sdk.chat.completions.with_raw_response
        with pytest.raises(Exception, match="scripted refusal") as raised:
            failed.create(model=kind, messages=[{"role": "user", "content": marker}], max_tokens=5)
    assert len(scripted.calls_with(marker)) == BUDGET
    record = steady.record(getattr(raised.value, "request_id", ""))
    assert record["attempts"] == BUDGET
    assert record["attempt_log"] == ", ".join([f"{kind}/backend-model=http_500"] * BUDGET)
