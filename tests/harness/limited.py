"""Organisations, teams and keys with limits, made through the admin API of running gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from tests.harness.gateway import ADMIN_KEY, Gateway
from tests.harness.polling import eventually

Level = Literal["organisation", "team", "key"]


@dataclass(frozen=True, slots=True)
class LimitedKey:
    """A key: its id, the key itself, and whose it is, by id."""

    id: str
    secret: str
    team: str
    organisation: str


class Limited:
    """Makes and changes callers through the first gateway; all of the gateways are to know them."""

    def __init__(self, *gateways: Gateway) -> None:
        self.gateways: Sequence[Gateway] = gateways

    def organisation(self, **limits: Any) -> str:
        """A new organisation, by its id."""
        return str(self._make("/admin/organisations", limits)["id"])

    def team(self, organisation: str | None = None, **limits: Any) -> str:
        """A new team, by its id; of a new organisation where none is named."""
        organisation = organisation or self.organisation()
        return str(self._make("/admin/teams", {"organisation": organisation, **limits})["id"])

    def key(self, team: str | None = None, **limits: Any) -> LimitedKey:
        """A new key, known to every gateway; of a new team where none is named."""
        team = team or self.team()
        organisation = self._api("GET", f"/admin/teams/{team}")["organisation_id"]
        made = self._make(f"/admin/teams/{team}/keys", limits)
        key = LimitedKey(made["id"], made["key"], team, organisation)
        for gateway in self.gateways:
            eventually(lambda gateway=gateway: _knows(gateway, key), 5)  # type: ignore[misc]
        return key

    def change(self, level: Level, owner: str, **limits: Any) -> None:
        """Change limits of a level; None takes one away."""
        self._api("PATCH", f"/admin/{level}s/{owner}", limits)

    def archive(self, level: Level, owner: str) -> None:
        """Archive an organisation or a team, or revoke a key."""
        self._api("DELETE", f"/admin/{level}s/{owner}")

    def _make(self, path: str, members: dict[str, Any]) -> Any:
        return self._api("POST", path, {"name": f"n-{uuid4().hex}", **members})

    def _api(self, method: str, path: str, body: Any = None) -> Any:
        return self.gateways[0].api(method, path, body, ADMIN_KEY)


def _knows(gateway: Gateway, key: LimitedKey) -> bool:
    return gateway.request("GET", "/v1/models", key=key.secret).status_code == 200
