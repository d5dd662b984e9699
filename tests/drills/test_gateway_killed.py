"""`kill -9` of the gateway under load: what clients saw complete is charged, once, and exactly."""

from __future__ import annotations

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
