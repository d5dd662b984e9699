"""`kill -9` of billing consumers under load: every row is there exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.load import Crowd, moments
from tests.drills.site import Site
from tests.harness.gateway import TEAM_KEY, Process, sluice
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow


def test_the_consumer_is_killed_twenty_times(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=20) as crowd:
        for answers in moments(20, count=20, least=5, most=120):
            crowd.wait_for_more(answers)
            site.billing.kill()
            site.billing.start()
    assert not crowd.faults
    audit = site.check(crowd.answers, "billing killed twenty times")
    assert audit.rows == audit.complete == audit.sent
    assert site.taken() == 0


def test_the_consumer_is_killed_in_the_middle_of_its_transactions(site: Site) -> None:
    """Postgres holds its breath, the consumer dies, and Postgres commits what it had been given:
    the next consumer gets the same events again."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=100, seed=24) as crowd:
        for answers in moments(24, count=8, least=5, most=80):
            crowd.wait_for_more(answers)
            site.freeze_postgres(stopped=True)
            eventually(lambda: site.taken() > 0)
            crowd.wait_for_more(answers)
            site.billing.kill()
            site.freeze_postgres(stopped=False)
            site.billing.start()
            eventually(lambda: site.taken() == 0)
    assert not crowd.faults
    audit = site.check(crowd.answers, "billing killed in eight transactions")
    assert audit.rows == audit.complete == audit.sent


def test_two_consumers_under_one_name_take_turns_dying(site: Site, tmp_path: Path) -> None:
    other = Process(sluice("billing"), site.gateway.env, tmp_path / "billing-2.log")
    other.start()
    try:
        with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=21) as crowd:
            for number, answers in enumerate(moments(21, count=10, least=20, most=200)):
                crowd.wait_for_more(answers)
                victim = (site.billing, other)[number % 2]
                victim.kill()
                victim.start()
        assert not crowd.faults
        audit = site.check(crowd.answers, "two consumers, killed in turn")
        assert audit.rows == audit.complete == audit.sent
        assert site.taken() == 0
    finally:
        other.kill()


def test_what_a_lost_consumer_took_is_taken_over_under_load(site: Site) -> None:
    """A consumer whose name never comes back, as of a container that was replaced."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=20, seed=23) as crowd:
        crowd.wait_for_more(20)
        site.billing.kill()
        crowd.wait_for_more(50)
        taken = site.abandon_entries(idle_ms=60_000)
        assert taken > 0
        site.billing.start()
        crowd.wait_for_more(50)
        eventually(lambda: site.abandoned() == 0, 45)
        assert not crowd.faults
    audit = site.check(crowd.answers, "a consumer lost")
    assert audit.rows == audit.complete == audit.sent


def test_everything_is_killed_at_once(site: Site) -> None:
    """As a power cut does it, but for the disk's own cache."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=22) as crowd:
        for answers in moments(22, count=4, least=50, most=300):
            crowd.wait_for_busy()
            crowd.wait_for_more(answers)
            for victim in (site.valkey, site.gateway, site.billing, site.postgres):
                victim.kill()
            for server in (site.postgres, site.valkey, site.gateway, site.billing):
                server.start()
        crowd.wait_for_more(100)
    site.check(crowd.answers, "everything killed four times")
