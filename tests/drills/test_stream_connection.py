"""The connection to Redis breaks in every way that networks have: the request path goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.drills.load import Crowd
from tests.drills.proxy import Proxy
from tests.drills.site import Site
from tests.harness.gateway import TEAM_KEY
from tests.harness.polling import eventually
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

ONE = {"model": "paced", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def proxied(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> Iterator[tuple[Site, Proxy]]:
    """A site whose gateway reaches Valkey through a proxy."""
    with contextlib.ExitStack() as stack:
        valkey = valkey_server()
        proxy = stack.enter_context(Proxy(Path(urlsplit(valkey.url).path)))
        site = Site(postgres_server(), valkey, tmp_path)
        for process in (site.gateway, site.billing):
            process.env["SLUICE_REDIS_URL"] = f"redis://127.0.0.1:{proxy.port}/0"
        stack.callback(site.close)
        site.start()
        yield site, proxy


@pytest.mark.parametrize("reset", [True, False])
def test_an_idle_connection_breaks(proxied: tuple[Site, Proxy], reset: bool) -> None:
    site, proxy = proxied
    for _ in range(5):
        answer = site.gateway.request("POST", "/v1/chat/completions", ONE, timeout=10)
        assert answer.status_code == 200
        assert eventually(lambda: proxy.break_all(reset))
    assert site.gateway.request("POST", "/v1/chat/completions", ONE, timeout=10).status_code == 200
    site.settle()
    assert len(site.query("SELECT FROM usage_records")) == 6


@pytest.mark.parametrize("reset", [True, False])
def test_connections_break_under_load(proxied: tuple[Site, Proxy], reset: bool) -> None:
    site, proxy = proxied
    with Crowd(site.gateway.url, TEAM_KEY, "paced", clients=100, seed=60) as crowd:
        for _ in range(30):
            crowd.wait_for_more(30)
            proxy.break_all(reset)
        crowd.wait_for_more(50)
    assert not crowd.faults
    audit = site.check(crowd.answers, f"connections {'reset' if reset else 'closed'} thirty times")
    assert audit.rows == audit.complete == audit.sent
