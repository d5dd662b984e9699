"""The administrative commands, as processes run them, against a gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.cli import main
from sluice.gateway.cli.limit_flags import LIMIT_MEMBERS
from tests.harness.administration import Admin, unique
from tests.harness.gateway import ADMIN_KEY, Gateway
from tests.harness.polling import eventually

LIMIT_FLAGS = [
    "--requests-per-minute",
    "60",
    "--tokens-per-minute",
    "1000",
    "--max-concurrent",
    "4",
    "--batch-requests-per-minute",
    "61",
    "--batch-tokens-per-minute",
    "2000",
    "--batch-max-concurrent",
    "5",
    "--budget",
    "month=500:400",
    "--budget",
    "day=20",
    "--budget",
    "week=:100",
    "--allow-model",
    "gpt-*",
    "--allow-model",
    "simulated",
    "--allow-endpoint",
    "chat/completions",
    "--default-max-tokens",
    "10",
    "--max-output-tokens",
    "100",
    "--max-stored-bytes",
    "5000",
    "--priority",
    "high",
    "--isolate-prefix-cache",
    "--keep-prompts",
]
LIMITS: dict[str, Any] = {
    "requests_per_minute": 60,
    "tokens_per_minute": 1000,
    "max_concurrent": 4,
    "batch_requests_per_minute": 61,
    "batch_tokens_per_minute": 2000,
    "batch_max_concurrent": 5,
    "budgets": [
        {"period": "month", "limit_usd": "500", "alert_usd": "400"},
        {"period": "day", "limit_usd": "20"},
        {"period": "week", "alert_usd": "100"},
    ],
    "allowed_models": ["gpt-*", "simulated"],
    "allowed_endpoints": ["chat/completions"],
    "default_max_tokens": 10,
    "max_output_tokens": 100,
    "max_stored_bytes": 5000,
    "priority": "high",
    "isolate_prefix_cache": True,
    "keep_prompts": True,
}


class Commands:
    """Runs commands as an administrator of a gateway."""

    def __init__(self, gateway: Gateway, key: str = ADMIN_KEY) -> None:
        self.env = {"SLUICE_URL": gateway.url, "SLUICE_ADMIN_KEY": key, "SLUICE_KEY": None}

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env=self.env)

    def __call__(self, *arguments: str) -> Any:
        """What a command that must succeed prints."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def refused(self, *arguments: str) -> str:
        """What a command that must fail says."""
        result = self.run(*arguments)
        assert result.exit_code != 0
        assert "Traceback" not in result.output
        assert isinstance(result.exception, SystemExit)
        return result.output


@pytest.fixture(scope="module")
def sluice(gateway: Gateway) -> Commands:
    return Commands(gateway)


def limits_of(record: Any) -> Any:
    return {name: record[name] for name in LIMIT_MEMBERS}


def test_an_organisations_life(sluice: Commands) -> None:
    name = unique("org")
    made = sluice("org", "create", name, "--time-zone", "Europe/Berlin", *LIMIT_FLAGS)
    assert (limits_of(made), made["time_zone"]) == (LIMITS, "Europe/Berlin")
    assert made in sluice("org", "list")["data"]
    renamed = unique("org")
    changed = sluice(
        *("org", "update", name, "--rename", renamed, "--time-zone", "UTC", "--budget", "day=1")
    )
    assert (changed["name"], changed["time_zone"]) == (renamed, "UTC")
    assert changed["budgets"] == [{"period": "day", "limit_usd": "1"}]
    assert changed["priority"] == "high"
    assert sluice("org", "show", renamed) == changed
    assert sluice("org", "archive", renamed)["archived_at"] is not None


def test_a_teams_life(sluice: Commands) -> None:
    organisation, name = sluice("org", "create", unique("org")), unique("team")
    made = sluice(*("team", "create", name, "--organisation", organisation["name"], *LIMIT_FLAGS))
    assert limits_of(made) == LIMITS
    assert sluice("team", "list", "--organisation", organisation["id"])["data"] == [made]
    unset = [flag for member in LIMIT_MEMBERS for flag in ("--unset", member)]
    changed = sluice("team", "update", name, *unset)
    assert not any(limits_of(changed).values())
    changed = sluice("team", "update", name, "--no-isolate-prefix-cache", "--max-concurrent", "0")
    assert (changed["isolate_prefix_cache"], changed["max_concurrent"]) == (False, 0)
    assert sluice("team", "show", made["id"]) == changed
    assert sluice("team", "archive", name)["archived_at"] is not None


def test_a_team_with_a_bound_as_before(sluice: Commands) -> None:
    made = sluice("team", "create", unique("team"), "--default-max-tokens", "7")
    assert made["default_max_tokens"] == 7


def test_a_keys_life(sluice: Commands, gateway: Gateway) -> None:
    team = sluice("team", "create", unique("team"))
    made = sluice(
        *("key", "create", team["name"], "--name", "ci", "--expires-at", "2099-01-01T00:00:00Z"),
        *LIMIT_FLAGS,
    )
    assert (limits_of(made), made["name"]) == (LIMITS, "ci")
    changed = sluice("key", "update", made["id"], "--name", "cd", "--unset", "expires_at")
    assert (changed["name"], changed["expires_at"]) == ("cd", None)
    eventually(
        lambda: gateway.request("GET", "/v1/limits", None, made["key"]).status_code == 200, 2
    )
    limits = sluice("limits", "--key", made["key"])
    assert limits["effective"]["max_concurrent"] == {"limit": 4, "level": "key"}
    new = sluice("key", "rotate", made["id"], "--overlap-seconds", "60")
    assert sluice("key", "show", made["id"])["replaced_by"] == new["id"]
    assert sluice("key", "revoke", new["id"])["revoked_at"] is not None
    listed = sluice("key", "list", "--team", team["name"])["data"]
    assert [each["id"] for each in listed] == [made["id"], new["id"]]


def test_a_tokens_life(sluice: Commands, gateway: Gateway) -> None:
    team = sluice("team", "create", unique("team"))
    made = sluice(
        *("token", "create", "dashboards", "--role", "auditor", "--team", team["name"]),
        *("--scope", "teams:read", "--scope", "usage:read", "--expires-at", "2099-01-01T00:00:00Z"),
    )
    assert (made["team_id"], made["scopes"]) == (team["id"], ["teams:read", "usage:read"])
    as_token = Commands(gateway, made["token"])
    eventually(lambda: as_token.run("team", "list").exit_code == 0, 2)
    assert [each["id"] for each in as_token("team", "list")["data"]] == [team["id"]]
    assert as_token("usage", "--team", team["name"])["requests"] == 0
    assert "permission" in as_token.refused("team", "create", unique("team"))
    assert made["id"] in {each["id"] for each in sluice("token", "list")["data"]}
    assert sluice("token", "show", made["id"])["role"] == "auditor"
    assert sluice("token", "revoke", made["id"])["revoked_at"] is not None


def test_the_audit_log(sluice: Commands) -> None:
    team = sluice("team", "create", unique("team"))
    for number in range(4):
        sluice("team", "update", team["name"], "--max-concurrent", str(number))
    shown = sluice("audit", "--team", team["name"], "--action", "team.update")["data"]
    assert [entry["after"]["max_concurrent"] for entry in shown] == [3, 2, 1, 0]
    assert sluice("audit", "--object-id", team["id"], "--limit", "2")["data"] == shown[:2]
    assert sluice("audit", "--team", team["id"], "--to", "2001-01-01")["data"] == []


def test_lists_are_whole_beyond_a_page(
    sluice: Commands, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.gateway.cli.admin_api._PAGE", 2)
    team = Admin(gateway).team()
    made = [Admin(gateway).new_key(team)["id"] for _ in range(5)]
    assert [key["id"] for key in sluice("key", "list", "--team", team["id"])["data"]] == made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["team", "show", "no-such-team"], "no team `no-such-team`"),
        (["team", "show", "../organisations"], "Unknown URL"),
        (["team", "create", "Not A Slug"], "(name)"),
        (["team", "create", "x", "--organisation", "no-such"], "(organisation)"),
        (["team", "create", "x", "--budget", "year=1"], "month=500"),
        (["team", "create", "x", "--budget", "month"], "month=500"),
        (["team", "create", "x", "--budget", "month="], "month=500"),
        (["team", "create", "x", "--budget", "month=ten"], "budgets[0].limit_usd"),
        (["team", "create", "x", "--budget", "day=1", "--budget", "day=2"], "(budgets)"),
        (["team", "update", "default"], "nothing to change"),
        (
            ["team", "update", "default", "--priority", "low", "--unset", "priority"],
            "given and unset",
        ),
        (["team", "update", "default", "--unset", "name"], "--unset"),
        (["org", "create", "x", "--time-zone", "Mars"], "(time_zone)"),
        (["key", "revoke", "1"], "no such key"),
        (["token", "create", "x", "--role", "team_admin"], "team"),
        (["limits"], "--key"),
        (["limits", "--key", "sk-sluice-wrong"], "API key"),
    ],
)
def test_what_is_wrong_is_said(sluice: Commands, arguments: list[str], said: str) -> None:
    assert said in sluice.refused(*arguments)


def test_a_change_meanwhile_is_not_overwritten(
    sluice: Commands, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a command's reading and its change somebody else makes one."""
    from sluice.gateway.cli import admin_api

    team, admin = Admin(gateway).team(), Admin(gateway)
    ask = admin_api._ask

    async def interrupted(method: str, *more: Any, **named: Any) -> Any:
        if method == "PATCH":
            admin.patch(f"/admin/teams/{team['id']}", priority="high")
        return await ask(method, *more, **named)

    monkeypatch.setattr(admin_api, "_ask", interrupted)
    assert "changed since" in sluice.refused("team", "update", team["name"], "--priority", "low")
    assert admin.get(f"/admin/teams/{team['id']}")["priority"] == "high"


def test_without_a_gateway_it_says_where_it_looked(sluice: Commands) -> None:
    result = CliRunner().invoke(
        main, ["team", "list"], env={**sluice.env, "SLUICE_URL": "http://127.0.0.1:1"}
    )
    assert result.exit_code == 1
    assert "http://127.0.0.1:1" in result.output
