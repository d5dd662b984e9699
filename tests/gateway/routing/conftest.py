"""Two gateways with aliases to route."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.harness.administration import Admin
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import TEAM_KEY, Gateway, free_port
from tests.harness.polling import eventually
from tests.harness.twins import another

CHEAP = {"input_per_mtok": "1", "output_per_mtok": "1"}
DEAR = {"input_per_mtok": "10", "output_per_mtok": "10"}


def tiers(share: float = 0.3, weak: str = "small", strong: str = "large") -> dict[str, Any]:
    return {
        "tiers": [
            {"name": "economy", "models": {weak: 1}},
            {"name": "quality", "models": {strong: 1}, "share": share},
        ]
    }


def config() -> dict[str, Any]:
    """`small` and `large` behind `auto`; `small` and `fragile`, whose upstream is dead, behind
    `shaky`; `small` and `sighted`, which alone sees images, behind `seeing`; `brief`, which has
    little room; `split` with two deployments."""
    fast = {"kind": "simulator", "ttft_ms": 0, "itl_ms": 0}
    dead = {"kind": "openai", "base_url": f"http://127.0.0.1:{free_port()}/v1"}
    sims = ("sim-a", "sim-b")
    return {
        "providers": {**dict.fromkeys(sims, fast), "dead": dead},
        "models": [
            model("small", {"provider": "sim-a", "model": "sim"}, price=CHEAP),
            model("brief", {"provider": "sim-a", "model": "sim"}, price=CHEAP, context_length=200),
            model("large", {"provider": "sim-b", "model": "sim"}, price=DEAR),
            model(
                "sighted",
                {"provider": "sim-b", "model": "sim"},
                price=DEAR,
                capabilities=["chat", "vision"],
            ),
            model("fragile", {"provider": "dead", "model": "sim"}, price=DEAR),
            model("split", *({"provider": name, "model": "sim"} for name in sims)),
        ],
        "routing": {
            "auto": tiers(),
            "shaky": tiers(0.3, strong="fragile"),
            "seeing": tiers(0.3, strong="sighted"),
        },
        "dispatch": {"breaker": {"min_calls": 3, "open_seconds": 300}},
    }


@dataclass(frozen=True)
class Site:
    """Both gateways, and whoever administers them."""

    one: Gateway
    other: Gateway

    @property
    def admin(self) -> Admin:
        return Admin(self.one)

    def chat(
        self,
        name: str,
        text: str = "hello",
        gateway: Gateway | None = None,
        key: str = TEAM_KEY,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        body = {"model": name, "messages": messages, "max_tokens": 5, **more}
        return (gateway or self.one).request("POST", "/v1/chat/completions", body, key, headers)

    def used(self, name: str, *args: Any, **more: Any) -> str:
        """The model that answers."""
        answer = self.chat(name, *args, **more)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-model-used"]

    def put(self, alias: str, document: dict[str, Any], more: str = "") -> Any:
        """Put a document, and wait until both gateways follow it."""
        response = self.admin.ask("PUT", f"/admin/routing/{alias}{more}", document)
        assert response.status_code == 200, response.text
        self.wait()
        return response.json()

    def wait(self) -> None:
        """Until both gateways have all that was put: each then knows the alias that is put last."""
        from tests.harness.administration import unique

        last = unique("last")
        self.admin.ask("PUT", f"/admin/routing/{last}", {"auto": tiers()})
        for gateway in (self.one, self.other):
            eventually(lambda: self.chat(last, gateway=gateway).status_code == 200, 5)  # noqa: B023
        self.admin.delete(f"/admin/routing/{last}")

    def new_team(self) -> tuple[dict[str, Any], str]:
        """A team, and a key of it that both gateways know."""
        team = self.admin.team(default_max_tokens=5)
        key: str = self.admin.new_key(team)["key"]
        for gateway in (self.one, self.other):
            eventually(lambda: self.chat("small", "x", gateway, key).status_code == 200, 5)  # noqa: B023
        return team, key


@pytest.fixture(scope="session")
def site(start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """See `config`."""
    one = start_gateway("routing", config())
    other = another(one, config(), tmp_path_factory.mktemp("routing"), "other")
    other.start()
    yield Site(one, other)
    other.stop()
