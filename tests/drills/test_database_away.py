"""Postgres stopped and killed under load: the request path never notices, and rows come later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.drills.load import Crowd, moments
from tests.drills.proxy import Proxy
from tests.drills.site import Site
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY
from tests.harness.polling import eventually
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

CONTROL_PLANE = [
    ("GET", "/v1/usage", TEAM_KEY),
    ("GET", "/v1/usage/records", TEAM_KEY),
    ("GET", "/admin/teams", ADMIN_KEY),
    ("POST", "/admin/teams/default/keys", ADMIN_KEY),
]


@pytest.mark.parametrize("blow", ["stop", "kill"])
def test_postgres_goes_and_comes_back_under_load(site: Site, blow: str) -> None:
    with Crowd(
        site.gateway.url, TEAM_KEY, "paced", clients=100, seed=10, keep_connections=False
    ) as crowd:
        for answers in moments(10, count=4, least=50, most=200):
            crowd.wait_for_more(answers)
            getattr(site.postgres, blow)()
            crowd.wait_for_more(answers)
            for method, path, key in CONTROL_PLANE:
                _answers_that_it_is_away(site.gateway.request(method, path, {}, key))
            assert site.queued() > 0
            site.postgres.start()
        crowd.wait_for_more(100)
    assert not crowd.faults
    audit = site.check(crowd.answers, f"postgres {blow} four times")
    assert audit.rows == audit.complete == audit.sent
    for method, path, key in CONTROL_PLANE:
        assert site.gateway.request(method, path, {}, key).status_code < 300


def test_postgres_is_restarted_in_the_middle_of_transactions(site: Site) -> None:
    """Often and quickly, with the consumer and the control plane in the middle of queries."""
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=100, seed=11) as crowd:
        for number, answers in enumerate(moments(11, count=12, least=5, most=60)):
            crowd.wait_for_more(answers)
            (site.postgres.stop if number % 2 else site.postgres.kill)()
            site.postgres.start()
            assert _usage_is_back(site)
    assert not crowd.faults
    audit = site.check(crowd.answers, "postgres restarted twelve times")
    assert audit.rows == audit.complete == audit.sent
    _new_key_is_known(site)


def test_postgres_hangs_under_load(site: Site) -> None:
    with Crowd(
        site.gateway.url, TEAM_KEY, "paced", clients=100, seed=12, keep_connections=False
    ) as crowd:
        crowd.wait_for_more(100)
        site.freeze_postgres(stopped=True)
        crowd.wait_for_more(1500)
        site.freeze_postgres(stopped=False)
        crowd.wait_for_more(100)
    assert not crowd.faults
    audit = site.check(crowd.answers, "postgres hung")
    assert audit.rows == audit.complete == audit.sent
    _new_key_is_known(site)


def test_connections_to_postgres_break_under_load(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        postgres = postgres_server()
        socket = parse_qs(urlsplit(postgres.url).query)["host"][0]
        proxy = stack.enter_context(Proxy(Path(socket) / ".s.PGSQL.5432"))
        site = Site(postgres, valkey_server(), tmp_path)
        for process in (site.gateway, site.billing):
            url = f"postgresql://sluice@127.0.0.1:{proxy.port}/postgres"
            process.env["SLUICE_DATABASE_URL"] = url
        stack.callback(site.close)
        site.start()
        with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=50, seed=13) as crowd:
            for number in range(30):
                crowd.wait_for_more(20)
                proxy.break_all(reset=bool(number % 2))
                assert site.gateway.request("GET", "/v1/usage").status_code in (200, 503)
            crowd.wait_for_more(20)
        assert not crowd.faults
        audit = site.check(crowd.answers, "connections to postgres broken thirty times")
        assert audit.rows == audit.complete == audit.sent
        _new_key_is_known(site)


def test_a_key_made_after_postgres_came_back_is_known(site: Site) -> None:
    site.postgres.kill()
    ready = site.gateway.request("GET", "/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    site.postgres.start()
    assert _usage_is_back(site)
    _new_key_is_known(site)


def _usage_is_back(site: Site) -> bool:
    return eventually(lambda: site.gateway.request("GET", "/v1/usage").status_code == 200)


def _new_key_is_known(site: Site) -> None:
    made = eventually(lambda: _created(site))
    body = {"model": "paced", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
    eventually(
        lambda: site.gateway.request("POST", "/v1/chat/completions", body, made).status_code == 200
    )


def _created(site: Site) -> str | None:
    response = site.gateway.request("POST", "/admin/teams/default/keys", {}, ADMIN_KEY)
    return str(response.json()["key"]) if response.status_code == 201 else None


def _answers_that_it_is_away(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "service_unavailable")
    assert response.headers["retry-after"] == "1"
    assert "Traceback" not in response.text
