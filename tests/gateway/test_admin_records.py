"""Organisations, teams, keys and tokens by the admin API: what goes in, what comes out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from sluice.gateway.tenancy.limits import Limits
from tests.harness.administration import Admin, unique
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually

#: Every limit there is, as it goes in and as it comes out.
LIMITS: dict[str, Any] = {
    "requests_per_minute": 60,
    "tokens_per_minute": 100_000,
    "max_concurrent": 0,
    "batch_requests_per_minute": 61,
    "batch_tokens_per_minute": 200_000,
    "batch_max_concurrent": 1,
    "budgets": [
        {"period": "month", "limit_usd": "500.10", "alert_usd": "400"},
        {"period": "day", "alert_usd": "0.000001"},
    ],
    "allowed_models": ["gpt-*", "vllm-alias"],
    "allowed_endpoints": ["chat/completions", "embeddings"],
    "default_max_tokens": 100,
    "max_output_tokens": 1000,
    "max_stored_bytes": 10**12,
    "priority": "high",
    "isolate_prefix_cache": True,
    "keep_prompts": True,
}
NO_LIMITS: dict[str, Any] = {
    name: [] if name == "budgets" else None for name in Limits.__struct_fields__
}


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


def make(admin: Admin, kind: str, **members: Any) -> tuple[str, dict[str, Any]]:
    """A new thing and its path."""
    if kind == "organisations":
        made = admin.organisation(**members)
    elif kind == "teams":
        made = admin.team(**members)
    elif kind == "keys":
        made = admin.new_key(admin.team(), **members)
        del made["key"]
    else:
        made = admin.token(**members)
        del made["token"]
    return f"/admin/{kind}/{made['id']}", made


LIMITED = ("organisations", "teams", "keys")
KINDS = (*LIMITED, "tokens")


class TestLimits:
    def test_the_cases_name_every_limit(self) -> None:
        assert LIMITS.keys() == set(Limits.__struct_fields__)

    @pytest.mark.parametrize("kind", LIMITED)
    def test_all_of_them_come_back_as_they_went_in(self, admin: Admin, kind: str) -> None:
        path, made = make(admin, kind, **LIMITS)
        assert {name: made[name] for name in LIMITS} == LIMITS
        assert admin.get(path) == made

    @pytest.mark.parametrize("kind", LIMITED)
    def test_none_is_set_by_default(self, admin: Admin, kind: str) -> None:
        _, made = make(admin, kind)
        assert {name: made[name] for name in LIMITS} == NO_LIMITS

    @pytest.mark.parametrize("kind", LIMITED)
    def test_a_patch_keeps_what_it_does_not_name_and_removes_what_is_null(
        self, admin: Admin, kind: str
    ) -> None:
        path, made = make(admin, kind, **LIMITS)
        after = admin.patch(path, requests_per_minute=None, priority="low", budgets=None)
        changed: dict[str, Any] = {"requests_per_minute": None, "priority": "low", "budgets": []}
        assert after["revision"] > made["revision"]
        assert after == {**made, **changed, "revision": after["revision"]}
        assert admin.get(path) == after

    @pytest.mark.parametrize("kind", LIMITED)
    def test_a_patch_that_changes_nothing_is_no_change(self, admin: Admin, kind: str) -> None:
        path, made = make(admin, kind, **LIMITS)
        assert admin.patch(path, **LIMITS) == made
        assert admin.patch(path) == made

    def test_money_stays_exact(self, admin: Admin) -> None:
        path, _ = make(admin, "teams")
        text = b'{"budgets": [{"period": "day", "limit_usd": 1234567.123456789}]}'
        assert admin.ask("PATCH", path, text).status_code == 200
        assert admin.get(path)["budgets"][0]["limit_usd"] == "1234567.123456789"


WRONG_LIMITS: list[tuple[str, Any, str]] = [
    ("requests_per_minute", -1, "requests_per_minute"),
    ("requests_per_minute", 1.5, "requests_per_minute"),
    ("requests_per_minute", "60", "requests_per_minute"),
    ("tokens_per_minute", 2**31, "tokens_per_minute"),
    ("tokens_per_minute", 10**30, "tokens_per_minute"),
    ("max_concurrent", True, "max_concurrent"),
    ("batch_tokens_per_minute", -1, "batch_tokens_per_minute"),
    ("max_concurrent", [1], "max_concurrent"),
    ("default_max_tokens", 0, "default_max_tokens"),
    ("max_output_tokens", 0, "max_output_tokens"),
    ("allowed_models", "gpt", "allowed_models"),
    ("allowed_models", [""], "allowed_models[0]"),
    ("allowed_models", ["a", "b\0"], "allowed_models[1]"),
    ("allowed_models", ["a b"], "allowed_models[0]"),
    ("allowed_endpoints", ["files"], "allowed_endpoints[0]"),
    ("max_stored_bytes", 2**53 + 1, "max_stored_bytes"),
    ("priority", "urgent", "priority"),
    ("isolate_prefix_cache", "yes", "isolate_prefix_cache"),
    ("keep_prompts", 1, "keep_prompts"),
    ("budgets", {}, "budgets"),
    ("budgets", [{"period": "year", "limit_usd": "1"}], "budgets[0].period"),
    ("budgets", [{"period": "day"}], "budgets[0]"),
    ("budgets", [{"limit_usd": "1"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "-1"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "ten"}], "budgets[0].limit_usd"),
    ("budgets", [{"period": "day", "limit_usd": "NaN"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "1E+999999999"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "1E-999999999"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "9000001"}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "1", "x": 1}], "budgets[0]"),
    ("budgets", [{"period": "day", "limit_usd": "1"}] * 2, "budgets"),
    ("unknown", 1, "unknown"),
    ("unknown", None, "unknown"),
    ("id", "01900000-0000-7000-8000-000000000001", "id"),
    ("revision", 1, "revision"),
]


class TestStrictness:
    @pytest.mark.parametrize("kind", LIMITED)
    @pytest.mark.parametrize(("member", "value", "param"), WRONG_LIMITS)
    def test_wrong_limits_are_named(
        self, admin: Admin, kind: str, member: str, value: Any, param: str
    ) -> None:
        path, _ = _known(admin, kind)
        for method, url in (("PATCH", path), ("POST", _collection(admin, kind))):
            body = {member: value} if method == "PATCH" else {"name": unique("new"), member: value}
            response = admin.ask(method, url, body)
            assert response.status_code == 400, (method, response.text)
            assert response.json()["error"]["param"] == param

    @pytest.mark.parametrize("kind", LIMITED)
    @pytest.mark.parametrize(
        "body",
        [
            b"[]",
            b"null",
            b"1",
            b"{",
            b"\xff",
            b'{"name": "\xff"}',
            b'{"name": "\\ud800"}',
            b"[" * 9999,
        ],
    )
    def test_what_is_no_object_is_refused(self, admin: Admin, kind: str, body: bytes) -> None:
        path, _ = _known(admin, kind)
        assert admin.ask("PATCH", path, body).status_code == 400
        assert admin.ask("POST", _collection(admin, kind), body).status_code == 400

    def test_bodies_have_a_bound(self, admin: Admin) -> None:
        body = {"name": "a", "allowed_models": ["a" * 100] * 1000}
        assert admin.ask("POST", "/admin/teams", body).status_code == 413

    @pytest.mark.parametrize("kind", ["organisations", "teams"])
    @pytest.mark.parametrize(
        "name",
        [
            *("", "Upper", "a b", "a/b", "-a", "a" * 65, "a\n", "a\0", "ä", "..", 1, None),
            *("01900000-0000-7000-8000-000000000001", "0190000000007000800000000000000a"),
        ],
    )
    def test_names_are_slugs_and_no_ids(self, admin: Admin, kind: str, name: Any) -> None:
        path, _ = _known(admin, kind)
        for method, url in (("POST", f"/admin/{kind}"), ("PATCH", path)):
            response = admin.ask(method, url, {"name": name})
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == "name"

    @pytest.mark.parametrize(
        "zone",
        ["", "Mars/Olympus", "CET+1", "../etc/passwd", "Europe", "localtime", "a\0", 1, None],
    )
    def test_time_zones_are_iana_names(self, admin: Admin, zone: Any) -> None:
        path, _ = _known(admin, "organisations")
        response = admin.ask("POST", "/admin/organisations", {"name": "a", "time_zone": zone})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "time_zone"
        if zone is not None:
            assert admin.ask("PATCH", path, {"time_zone": zone}).status_code == 400

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"role": "owner"}, "name"),
            ({"name": "a"}, "role"),
            ({"name": "", "role": "owner"}, "name"),
            ({"name": "a\0", "role": "owner"}, "name"),
            ({"name": "a", "role": "root"}, "role"),
            ({"name": "a", "role": "team_admin"}, "team"),
            ({"name": "a", "role": "owner", "team": "default"}, "team"),
            ({"name": "a", "role": "auditor", "team": "no-such-team"}, "team"),
            ({"name": "a", "role": "auditor", "organisation": "no-such"}, "organisation"),
            ({"name": "a", "role": "auditor", "organisation": "\0"}, "organisation"),
            ({"name": "a", "role": "auditor", "scopes": []}, "scopes"),
            ({"name": "a", "role": "auditor", "scopes": ["all"]}, "scopes[0]"),
            ({"name": "a", "role": "auditor", "expires_at": "soon"}, "expires_at"),
            ({"name": "a", "role": "auditor", "token": "mine"}, "token"),
        ],
    )
    def test_wrong_tokens_are_named(self, admin: Admin, body: Any, param: str) -> None:
        response = admin.ask("POST", "/admin/tokens", body)
        assert response.status_code in (400, 404), response.text
        assert response.json()["error"]["param"] == param

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=all", "limit"),
            ("cursor=", "cursor"),
            ("cursor=%00", "cursor"),
            ("cursor=AAAA", "cursor"),
            ("cursor=%C3%A4", "cursor"),
        ],
    )
    @pytest.mark.parametrize("kind", [*KINDS, "audit"])
    def test_wrong_pages_are_named(self, admin: Admin, kind: str, query: str, param: str) -> None:
        response = admin.ask("GET", f"/admin/{kind}?{query}")
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


class TestPaths:
    @pytest.mark.parametrize("kind", ["organisations", "teams"])
    def test_a_name_stands_for_the_id(self, admin: Admin, kind: str) -> None:
        _, made = make(admin, kind)
        assert admin.get(f"/admin/{kind}/{made['name']}") == made
        renamed = unique("renamed")
        admin.patch(f"/admin/{kind}/{made['name']}", name=renamed)
        assert admin.ask("GET", f"/admin/{kind}/{made['name']}").status_code == 404
        assert admin.get(f"/admin/{kind}/{renamed}")["id"] == made["id"]

    @pytest.mark.parametrize("kind", ["organisations", "teams"])
    def test_a_name_is_given_once(self, admin: Admin, kind: str) -> None:
        _, made = make(admin, kind)
        path, _ = make(admin, kind)
        for method, url in (("POST", f"/admin/{kind}"), ("PATCH", path)):
            response = admin.ask(method, url, {"name": made["name"]})
            assert response.status_code == 409
            assert response.json()["error"]["param"] == "name"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
    @pytest.mark.parametrize(
        "name", ["%00", "no-such", "%F0%9F%98%80", "%ED%A0%80", str(UUID(int=0))]
    )
    def test_what_is_not_there_is_not_found(
        self, admin: Admin, kind: str, method: str, name: str
    ) -> None:
        if (kind, method) != ("tokens", "PATCH"):
            assert admin.ask(method, f"/admin/{kind}/{name}", {}).status_code == 404


class TestOrganisationOfATeam:
    def test_it_is_the_default_one_or_the_named_one(self, admin: Admin) -> None:
        default = admin.get("/admin/organisations/default")
        assert admin.team()["organisation_id"] == default["id"]
        organisation = admin.organisation()
        named = [admin.team(organisation=organisation[by]) for by in ("id", "name")]
        assert {team["organisation_id"] for team in named} == {organisation["id"]}
        listed = admin.all(f"/admin/teams?organisation={organisation['name']}")
        assert listed == named

    def test_it_does_not_change(self, admin: Admin) -> None:
        path, _ = make(admin, "teams")
        response = admin.ask("PATCH", path, {"organisation": "default"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "organisation"

    def test_of_an_organisations_owner_it_is_their_own(self, admin: Admin) -> None:
        organisation = admin.organisation()
        owner = Admin(admin.gateway, admin.token(organisation=organisation["name"])["token"])
        eventually(lambda: owner.ask("GET", "/admin/teams").status_code == 200, 2)
        assert owner.team()["organisation_id"] == organisation["id"]


class TestConditions:
    @pytest.mark.parametrize("kind", KINDS)
    def test_answers_are_tagged_with_the_revision(self, admin: Admin, kind: str) -> None:
        path, made = make(admin, kind)
        response = admin.ask("GET", path)
        assert response.headers["etag"] == f'"{made["revision"]}"'
        for tags in (response.headers["etag"], f'"x", W/{response.headers["etag"]}', "*"):
            again = admin.ask("GET", path, headers={"if-none-match": tags})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == response.headers["etag"]
        assert admin.ask("GET", path, headers={"if-none-match": '"0"'}).status_code == 200

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_change_for_another_revision_is_refused(self, admin: Admin, kind: str) -> None:
        path, made = make(admin, kind)
        for tags in ('"1"', "nonsense", f'W/"{made["revision"]}"', f'"{made["revision"]}x"'):
            for method in ("PATCH", "DELETE") if kind != "tokens" else ("DELETE",):
                body = {"name": "other"} if method == "PATCH" else None
                response = admin.ask(method, path, body, {"if-match": tags})
                assert response.status_code == 412, (method, tags)
                assert response.json()["error"]["code"] == "precondition_failed"
        assert admin.get(path) == made

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_change_for_this_revision_is_made(self, admin: Admin, kind: str) -> None:
        path, made = make(admin, kind)
        tag = f'"1", "{made["revision"]}"'
        if kind != "tokens":
            changed = admin.ask("PATCH", path, {"name": unique("next")}, {"if-match": tag})
            assert changed.status_code == 200
            tag = changed.headers["etag"]
        assert admin.ask("DELETE", path, None, {"if-match": tag}).status_code == 200


class TestEnds:
    def test_an_organisation_with_teams_is_not_archived(self, admin: Admin) -> None:
        path, made = make(admin, "organisations")
        team = admin.team(organisation=made["name"])
        assert admin.ask("DELETE", path).status_code == 409
        admin.delete(f"/admin/teams/{team['id']}")
        assert admin.delete(path)["archived_at"] is not None
        body = {"name": unique("team"), "organisation": made["id"]}
        assert admin.ask("POST", "/admin/teams", body).status_code == 409
        assert admin.ask("PATCH", path, {"name": "again"}).status_code == 409

    def test_an_archived_team_keeps_its_name_and_makes_no_keys(self, admin: Admin) -> None:
        path, made = make(admin, "teams")
        key = admin.new_key(made)
        archived = admin.delete(path)
        assert archived["archived_at"] is not None
        assert admin.delete(path) == archived
        assert admin.ask("POST", "/admin/teams", {"name": made["name"]}).status_code == 409
        assert admin.ask("POST", f"{path}/keys", {}).status_code == 409
        assert admin.ask("PATCH", path, {"priority": "low"}).status_code == 409
        assert admin.ask("POST", f"/admin/keys/{key['id']}/rotate", {}).status_code == 409
        assert admin.get(f"/v1/usage?team_id={made['name']}")["team_id"] == made["id"]

    def test_a_rotation_keeps_what_the_key_was(self, admin: Admin) -> None:
        given = {"name": "deploys", "expires_at": "2099-01-01T00:00:00+02:00", **LIMITS}
        path, old = make(admin, "keys", **given)
        new = admin.post(f"{path}/rotate", {"overlap_seconds": 60})
        assert old["expires_at"] == "2098-12-31T22:00:00Z"
        for name in ("name", "expires_at", "team_id", *LIMITS):
            assert new[name] == old[name], name
        after = admin.get(path)
        assert after["replaced_by"] == new["id"]
        assert after["revoked_at"] is not None

    def test_a_revoked_key_stays_revoked(self, admin: Admin) -> None:
        path, _ = make(admin, "keys")
        revoked = admin.delete(path)
        assert admin.delete(path) == revoked
        assert admin.ask("PATCH", path, {"name": "again"}).status_code == 409
        assert admin.ask("POST", f"{path}/rotate", {}).status_code == 409

    def test_an_expiry_can_be_removed(self, admin: Admin) -> None:
        path, _ = make(admin, "keys", expires_at="2001-01-01T00:00:00")
        assert admin.patch(path, expires_at=None)["expires_at"] is None


_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {}


def _known(admin: Admin, kind: str) -> tuple[str, dict[str, Any]]:
    """A thing that no test changes."""
    if kind not in _KNOWN:
        _KNOWN[kind] = make(admin, kind)
    return _KNOWN[kind]


def _collection(admin: Admin, kind: str) -> str:
    """Where things of a kind are made."""
    if kind != "keys":
        return f"/admin/{kind}"
    path, _ = _known(admin, "teams")
    return f"{path}/keys"
