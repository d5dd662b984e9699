"""Changes by the admin API move live traffic, over two gateways and without a failed request."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.gateway.routing.conftest import Site, tiers
from tests.harness.administration import unique
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY
from tests.harness.polling import eventually

SPLIT = "/admin/routing/split"
A, B = "sim-a/sim", "sim-b/sim"

#: So many answers have a share within 2 points of the weights' but in one of 40,000 cases.
ENOUGH = 4_000


def weights(of_a: int, of_b: int) -> dict[str, Any]:
    return {"weights": {A: of_a, B: of_b}}


@dataclass
class Traffic:
    """Requests to `split` at both gateways, one after the other on each of some connections.

    Attributes:
        answers: when each was asked for, its gateway, its status and its deployment.
    """

    site: Site
    answers: list[tuple[float, str, int, str]] = field(default_factory=list)
    stopped: bool = False

    async def run(self) -> None:
        headers = {"authorization": f"Bearer {TEAM_KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            urls = [self.site.one.url, self.site.other.url] * 8
            await asyncio.gather(*(self._client(session, url) for url in urls))

    async def _client(self, session: aiohttp.ClientSession, url: str) -> None:
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": "split", "messages": messages, "max_tokens": 1}
        while not self.stopped:
            begun = time.monotonic()
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()
                attempts = response.headers.get("x-attempts", "")
                self.answers.append((begun, url, response.status, attempts.partition("=")[0]))

    def since(self, begun: float) -> list[tuple[float, str, int, str]]:
        return [each for each in self.answers if each[0] >= begun]

    async def until(self, begun: float, count: int) -> Counter[str]:
        """Deployments of so many answers that were asked for after a moment."""
        async with asyncio.timeout(120):
            while len(self.since(begun)) < count:
                await asyncio.sleep(0.05)
        return Counter(each[3] for each in self.since(begun))


async def change(site: Site, method: str, path: str, body: Any) -> None:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, site.one.url + path, json=body) as response,
    ):
        assert response.status == 200, await response.text()


async def test_weights_move_live_traffic_over_two_gateways_and_back(site: Site) -> None:
    await change(site, "PUT", SPLIT, weights(50, 50))
    traffic = Traffic(site)
    running = asyncio.create_task(traffic.run())
    before = await traffic.until(time.monotonic() + 1, 500)
    assert before[A] / before.total() == pytest.approx(0.5, abs=0.12)
    await change(site, "PUT", SPLIT, weights(90, 10))
    changed = time.monotonic()
    moved = await traffic.until(changed + 1, ENOUGH)  # a second, of the five that are allowed
    assert moved[A] / moved.total() == pytest.approx(0.9, abs=0.02)
    for url in (site.one.url, site.other.url):
        own = Counter(each[3] for each in traffic.since(changed + 1) if each[1] == url)
        chance = 5 * math.sqrt(0.9 * 0.1 / own.total())
        assert own[A] / own.total() == pytest.approx(0.9, abs=chance)
    await change(site, "POST", f"{SPLIT}/rollback", {})
    back = await traffic.until(time.monotonic() + 1, 1_000)
    assert back[A] / back.total() == pytest.approx(0.5, abs=0.08)
    traffic.stopped = True
    await running
    assert {each[2] for each in traffic.answers} == {200}


def test_a_weight_of_nothing_stops_a_deployment(site: Site) -> None:
    site.put("split", weights(0, 1))
    for gateway in (site.one, site.other):
        attempts = {site.chat("split", gateway=gateway).headers["x-attempts"] for _ in range(5)}
        assert attempts == {f"{B}=ok"}
    site.admin.delete(SPLIT)


def test_tiers_change_for_one_team_alone(site: Site) -> None:
    team, key = site.new_team()
    site.put("auto", {"auto": tiers(1.0)}, f"?team={team['name']}")
    for gateway in (site.one, site.other):
        assert site.used("auto", gateway=gateway, key=key) == "large"
        assert site.used("auto", gateway=gateway) == "small"
    site.admin.delete(f"/admin/routing/auto?team={team['id']}")
    eventually(lambda: site.used("auto", key=key) == "small", 5)


def test_what_was_put_is_read_and_changed_under_its_etag(site: Site) -> None:
    alias = unique("auto")
    path = f"/admin/routing/{alias}"
    assert site.admin.ask("GET", path).status_code == 404
    made = site.admin.ask("PUT", path, {"auto": tiers(0.2)})
    assert made.json()["version"] == 1
    read = site.admin.ask("GET", path)
    assert (read.json(), read.headers["etag"]) == (made.json(), made.headers["etag"])
    known = {"if-none-match": read.headers["etag"]}
    assert site.admin.ask("GET", path, headers=known).status_code == 304
    now = {"if-match": read.headers["etag"]}
    assert site.admin.ask("PUT", path, {"auto": tiers(0.3)}, now).json()["version"] == 2
    for method, where in (("PUT", path), ("POST", f"{path}/rollback"), ("DELETE", path)):
        body = {"auto": tiers(0.4)} if method == "PUT" else None
        assert site.admin.ask(method, where, body, now).status_code == 412
    assert site.admin.ask("PUT", path, {"auto": tiers(0.3)}).json()["version"] == 2  # the same


def test_versions_can_be_rolled_back_to_and_the_log_has_it_all(site: Site) -> None:
    alias = unique("auto")
    path = f"/admin/routing/{alias}"
    for share in (0.1, 0.2, 0.3):
        made = site.put(alias, {"auto": tiers(share)})

    def shares() -> list[float | None]:
        found = site.admin.get(f"{path}/versions")["data"]
        documents = [each["document"] for each in found]
        return [each and each["auto"]["tiers"][1]["share"] for each in documents]

    assert shares() == [0.3, 0.2, 0.1]
    site.admin.post(f"{path}/rollback")
    site.admin.post(f"{path}/rollback", {"version": 1})
    assert shares() == [0.1, 0.2, 0.3, 0.2, 0.1]
    site.admin.post(f"{path}/rollback", {"version": 0})
    assert shares()[0] is None
    site.wait()
    assert site.chat(alias).status_code == 404
    site.admin.post(f"{path}/rollback")
    site.admin.delete(path)
    assert site.admin.ask("DELETE", path).status_code == 404
    for version in (8, 99):
        refused = site.admin.ask("POST", f"{path}/rollback", {"version": version})
        assert refused.status_code == (200 if version == 8 else 404)
    entries = site.admin.all(f"/admin/audit?object_id={made['id']}")
    assert [each["action"] for each in reversed(entries)] == [
        *("routing.create", "routing.update", "routing.update"),
        *("routing.rollback",) * 4,
        "routing.delete",
    ]
    assert entries[-1]["before"] is None
    assert entries[-1]["after"]["document"]["auto"]["tiers"][1]["share"] == 0.1


def test_what_the_configuration_says_is_version_nought(site: Site) -> None:
    weighted = site.admin.get("/admin/routing/small")
    assert (weighted["version"], weighted["document"]) == (0, {"auto": None, "weights": {A: 100}})
    auto = site.admin.get("/admin/routing/shaky")
    assert auto["document"]["auto"]["tiers"][1]["models"] == {"fragile": 1}


TIERS = tiers()["tiers"]


@pytest.mark.parametrize(
    ("alias", "document", "status", "param"),
    [
        ("new", {"auto": {"tiers": [TIERS[0]]}}, 400, "auto.tiers"),
        (
            "new",
            {"auto": {"tiers": [TIERS[0], {**TIERS[1], "share": 2}]}},
            400,
            "auto.tiers[1].share",
        ),
        ("new", {"auto": {"tiers": TIERS, "floor": "nope"}}, 400, "auto"),
        ("new", {"auto": {"tiers": TIERS, "other": 1}}, 400, "auto"),
        ("new", {}, 400, "weights"),
        ("new", {"auto": tiers(strong="nobody")}, 409, "auto.tiers"),
        ("small", {"auto": tiers()}, 409, "alias"),
        ("new:quality", {"auto": tiers()}, 409, "alias"),
        ("new", {"weights": {A: 1}}, 409, "alias"),
        ("split", {"weights": {A: 1}}, 409, "weights"),
        ("split", {"weights": {A: 1, B: 1, "sim-c/sim": 1}}, 409, "weights"),
        ("split", {"weights": {A: 0, B: 0}}, 400, "weights"),
        ("split", {"weights": {A: -1, B: 1}}, 400, "weights[...]"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    site: Site, alias: str, document: dict[str, Any], status: int, param: str
) -> None:
    for more in ("", "?dry_run=true"):
        refused = site.admin.ask("PUT", f"/admin/routing/{alias}{more}", document)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


def test_a_team_that_is_not_there(site: Site) -> None:
    refused = site.admin.ask("PUT", f"{SPLIT}?team=nobody", weights(1, 1))
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "team")


class TestDryRun:
    def test_it_shows_where_requests_would_have_gone_and_at_what_cost(self, site: Site) -> None:
        team, key = site.new_team()
        for number in range(10):
            site.chat("auto", "Prove the theorem step by step. " * number, key=key)
        path = f"/admin/routing/auto?team={team['id']}&dry_run=true"

        def preview(share: float) -> Any:
            found = site.admin.ask("PUT", path, {"auto": tiers(share)}).json()
            return found if found["requests"] == 10 else None

        none = eventually(lambda: preview(0.0))
        every, half = preview(1.0), preview(0.5)
        assert [(each["model"], each["requests"]) for each in none["would"]] == [("small", 10)]
        assert [(each["model"], each["requests"]) for each in every["would"]] == [("large", 10)]
        assert {each["model"]: each["requests"] for each in half["would"]} == {
            "small": 5,
            "large": 5,
        }
        was = {each["model"]: each for each in every["was"]}
        tokens = was["small"]["cost_nano_usd"]
        tokens += was["large"]["cost_nano_usd"] // 10 if "large" in was else 0
        assert (none["would_cost_nano_usd"], every["would_cost_nano_usd"]) == (tokens, 10 * tokens)
        assert sum(each["share"] for each in half["would"]) == 1.0
        assert site.admin.ask("GET", f"/admin/routing/auto?team={team['id']}").status_code == 404

    def test_weights_are_shown_as_what_is_to_be_expected(self, site: Site) -> None:
        team, key = site.new_team()
        for _ in range(4):
            site.chat("split", key=key)
        path = f"{SPLIT}?team={team['id']}&dry_run=true"

        def preview() -> Any:
            found = site.admin.ask("PUT", path, weights(75, 25)).json()
            return found if found["requests"] == 4 else None

        found = eventually(preview)
        assert [(each["deployment"], each["requests"]) for each in found["would"]] == [
            (A, 3.0),
            (B, 1.0),
        ]
        assert sum(each["requests"] for each in found["was"]) == 4
        assert found["would_cost_nano_usd"] == found["cost_nano_usd"] > 0

    def test_an_alias_without_requests(self, site: Site) -> None:
        path = f"/admin/routing/{unique('auto')}?dry_run=true"
        found = site.admin.ask("PUT", path, {"auto": tiers()}).json()
        assert (found["requests"], found["was"], found["would"]) == (0, [], [])
