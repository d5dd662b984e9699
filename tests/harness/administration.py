"""Calls of the admin API, by whoever holds a token."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.harness.gateway import ADMIN_KEY, Gateway

Record = dict[str, Any]


def unique(beginning: str) -> str:
    """A name that nothing in the session has."""
    return f"{beginning}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class Admin:
    """An administrator of a gateway."""

    gateway: Gateway
    key: str = ADMIN_KEY

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Any call."""
        return self.gateway.request(method, path, body, self.key, headers)

    def get(self, path: str) -> Any:
        return self._succeed("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self._succeed("POST", path, body)

    def patch(self, path: str, **changes: Any) -> Any:
        return self._succeed("PATCH", path, changes)

    def delete(self, path: str) -> Any:
        return self._succeed("DELETE", path)

    def organisation(self, **members: Any) -> Record:
        made: Record = self.post("/admin/organisations", {"name": unique("org"), **members})
        return made

    def team(self, **members: Any) -> Record:
        made: Record = self.post("/admin/teams", {"name": unique("team"), **members})
        return made

    def new_key(self, team: Record, **members: Any) -> Record:
        made: Record = self.post(f"/admin/teams/{team['id']}/keys", members)
        return made

    def token(self, role: str = "owner", **members: Any) -> Record:
        body = {"name": unique("token"), "role": role, **members}
        made: Record = self.post("/admin/tokens", body)
        return made

    def pages(self, path: str, limit: int = 100) -> Iterator[list[Record]]:
        """A list, page by page."""
        cursor = ""
        while True:
            mark = "&" if "?" in path else "?"
            page = self.get(f"{path}{mark}limit={limit}{cursor}")
            yield page["data"]
            if not page["has_more"]:
                assert page["next"] is None
                return
            cursor = f"&cursor={page['next']}"

    def all(self, path: str) -> list[Record]:
        """A whole list."""
        return [record for page in self.pages(path) for record in page]

    def _succeed(self, method: str, path: str, body: Any = None) -> Any:
        response = self.ask(method, path, body)
        assert response.status_code < 300, response.text
        return response.json()
