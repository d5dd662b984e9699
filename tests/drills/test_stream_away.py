"""Valkey stopped, killed and hung under load: clients notice nothing, and nothing is lost."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from tests.drills.books import sizes
from tests.drills.load import Crowd, moments
from tests.drills.site import Site
from tests.harness.gateway import TEAM_KEY
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("blow", ["stop", "kill"])
def test_valkey_goes_and_comes_back_under_load(site: Site, blow: str) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=100, seed=2) as crowd:
        for answers in moments(2, count=5, least=50, most=200):
            crowd.wait_for_more(answers)
            getattr(site.valkey, blow)()
            crowd.wait_for_more(answers)
            eventually(site.spooled)
            site.valkey.start()
        crowd.wait_for_more(100)
    assert not crowd.faults
    audit = site.check(crowd.answers, f"valkey {blow} five times")
    assert audit.rows == audit.complete == audit.sent
    assert site.spooled() == 0


def test_valkey_hangs_under_load(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=100, seed=3) as crowd:
        crowd.wait_for_more(100)
        os.kill(site.valkey.pid, signal.SIGSTOP)
        crowd.wait_for_more(500)
        eventually(site.spooled)
        os.kill(site.valkey.pid, signal.SIGCONT)
        crowd.wait_for_more(100)
    assert not crowd.faults
    audit = site.check(crowd.answers, "valkey hung")
    assert audit.rows == audit.complete == audit.sent


def test_valkey_that_refuses_writes_counts_as_away(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=50, seed=4) as crowd:
        crowd.wait_for_more(50)
        site.valkey_command("CONFIG", "SET", "maxmemory", "1")
        crowd.wait_for_more(100)
        eventually(site.spooled)
        site.valkey_command("CONFIG", "SET", "maxmemory", "0")
        crowd.wait_for_more(50)
        site.valkey_command("CONFIG", "SET", "min-replicas-to-write", "1")
        crowd.wait_for_more(100)
        eventually(site.spooled)
        site.valkey_command("CONFIG", "SET", "min-replicas-to-write", "0")
        crowd.wait_for_more(50)
    assert not crowd.faults
    audit = site.check(crowd.answers, "valkey refused writes")
    assert audit.rows == audit.complete == audit.sent


def test_an_orphaned_spool_is_replayed_by_the_next_gateway(site: Site) -> None:
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=200, seed=5) as crowd:
        for answers in moments(5, count=3, least=100, most=300):
            crowd.wait_for_more(answers)
            site.valkey.kill()
            crowd.wait_for_busy()
            crowd.wait_for_more(answers)
            eventually(site.spooled)
            site.gateway.kill()
            assert site.spooled() > 0
            site.valkey.start()
            site.gateway.start()
        crowd.wait_for_more(100)
    site.check(crowd.answers, "valkey and gateway killed three times")
    assert site.spooled() == 0


def test_a_gateway_that_starts_without_valkey_serves(site: Site) -> None:
    site.valkey.kill()
    site.gateway.kill()
    site.gateway.start()
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=20, seed=6) as crowd:
        crowd.wait_for_more(50)
        site.gateway.kill()
        site.gateway.start()
        crowd.wait_for_more(50)
    site.valkey.start()
    site.check(crowd.answers, "started without valkey")


def test_neither_stream_nor_spool_is_no_finished_answer(site: Site) -> None:
    site.spool.write_text("no directory")
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=50, seed=9) as crowd:
        crowd.wait_for_more(50)
        site.valkey.kill()
        eventually(lambda: crowd.faults.total() > 200)
        site.valkey.start()
        crowd.wait_for_more(100)
    assert set(crowd.faults) == {"500 internal_error", "in-band internal_error"}
    site.spool.unlink()
    site.check(crowd.answers, "neither stream nor spool")


def test_a_full_disk_tears_no_later_event(site: Site) -> None:
    """A group that was half written is told to nobody, and the next is not lost behind it."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=50, seed=10) as crowd:
        crowd.wait_for_more(50)
        site.valkey.kill()
        for room in (100, 400, 700):
            crowd.wait_for_more(50)
            limit = max(sizes(site.spool.glob("*"))) + room
            before = crowd.faults.total()
            resource.prlimit(site.gateway.pid, resource.RLIMIT_FSIZE, (limit, -1))
            eventually(lambda before=before: crowd.faults.total() > before)  # type: ignore[misc]
            resource.prlimit(site.gateway.pid, resource.RLIMIT_FSIZE, (-1, -1))
        crowd.wait_for_more(100)
        site.valkey.start()
        crowd.wait_for_more(50)
    assert set(crowd.faults) <= {"500 internal_error", "in-band internal_error"}
    site.check(crowd.answers, "disk full three times")


def test_the_stream_is_forgotten_and_begins_anew(site: Site) -> None:
    """A Redis without persistence restarts empty: the group is made again, and events go on."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=20, seed=7) as crowd:
        crowd.wait_for_more(50)
    site.check(crowd.answers, "before the stream was forgotten")
    site.valkey_command("FLUSHALL")
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=20, seed=8) as more:
        more.wait_for_more(50)
    site.check([*crowd.answers, *more.answers], "the stream was forgotten")
