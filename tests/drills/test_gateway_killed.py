"""`kill -9` of the gateway under load: what clients saw complete is charged, once, and exactly."""

from __future__ import annotations

import os
import signal

import pytest

from tests.drills.load import Crowd, moments
from tests.drills.site import Site
from tests.harness.gateway import TEAM_KEY

pytestmark = pytest.mark.slow


def test_ten_kills_lose_nothing_and_double_nothing(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=1) as crowd:
        for answers in moments(1, count=10, least=20, most=400):
            crowd.wait_for_busy()
            crowd.wait_for_more(answers)
            site.gateway.kill()
            site.gateway.start()
        crowd.wait_for_more(200)
    print(dict(crowd.faults))
    site.check(crowd.answers, "gateway killed ten times")
    assert not any(status == 500 for status in {answer.status for answer in crowd.answers})


def test_a_kill_while_the_stream_hangs_finds_no_answer_that_ended_too_early(site: Site) -> None:
    """The widest window: answers are complete, their charges in memory; no client may know."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=2) as crowd:
        for _ in range(4):
            crowd.wait_for_busy()
            crowd.wait_for_more(100)
            os.kill(site.valkey.pid, signal.SIGSTOP)
            crowd.wait_for_silence(0.5)
            site.gateway.kill()
            os.kill(site.valkey.pid, signal.SIGCONT)
            site.gateway.start()
        crowd.wait_for_more(100)
    site.check(crowd.answers, "gateway killed four times while the stream hung")
