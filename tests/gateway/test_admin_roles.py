"""Each role on each admin route: what it may, what it may not, and what is not there for it."""

from __future__ import annotations

import re
import warnings
from typing import Any, NamedTuple

import pytest
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.auth import KeyRing
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.admin import admin_router
from sluice.gateway.routes.admin.models import Configured
from sluice.gateway.tenancy.roles import OF_ROLE, PERMISSIONS
from tests.gateway.test_admin_models import version_body
from tests.harness.administration import Admin, Record, unique
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually

ROLES = ("installation_owner", "organisation_owner", "team_admin", "auditor", "team_auditor")

#: Within whose confinement each thing of `World` is.
WITHIN = {
    "installation_owner": {"installation", "organisation", "team", "sibling", "foreign"},
    "organisation_owner": {"organisation", "team", "sibling"},
    "auditor": {"organisation", "team", "sibling"},
    "team_admin": {"team"},
    "team_auditor": {"team"},
}
ROLE_OF = {"installation_owner": "owner", "organisation_owner": "owner", "team_auditor": "auditor"}


VERSION = "/admin/models/{name}/versions/{version}"


class Case(NamedTuple):
    """A call of a route.

    Attributes:
        place: where the thing is that the call is about; None: it is a list, or has no place.
        outside: the status for those for whom the place isn't there.
        allowed: the statuses for those who may.
    """

    method: str
    route: str
    permission: str
    path: str
    place: str | None
    body: Any = None
    outside: int = 404
    allowed: frozenset[int] = frozenset({200, 201})


#: Of a pool that nobody has.
NO_POOL = frozenset({404})
REPLICA = "/admin/pools/{name}/replicas/{replica}"
ROUTING = "/admin/routing/{alias}"
#: Of an alias that has none.
NO_MODEL = frozenset({404})
SCORING = "/admin/routing/{alias}/models"

CASES = [
    Case("GET", "/admin/organisations", "organisations:read", "", None),
    Case("POST", "/admin/organisations", "organisations:write", "", "installation", "new", 403),
    *(
        Case(method, "/admin/organisations/{organisation}", f"organisations:{verb}", place, place)
        for method, verb in (("GET", "read"), ("PATCH", "write"))
        for place in ("organisation", "foreign")
    ),
    Case(
        "DELETE", "/admin/organisations/{organisation}", "organisations:write", "foreign", "foreign"
    ),
    Case("GET", "/admin/teams", "teams:read", "", None),
    Case("POST", "/admin/teams", "teams:write", "organisation", "organisation", "new"),
    Case("POST", "/admin/teams", "teams:write", "foreign", "foreign", "new"),
    *(
        Case(method, "/admin/teams/{team}", f"teams:{verb}", place, place)
        for method, verb in (("GET", "read"), ("PATCH", "write"), ("DELETE", "write"))
        for place in ("team", "sibling", "foreign")
    ),
    *(
        Case("POST", "/admin/teams/{team}/keys", "keys:write", place, place)
        for place in ("team", "sibling", "foreign")
    ),
    Case("GET", "/admin/keys", "keys:read", "", None),
    *(
        Case(method, f"/admin/keys/{{key_id}}{more}", f"keys:{verb}", place, place)
        for method, more, verb in (
            ("GET", "", "read"),
            ("PATCH", "", "write"),
            ("POST", "/rotate", "write"),
            ("DELETE", "", "write"),
        )
        for place in ("team", "sibling", "foreign")
    ),
    Case("GET", "/admin/tokens", "tokens:read", "", None),
    Case("POST", "/admin/tokens", "tokens:write", "team", "team", "new"),
    Case("POST", "/admin/tokens", "tokens:write", "foreign", "foreign", "new"),
    *(
        Case(method, "/admin/tokens/{token_id}", f"tokens:{verb}", place, place)
        for method, verb in (("GET", "read"), ("DELETE", "write"))
        for place in ("installation", "organisation", "team", "foreign")
    ),
    Case("GET", "/admin/models", "models:read", "", "installation", outside=403),
    Case("POST", "/admin/models", "models:write", "", "installation", "new", 403),
    *(
        Case(method, f"{VERSION}{more}", f"models:{verb}", "model", "installation", outside=403)
        for method, more, verb in (
            ("GET", "", "read"),
            ("PATCH", "", "write"),
            ("POST", "/promote", "write"),
            ("POST", "/retire", "write"),
        )
    ),
    Case("GET", "/admin/pools", "models:read", "", "installation", outside=403),
    *(
        Case(method, route, f"models:{verb}", "", "installation", None, 403, NO_POOL)
        for method, route, verb in (
            ("GET", "/admin/pools/{name}", "read"),
            ("POST", f"{REPLICA}/drain", "write"),
            ("POST", f"{REPLICA}/undrain", "write"),
        )
    ),
    *(
        Case(method, f"{SCORING}{more}", f"routing:{verb}", "", "installation", None, 403, statuses)
        for method, more, verb, statuses in (
            ("GET", "", "read", frozenset({200})),
            ("POST", "", "write", frozenset({400})),  # without a file
            ("GET", "/{version}", "read", NO_MODEL),
            ("POST", "/{version}/promote", "write", NO_MODEL),
            ("POST", "/rollback", "write", NO_MODEL),
        )
    ),
    Case("GET", "/admin/routing", "routing:read", "", None),
    *(
        Case(method, f"{ROUTING}{more}", f"routing:{verb}", "routing", place, None, outside)
        for method, more, verb in (
            ("GET", "", "read"),
            ("PUT", "", "write"),
            ("DELETE", "", "write"),
            ("GET", "/versions", "read"),
            ("POST", "/rollback", "write"),
        )
        for place, outside in (("installation", 403), ("team", 404), ("foreign", 404))
    ),
    Case("GET", "/admin/audit", "audit:read", "", None),
]


class World:
    """Two organisations: in one a team and its sibling, in the other a foreign team."""

    def __init__(self, owner: Admin) -> None:
        self.owner = owner
        self.organisation = owner.organisation()
        self.foreign = owner.organisation()
        self.callers = {
            role: Admin(owner.gateway, token)
            for role, token in {
                "installation_owner": owner.token()["token"],
                "organisation_owner": self._token("owner", "organisation"),
                "auditor": self._token("auditor", "organisation"),
                "team_admin": self._token("team_admin", "team"),
                "team_auditor": self._token("auditor", "team"),
            }.items()
        }

    def call(self, case: Case, role: str) -> int:
        """The status of a call about a thing that is made for it."""
        if case.route.startswith("/admin/models"):
            return self._call_models(case, role)
        if case.path == "routing":
            return self._call_routing(case, role)
        path, body = case.route.replace("{version}", "1"), {}
        if case.path:
            thing = self._thing(case)
            for name in ("organisation", "team", "key_id", "token_id"):
                path = path.replace(f"{{{name}}}", thing["id"])
        if case.body == "new":
            body = {"name": unique("made")}
            if path == "/admin/teams":
                body["organisation"] = thing["id"]
            if path == "/admin/tokens":
                body |= {"role": "auditor", "team": thing["id"]}
        if case.method == "PATCH":
            body = {"name": unique("named")}
        return self.callers[role].ask(case.method, path, body).status_code

    def _call_models(self, case: Case, role: str) -> int:
        body: Any = version_body(unique("model"))
        path = case.route
        if case.path:
            self.owner.post("/admin/models", body)
            path = path.replace("{name}", body["name"]).replace("{version}", body["version"])
            body = {"default_max_tokens": 5} if case.method == "PATCH" else {}
        status = self.callers[role].ask(case.method, path, body).status_code
        if path.endswith("/promote"):  # another test wants its pool
            self.owner.post(path.replace("/promote", "/retire"))
        return status

    def _call_routing(self, case: Case, role: str) -> int:
        path, team = f"/admin/routing/{unique('auto')}", ""
        if case.place != "installation":
            team = f"?team={(self.own if case.place == 'team' else self.team('foreign'))['id']}"
        document = {
            "auto": {
                "tiers": [
                    {"name": "low", "models": {"simulated": 1}},
                    {"name": "high", "models": {"slow": 1}, "share": 0.5},
                ]
            }
        }
        made = self.owner.ask("PUT", path + team, document)
        assert made.status_code == 200, made.text
        path += case.route.removeprefix(ROUTING) + team
        body = document if case.method == "PUT" else None
        return self.callers[role].ask(case.method, path, body).status_code

    def team(self, place: str) -> Record:
        organisation = self.foreign if place == "foreign" else self.organisation
        return self.owner.team(organisation=organisation["id"])

    def _token(self, role: str, place: str) -> str:
        where: Record = {"organisation": self.organisation["id"]}
        if place == "team":
            self.own = self.__dict__.get("own") or self.owner.team(**where)
            where = {"team": self.own["id"]}
        token: str = self.owner.token(role, **where)["token"]
        return token

    def _thing(self, case: Case) -> Record:
        own = self.own if case.place == "team" else None
        match case.route.split("/")[2]:
            case "organisations":
                if case.method == "DELETE":
                    return self.owner.organisation()
                return self.organisation if case.place == "organisation" else self.foreign
            case "teams" if case.method == "POST" and case.body == "new":
                return self.organisation if case.place == "organisation" else self.foreign
            case "teams" if case.method == "DELETE" and own is not None:
                # its own tokens would end with it: an owner's are for the organisation
                return self.team("team")
            case "teams":
                return own or self.team(case.place or "")
            case "keys":
                return self.owner.new_key(own or self.team(case.place or ""))
            case _ if case.method == "POST":
                return own or self.team(case.place or "")
            case _:
                return self._other_token(case.place or "")

    def _other_token(self, place: str) -> Record:
        where: Record = {}
        if place == "team":
            where = {"team": self.own["id"]}
        elif place != "installation":
            named = self.foreign if place == "foreign" else self.organisation
            where = {"organisation": named["id"]}
        return self.owner.token("auditor", **where)


@pytest.fixture(scope="module")
def world(gateway: Gateway) -> World:
    made = World(Admin(gateway))

    def known() -> bool:
        return all(
            made.callers[role].ask("GET", "/admin/audit").status_code == 200 for role in ROLES
        )

    eventually(known, 2)
    return made


def expected(case: Case, role: str) -> set[int]:
    if case.permission not in OF_ROLE[ROLE_OF.get(role, role)]:  # type: ignore[index]
        return {403}
    if case.place is not None and case.place not in WITHIN[role]:
        return {case.outside}
    return set(case.allowed)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method} {case.route} {case.place}")
def test_each_role_on_each_route(world: World, case: Case, role: str) -> None:
    assert world.call(case, role) in expected(case, role)


def handlers() -> list[HTTPRouteHandler]:
    with warnings.catch_warnings():  # of how the handlers declare their parameters
        warnings.simplefilter("ignore", DeprecationWarning)
        nothing: Any = None
        router = admin_router(nothing, Access(KeyRing()), Configured((), ()), nothing, nothing)
        every = [each for route in router.routes for each in route.route_handlers]  # type: ignore[union-attr]
    return [handler for handler in every if handler.http_methods != {"OPTIONS"}]


def test_every_route_names_its_permission_and_is_tried() -> None:
    for handler in handlers():
        assert handler.opt["permission"] in PERMISSIONS, handler
    declared = {
        (method, re.sub(r":\w+}", "}", path), handler.opt["permission"])
        for handler in handlers()
        for path in handler.paths
        for method in handler.http_methods
    }
    tried = {(case.method, case.route.removeprefix("/admin"), case.permission) for case in CASES}
    assert declared == tried


@pytest.mark.parametrize("permission", sorted(PERMISSIONS))
def test_a_scope_opens_its_own_routes_only(gateway: Gateway, permission: str) -> None:
    owner = Admin(gateway)
    scoped = Admin(gateway, owner.token(scopes=[permission])["token"])
    opened = [case for case in CASES if case.method == "GET" and case.place is None]
    eventually(lambda: scoped.ask("GET", "/admin/audit").status_code != 401, 2)
    for case in opened:
        status = scoped.ask("GET", case.route).status_code
        assert status == (200 if case.permission == permission else 403), case


def test_lists_show_only_what_lies_within(world: World) -> None:
    foreign = world.team("foreign")
    key = world.owner.new_key(foreign)
    token = world.owner.token("auditor", organisation=world.foreign["id"])
    hidden = {foreign["id"], key["id"], token["id"], world.foreign["id"]}
    for role in ("organisation_owner", "auditor"):
        caller = world.callers[role]
        for what in ("organisations", "teams", "keys", "tokens"):
            shown = {record["id"] for record in caller.all(f"/admin/{what}")}
            assert shown
            assert not shown & hidden
        entries = caller.all("/admin/audit")
        assert {entry["organisation_id"] for entry in entries} == {world.organisation["id"]}
    caller = world.callers["team_admin"]
    assert [team["id"] for team in caller.all("/admin/teams")] == [world.own["id"]]
    world.owner.new_key(world.team("sibling"))
    assert {key["team_id"] for key in caller.all("/admin/keys")} == {world.own["id"]}
    assert {entry["team_id"] for entry in caller.all("/admin/audit")} == {world.own["id"]}


@pytest.mark.parametrize("filters", ["/admin/teams?organisation=", "/admin/audit?organisation="])
def test_filters_reach_no_further(world: World, filters: str) -> None:
    caller = world.callers["organisation_owner"]
    assert caller.ask("GET", filters + world.foreign["id"]).status_code == 404
    assert caller.ask("GET", filters + world.organisation["id"]).status_code == 200
    foreign = world.team("foreign")["name"]
    for path in (f"/admin/keys?team_id={foreign}", f"/admin/audit?team={foreign}"):
        assert caller.ask("GET", path).status_code == 404


def test_what_is_hidden_looks_like_what_is_not_there(world: World) -> None:
    caller, foreign = world.callers["organisation_owner"], world.team("foreign")
    key = world.owner.new_key(foreign)
    other = str(key["id"])[:-4] + ("0000" if key["id"][-4:] != "0000" else "1111")
    hidden = caller.ask("GET", f"/admin/keys/{key['id']}").json()
    assert hidden == caller.ask("GET", f"/admin/keys/{other}").json()
    by_name = caller.ask("GET", f"/admin/teams/{foreign['name']}").json()["error"]
    missing = caller.ask("GET", "/admin/teams/no-such-team").json()["error"]
    assert by_name["message"].replace(foreign["name"], "no-such-team") == missing["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"role": "owner", "organisation": None},
        {"role": "auditor", "scopes": ["organisations:read"]},
        {"role": "owner", "scopes": ["tokens:write", "teams:write"]},
        {"role": "team_admin"},
    ],
)
def test_nobody_makes_a_token_that_may_more(world: World, body: dict[str, Any]) -> None:
    """The maker is an owner of an organisation, narrowed to tokens and keys."""
    where = {"organisation": world.organisation["id"]}
    scopes = ["tokens:write", "keys:write", "keys:read"]
    maker = Admin(world.owner.gateway, world.owner.token(scopes=scopes, **where)["token"])
    eventually(lambda: maker.ask("GET", "/admin/keys").status_code == 200, 2)
    if body["role"] == "team_admin":
        body = {**body, "team": world.own["id"]}
    assert maker.ask("POST", "/admin/tokens", {"name": "more", **body}).status_code == 403
    fine = {"name": "same", "role": "owner", "scopes": ["keys:read"]}
    made = maker.ask("POST", "/admin/tokens", fine)
    assert made.status_code == 201
    assert made.json()["organisation_id"] == world.organisation["id"]


def test_usage_is_confined_too(world: World) -> None:
    auditor, foreign = world.callers["auditor"], world.team("foreign")
    assert auditor.ask("GET", f"/v1/usage?team_id={foreign['id']}").status_code == 404
    assert auditor.ask("GET", f"/v1/usage?team_id={world.own['id']}").status_code == 200
    assert world.callers["team_admin"].get("/v1/usage")["team_id"] == world.own["id"]
    assert auditor.get("/v1/usage/records")["data"] == []
    narrow = Admin(world.owner.gateway, world.owner.token(scopes=["teams:read"])["token"])
    eventually(lambda: narrow.ask("GET", "/admin/teams").status_code == 200, 2)
    assert narrow.ask("GET", "/v1/usage/records").status_code == 403


def test_teams_keys_and_strangers_administer_nothing(gateway: Gateway) -> None:
    for handler in handlers():
        for path in handler.paths:
            url = f"/admin{path}".replace("{version:int}", "1")
            url = url.replace("{", "").replace("}", "").replace(":str", "")
            method = next(iter(handler.http_methods))
            assert gateway.request(method, url, {}, TEAM_KEY).status_code == 403
            assert gateway.request(method, url, {}, "sk-sluice-wrong").status_code == 401
            assert gateway.request(method, url, {}, None).status_code == 401
