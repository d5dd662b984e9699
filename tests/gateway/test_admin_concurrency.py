"""Changes at the same time, over two gateways, and how soon each gateway knows of them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from sluice.gateway.tenancy.limits import Limits
from tests.harness.administration import Admin, Record, unique
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually
from tests.harness.twins import Twins


@pytest.fixture(scope="module")
def admins(twins: Twins) -> tuple[Admin, Admin]:
    return Admin(twins.one), Admin(twins.other)


CHANGES: dict[str, Any] = {
    "requests_per_minute": 1,
    "tokens_per_minute": 2,
    "max_concurrent": 3,
    "batch_requests_per_minute": 11,
    "batch_tokens_per_minute": 12,
    "batch_max_concurrent": 13,
    "budgets": [{"period": "day", "limit_usd": "4"}],
    "allowed_models": ["five"],
    "allowed_endpoints": ["chat/completions"],
    "default_max_tokens": 7,
    "max_output_tokens": 8,
    "max_stored_bytes": 9,
    "priority": "low",
    "isolate_prefix_cache": True,
    "keep_prompts": True,
}


def test_changes_of_different_members_all_survive(admins: tuple[Admin, Admin]) -> None:
    assert CHANGES.keys() == set(Limits.__struct_fields__)
    team = admins[0].team()
    path = f"/admin/teams/{team['id']}"

    def change(number: int, member: str) -> int:
        return admins[number % 2].ask("PATCH", path, {member: CHANGES[member]}).status_code

    with ThreadPoolExecutor(10) as threads:
        statuses = list(threads.map(change, range(len(CHANGES)), CHANGES))
    assert statuses == [200] * len(CHANGES)
    after = admins[1].get(path)
    assert {member: after[member] for member in CHANGES} == CHANGES
    entries = admins[0].get(f"/admin/audit?object_id={team['id']}&action=team.update")["data"]
    assert len(entries) == len(CHANGES)
    for newer, older in pairwise(entries):
        assert newer["before"] == older["after"]


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_of_changes_for_the_same_revision_one_is_made(
    admins: tuple[Admin, Admin], method: str
) -> None:
    team = admins[0].team()
    path, tag = f"/admin/teams/{team['id']}", {"if-match": f'"{team["revision"]}"'}

    def change(number: int) -> int:
        body = {"requests_per_minute": number} if method == "PATCH" else None
        return admins[number % 2].ask(method, path, body, tag).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(change, range(8)))
    assert statuses == [200] + [412] * 7
    entries = admins[0].get(f"/admin/audit?object_id={team['id']}")["data"]
    assert len(entries) == 2


def test_a_name_is_given_once_however_many_ask(admins: tuple[Admin, Admin]) -> None:
    name = unique("wanted")
    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(
            threads.map(
                lambda n: admins[n % 2].ask("POST", "/admin/teams", {"name": name}).status_code,
                range(8),
            )
        )
    assert statuses == [201] + [409] * 7


def test_an_organisation_is_archived_or_gets_a_team(admins: tuple[Admin, Admin]) -> None:
    """Never both: an organisation that is gone has no active team."""
    for _ in range(10):
        organisation = admins[0].organisation()
        body = {"name": unique("late"), "organisation": organisation["id"]}
        path = f"/admin/organisations/{organisation['id']}"
        with ThreadPoolExecutor(2) as threads:
            made = threads.submit(lambda: admins[0].ask("POST", "/admin/teams", body))  # noqa: B023
            gone = threads.submit(lambda: admins[1].ask("DELETE", path))  # noqa: B023
        assert sorted([made.result().status_code, gone.result().status_code]) in (
            [200, 409],
            [201, 409],
        )


@pytest.mark.parametrize("kind", ["organisations", "teams", "keys", "tokens", "audit"])
def test_pages_are_complete_while_things_are_added(admins: tuple[Admin, Admin], kind: str) -> None:
    owner = admins[0].team()

    def make(number: int) -> Record:
        admin = admins[number % 2]
        match kind:
            case "organisations":
                return admin.organisation()
            case "keys":
                return admin.new_key(owner)
            case "tokens":
                return admin.token()
            case _:
                return admin.team()

    there = [make(number)["id"] for number in range(7)]
    name = "object_id" if kind == "audit" else "id"
    seen: list[str] = []
    with ThreadPoolExecutor(4) as threads:
        added = [threads.submit(make, number) for number in range(12)]
        for page in admins[1].pages(f"/admin/{kind}", limit=3):
            assert len(page) <= 3
            seen += [record["id"] for record in page]
            if name == "object_id":
                there = [each for each in there if each not in {r[name] for r in page}]
        [each.result() for each in added]
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, reverse=kind == "audit")
    if name == "id":
        assert set(there) <= set(seen)
    else:
        assert there == []


def status(gateway: Gateway, key: str, path: str) -> int:
    return gateway.request("GET", path, None, key).status_code


def within_a_second(gateways: list[Gateway], key: str, expected: int, path: str) -> None:
    """A key has that status on every gateway, in a second from now."""
    started = time.monotonic()
    eventually(lambda: all(status(each, key, path) == expected for each in gateways), 1)
    assert time.monotonic() - started < 1


def settled(gateways: list[Gateway], key: str, path: str) -> None:
    """Every gateway knows the key."""
    eventually(lambda: all(status(each, key, path) == 200 for each in gateways), 2)


class TestInForceWithinASecond:
    """Criterion: a change through the admin API binds on every process within a second."""

    def test_a_revocation(self, twins: Twins, admins: tuple[Admin, Admin]) -> None:
        both = [twins.one, twins.other]
        key = admins[0].new_key(admins[0].team())
        settled(both, key["key"], "/v1/models")
        admins[0].delete(f"/admin/keys/{key['id']}")
        within_a_second(both, key["key"], 401, "/v1/models")

    def test_an_archived_team(self, twins: Twins, admins: tuple[Admin, Admin]) -> None:
        both = [twins.one, twins.other]
        team = admins[0].team()
        key = admins[0].new_key(team)
        settled(both, key["key"], "/v1/models")
        admins[1].delete(f"/admin/teams/{team['id']}")
        within_a_second(both, key["key"], 401, "/v1/models")

    def test_a_revoked_token(self, twins: Twins, admins: tuple[Admin, Admin]) -> None:
        both = [twins.one, twins.other]
        token = admins[0].token()
        settled(both, token["token"], "/admin/teams")
        admins[0].delete(f"/admin/tokens/{token['id']}")
        within_a_second(both, token["token"], 401, "/admin/teams")

    @pytest.mark.parametrize("level", ["organisation", "team", "key"])
    def test_a_limit(self, twins: Twins, admins: tuple[Admin, Admin], level: str) -> None:
        both = [twins.one, twins.other]
        organisation = admins[0].organisation()
        team = admins[0].team(organisation=organisation["id"])
        key = admins[0].new_key(team)
        settled(both, key["key"], "/v1/models/vllm")
        thing = {"organisation": organisation, "team": team, "key": key}[level]
        admins[0].patch(f"/admin/{level}s/{thing['id']}", allowed_models=["compat*"])
        within_a_second(both, key["key"], 404, "/v1/models/vllm")
        names = [each["id"] for each in twins.one.api("GET", "/v1/models", key=key["key"])["data"]]
        assert names == ["compatible"]

    def test_a_rotation_with_overlap(self, twins: Twins, admins: tuple[Admin, Admin]) -> None:
        both = [twins.one, twins.other]
        old = admins[0].new_key(admins[0].team())
        settled(both, old["key"], "/v1/models")
        new = admins[1].post(f"/admin/keys/{old['id']}/rotate", {"overlap_seconds": 2})
        settled(both, new["key"], "/v1/models")
        assert twins.one.request("GET", "/v1/models", None, old["key"]).status_code == 200
        eventually(lambda: all(status(each, old["key"], "/v1/models") == 401 for each in both), 3)
        settled(both, new["key"], "/v1/models")
