"""What follows from an answer to an item."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.batch.items import Item, Result, Retry
from sluice.gateway.batch.runner import Answer, refuser
from sluice.gateway.batch.verdict import Patience, judge

PATIENCE = Patience(attempts=3, refusals=6, first_seconds=1.0, longest_seconds=8.0)
ERROR = b'{"error":{"message":"no"}}'


def item(attempts: int = 0) -> Item:
    return Item(
        uuid4(), 4, "mine", "m", uuid4(), attempts, Endpoint.CHAT, uuid4(), uuid4(), "normal",
        datetime.now(UTC), "o", 0, 1,
    )  # fmt: skip


def verdict(answer: Answer, attempts: int = 0, left: float = 1e6) -> Result | Retry:
    return judge(item(attempts), answer, PATIENCE, lambda: 1.0, left)


def test_an_answer_is_a_line_of_the_output() -> None:
    given = item()
    result = judge(given, Answer(200, b'{"id": 1.50}'), PATIENCE, lambda: 1.0, 1e6)
    assert isinstance(result, Result)
    assert result.ok
    assert '"body":{"id": 1.50}' in result.text
    line = json.loads(result.text)
    assert line["id"] == f"batch_req_{given.request_id.hex}"
    assert (line["custom_id"], line["error"]) == ("mine", None)
    assert line["response"]["status_code"] == 200
    assert line["response"]["request_id"] == str(given.request_id)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_refusal_of_the_request_is_a_line_of_the_error_file(status: int) -> None:
    result = verdict(Answer(status, ERROR))
    assert isinstance(result, Result)
    assert not result.ok
    assert json.loads(result.text)["response"]["body"] == json.loads(ERROR)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    retry = verdict(Answer(status, ERROR))
    assert isinstance(retry, Retry)
    assert (retry.seconds, retry.counts) == (1.0, True)


def test_waits_double_and_end() -> None:
    assert [PATIENCE.wait(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 8, 8]
    assert PATIENCE.wait(1, lambda: 0.0) == 0.5


def test_after_the_last_attempt_the_answer_is_what_it_gets() -> None:
    assert isinstance(verdict(Answer(500, ERROR), attempts=1), Retry)
    last = verdict(Answer(500, ERROR), attempts=2)
    assert isinstance(last, Result)
    assert json.loads(last.text)["response"]["status_code"] == 500


def test_a_model_without_room_is_waited_for_longer_than_a_fault() -> None:
    busy = Answer(429, ERROR, refuser="model")
    assert isinstance(verdict(busy, attempts=4), Retry)
    assert isinstance(verdict(busy, attempts=5), Result)


@pytest.mark.parametrize("who", ["team", "gateway", "model"])
def test_what_was_never_tried_does_not_count(who: Any) -> None:
    retry = verdict(Answer(429, ERROR, tried=False, refuser=who, retry_after=30.0), attempts=2)
    assert isinstance(retry, Retry)
    assert (retry.counts, retry.seconds) == (False, 30.0)


def test_an_answer_that_rules_a_retry_out_is_final() -> None:
    assert isinstance(verdict(Answer(429, ERROR, refuser="team", hopeless=True)), Result)
    later = Answer(429, ERROR, tried=False, refuser="model", hopeless=True, retry_after=600.0)
    assert isinstance(verdict(later), Retry)


def test_a_wait_beyond_the_window_is_none() -> None:
    budget = Answer(429, ERROR, tried=False, refuser="team", hopeless=True, retry_after=90_000.0)
    assert isinstance(verdict(budget, left=86_400.0), Result)


def test_what_was_cut_off_begins_again_uncharged() -> None:
    retry = verdict(Answer(0), attempts=2)
    assert isinstance(retry, Retry)
    assert (retry.counts, retry.seconds, retry.event) == (False, 0.0, None)


def test_a_body_of_several_lines_or_of_no_json_stays_one_line() -> None:
    for body in (b'{\n "a":\r\n 1}', b"<html>\n</html>", b"\xff\xfe", b""):
        result = verdict(Answer(200, body))
        assert isinstance(result, Result)
        assert "\n" not in result.text
        json.loads(result.text)


def test_who_refused() -> None:
    assert refuser(200, "ok", None) is None
    assert refuser(429, "limited", None) == "team"
    assert refuser(429, "limited", "rate_limit_exceeded") == "model"
    assert refuser(503, "upstream_error", "server_is_overloaded") == "model"
    assert refuser(503, "internal_error", None) == "gateway"
    assert refuser(500, "internal_error", None) is None
