"""The audit log: one entry for each change, with what was and what is, and nothing secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from sluice.gateway.secrets import key_hash
from sluice.gateway.tenancy.audit import AuditLog, Filters
from sluice.gateway.tenancy.first_keys import FirstKeys
from sluice.gateway.tenancy.pages import Turn
from sluice.migrations import migrate
from tests.harness.administration import Admin, Record, unique
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    """A token of its own, so that the entries by it are this module's."""
    token = Admin(gateway).token()["token"]
    made = Admin(gateway, token)
    eventually(lambda: made.ask("GET", "/admin/teams").status_code == 200, 2)
    return made


def entries_of(admin: Admin, request_id: str) -> list[Record]:
    """Those of one request."""
    found = admin.get("/admin/audit?limit=1000")["data"]
    return [entry for entry in found if entry["request_id"] == request_id]


def shown(record: Record) -> Record:
    """A record as the log has it."""
    return {k: v for k, v in record.items() if k not in ("revision", "key", "token")}


Make = Callable[[Admin], Record]


def _key(admin: Admin) -> Record:
    return admin.new_key(admin.team(), name="key", expires_at="2099-01-01T00:00:00Z")


#: Action, what it is done to, method, what follows the path, body.
CHANGES: list[tuple[str, Make, str, str, Any]] = [
    ("organisation.update", Admin.organisation, "PATCH", "", {"time_zone": "Asia/Tokyo"}),
    ("organisation.archive", Admin.organisation, "DELETE", "", None),
    ("team.update", Admin.team, "PATCH", "", {"budgets": [{"period": "day", "limit_usd": "1.5"}]}),
    ("team.archive", Admin.team, "DELETE", "", None),
    ("key.update", _key, "PATCH", "", {"name": "other", "expires_at": None}),
    ("key.rotate", _key, "POST", "/rotate", {"overlap_seconds": 5}),
    ("key.revoke", _key, "DELETE", "", None),
    ("token.revoke", Admin.token, "DELETE", "", None),
]


@pytest.mark.parametrize(("action", "make", "method", "more", "body"), CHANGES)
def test_a_change_has_one_entry(
    admin: Admin, action: str, make: Make, method: str, more: str, body: Any
) -> None:
    before = make(admin)
    path = f"/admin/{action.partition('.')[0]}s/{before['id']}"
    response = admin.ask(method, path + more, body)
    assert response.status_code in (200, 201), response.text
    [entry] = entries_of(admin, response.headers["x-request-id"])
    assert entry["action"] == action
    assert (entry["object_type"], entry["object_id"]) == (
        action.split(".", maxsplit=1)[0],
        before["id"],
    )
    assert entry["before"] == shown(before)
    assert entry["after"] == shown(admin.get(path))
    assert entry["after"] != entry["before"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("organisation", {"requests_per_minute": 5}),
        ("team", {"priority": "high"}),
        ("key", {"expires_at": "2099-01-01T00:00:00Z"}),
        ("token", {"role": "auditor", "scopes": ["teams:read"]}),
    ],
)
def test_a_new_thing_has_one_entry(admin: Admin, kind: str, body: Any) -> None:
    team = admin.team()
    path = f"/admin/teams/{team['id']}/keys" if kind == "key" else f"/admin/{kind}s"
    response = admin.ask("POST", path, {"name": unique("new"), **body})
    made = response.json()
    [entry] = entries_of(admin, response.headers["x-request-id"])
    assert (entry["action"], entry["object_id"]) == (f"{kind}.create", made["id"])
    assert (entry["before"], entry["after"]) == (None, shown(made))
    if kind == "key":
        assert (entry["organisation_id"], entry["team_id"]) == (
            team["organisation_id"],
            team["id"],
        )


def test_it_says_who_and_when(admin: Admin, gateway: Gateway) -> None:
    made = admin.team()
    [entry] = admin.get(f"/admin/audit?object_id={made['id']}")["data"]
    token = Admin(gateway).get(f"/admin/tokens/{entry['actor'].removeprefix('token:')}")
    assert entry["actor_name"] == token["name"]
    assert entry["time"] >= made["created_at"]
    other = Admin(gateway).team()
    [entry] = admin.get(f"/admin/audit?object_id={other['id']}")["data"]
    assert entry["actor"] == "environment"


def refused_calls(admin: Admin) -> list[tuple[str, str, Any, dict[str, str]]]:
    team, archived = admin.team(), admin.team()
    admin.delete(f"/admin/teams/{archived['id']}")
    full = admin.organisation()
    admin.team(organisation=full["id"])
    stale = {"if-match": '"1"'}
    return [
        ("POST", "/admin/teams", {"name": team["name"]}, {}),
        ("POST", "/admin/teams", {"name": unique("x"), "organisation": "no-such"}, {}),
        ("POST", "/admin/teams", {"name": unique("x"), "more": 1}, {}),
        ("PATCH", f"/admin/teams/{team['id']}", {"name": archived["name"]}, {}),
        ("PATCH", f"/admin/teams/{team['id']}", {"priority": "urgent"}, {}),
        ("PATCH", f"/admin/teams/{team['id']}", {"priority": "low"}, stale),
        ("PATCH", f"/admin/teams/{archived['id']}", {"priority": "low"}, {}),
        ("DELETE", f"/admin/teams/{team['id']}", None, stale),
        ("DELETE", f"/admin/organisations/{full['id']}", None, {}),
        ("POST", f"/admin/teams/{archived['id']}/keys", {}, {}),
    ]


def test_what_was_refused_or_changed_nothing_has_none(admin: Admin) -> None:
    calls = refused_calls(admin)
    team = admin.team(priority="low")
    key = admin.new_key(team)
    admin.delete(f"/admin/keys/{key['id']}")
    before = admin.all("/admin/audit")
    for method, path, body, headers in calls:
        assert admin.ask(method, path, body, headers).status_code >= 400, (method, path, body)
    admin.patch(f"/admin/teams/{team['id']}", priority="low")
    admin.delete(f"/admin/keys/{key['id']}")
    mine = [entry for entry in before if entry["actor_name"].startswith("token-")]
    assert len(mine) > 0
    assert admin.all("/admin/audit") == before


def test_filters(admin: Admin) -> None:
    organisation = admin.organisation()
    team = admin.team(organisation=organisation["id"])
    key = admin.new_key(team)
    admin.patch(f"/admin/teams/{team['id']}", priority="low")
    every = admin.get(f"/admin/audit?organisation={organisation['name']}")["data"]
    assert [entry["action"] for entry in every] == [
        "team.update",
        "key.create",
        "team.create",
        "organisation.create",
    ]
    actor = every[0]["actor"]
    cases = {
        f"team={team['name']}": every[:3],
        f"object_id={key['id']}": every[1:2],
        f"organisation={organisation['id']}&object_type=team": [every[0], every[2]],
        f"organisation={organisation['id']}&action=team.update": every[:1],
        f"organisation={organisation['id']}&actor={actor}": every,
        f"organisation={organisation['id']}&actor=person:nobody": [],
        f"team={team['id']}&from={every[0]['time']}": every[:1],
        f"team={team['id']}&to={every[0]['time']}": every[1:3],
    }
    for query, expected in cases.items():
        assert admin.get(f"/admin/audit?{query.replace('+', '%2B')}")["data"] == expected, query


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("object_id=1", 400, "object_id"),
        ("from=yesterday", 400, "from"),
        ("to=0001-01-01T00:00:00%2B23:59", 400, "to"),
        ("actor=%00", 400, "actor"),
        ("action=a%00", 400, "action"),
        ("object_type=%00", 400, "object_type"),
        ("organisation=%00", 404, "organisation"),
        ("team=no-such", 404, "team"),
    ],
)
def test_wrong_filters_are_named(admin: Admin, query: str, status: int, param: str) -> None:
    response = admin.ask("GET", f"/admin/audit?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_no_secret_is_anywhere_but_in_the_answer_that_shows_it(
    admin: Admin, gateway: Gateway
) -> None:
    team = admin.team()
    key = admin.new_key(team)
    rotated = admin.post(f"/admin/keys/{key['id']}/rotate", {})
    token = admin.token()
    secrets = [key["key"], rotated["key"], token["token"], admin.key, ADMIN_KEY, TEAM_KEY]
    hashes = [form for secret in secrets for form in _forms(key_hash(secret))]
    said = [
        str(admin.all(path))
        for path in (
            "/admin/audit",
            "/admin/keys",
            "/admin/tokens",
            "/admin/teams",
            "/admin/organisations",
        )
    ]
    said += [admin.ask("GET", f"/admin/keys/{key['id']}").text, gateway.log_text()]
    said += [admin.ask("DELETE", f"/admin/tokens/{token['id']}").text]
    for text in said:
        assert not any(secret in text for secret in [*secrets, *hashes])


def _forms(digest: bytes) -> list[str]:
    return [digest.hex(), str(digest)[2:-1]]


async def _migrated(url: str) -> asyncpg.Connection[Any]:
    await migrate(url)
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        assert await FirstKeys(pool).admin_token() is not None
        entries = (await AuditLog(pool).page(Filters(), Turn())).data
        assert [(entry.actor, entry.action) for entry in entries] == [("bootstrap", "token.create")]
    return await asyncpg.connect(url)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor = 'nobody'",
        "UPDATE audit_log SET actor = 'nobody' WHERE false",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "TRUNCATE audit_log CASCADE",
        "INSERT INTO audit_log SELECT * FROM audit_log ON CONFLICT (id) DO UPDATE SET actor = 'x'",
    ],
)
async def test_the_database_lets_it_only_grow(database: str, statement: str) -> None:
    connection = await _migrated(database)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_the_keys_of_before_become_owners_tokens(database: str) -> None:
    """An installation whose admin keys are older than tokens."""
    from sluice.migrations import migrations

    steps = migrations()
    older = [step for step in steps if step.version < "0004"]
    connection = await asyncpg.connect(database)
    try:
        for step in older:
            await connection.execute(step.sql)
        await connection.execute(
            "INSERT INTO admin_keys (id, hash, hint) VALUES (gen_random_uuid(), 'h', 'sk…')"
        )
        for step in steps[len(older) :]:
            await connection.execute(step.sql)
        [row] = await connection.fetch("SELECT role, hash, organisation_id FROM admin_tokens")
        assert (row["role"], row["hash"], row["organisation_id"]) == ("owner", b"h", None)
    finally:
        await connection.close()


async def test_entries_and_changes_come_and_go_together(database: str) -> None:
    """A log that can't be written stops the change."""
    connection = await _migrated(database)
    try:
        await connection.execute("ALTER TABLE audit_log ADD CHECK (actor <> 'bootstrap') NOT VALID")
        async with asyncpg.create_pool(database, min_size=1, max_size=2) as pool:
            with pytest.raises(asyncpg.CheckViolationError):
                await FirstKeys(pool).team_key(None, 10)
        assert await connection.fetchval("SELECT count(*) FROM teams") == 0
    finally:
        await connection.close()
