"""Model versions by the admin API and the commands, against a gateway that serves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sluice.gateway.cli import main
from tests.harness.administration import Admin, unique
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Call, Upstream

SUM = "0" * 64


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


def version_body(name: str, **members: Any) -> dict[str, Any]:
    """A version to be registered; the pool is the one of the session's gateway."""
    return {
        "name": name,
        "version": "1",
        "pool": "pool",
        "weights": "/weights",
        "manifest": {"model.safetensors": {"sha256": SUM, "size": 10}},
        "context_length": 4096,
        "capabilities": ["chat", "completions"],
        **members,
    }


def ask(gateway: Gateway, method: str, path: str, given: Any = None, **headers: str) -> Any:
    return gateway.request(method, path, given, ADMIN_KEY, headers)


def register(gateway: Gateway, **members: Any) -> dict[str, Any]:
    response = ask(gateway, "POST", "/admin/models", version_body(unique("model"), **members))
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    assert response.headers["etag"] == f'"{made["revision"]}"'
    return made


def path_of(made: dict[str, Any], action: str = "") -> str:
    return f"/admin/models/{made['name']}/versions/{made['version']}{action}"


def listed(gateway: Gateway) -> set[str]:
    return {model["id"] for model in gateway.api("GET", "/v1/models")["data"]}


def test_a_promoted_version_serves_within_a_second_with_its_price_and_sampling(
    gateway: Gateway, upstream: Upstream
) -> None:
    made = register(
        gateway,
        price={"input_per_mtok": "1000000"},
        sampling={"temperature": 0.25},
        default_max_tokens=7,
    )
    name = made["name"]
    assert name not in listed(gateway)
    assert ask(gateway, "POST", path_of(made, "/promote"), {}).json()["stage"] == "prod"
    eventually(lambda: name in listed(gateway), 1.0)
    seen: list[Any] = []

    def script(call: Call) -> None:
        seen.append(call.json)
        call.respond(
            200,
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": name,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "hello"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
            },
        )

    upstream.on(name, script)
    asked = {"model": name, "messages": [{"role": "user", "content": name}]}
    answered = gateway.request("POST", "/v1/chat/completions", asked, TEAM_KEY)
    assert answered.status_code == 200, answered.text
    assert (seen[0]["model"], seen[0]["temperature"]) == (name, 0.25)
    record = gateway.record(answered.headers["x-request-id"])
    assert record["model_used"] == name
    assert record["cost_usd"] in (3, "3")
    ask(gateway, "POST", path_of(made, "/retire"))
    eventually(lambda: name not in listed(gateway), 1.0)


def test_what_is_wrong_is_said_with_its_parameter(gateway: Gateway) -> None:
    for wrong, param in (
        ({"context_length": 0}, "context_length"),
        ({"price": {"input_per_mtok": "-1"}}, "price"),
        ({"surprise": 1}, "surprise"),
        ({"manifest": {}}, None),
    ):
        given = version_body(unique("model")) | wrong
        response = ask(gateway, "POST", "/admin/models", given)
        assert response.status_code == 400, wrong
        if param is not None:
            assert response.json()["error"]["param"].startswith(param), response.text


def test_conflicts_and_missing_ones(gateway: Gateway) -> None:
    made = register(gateway, pool="nowhere")
    again = ask(gateway, "POST", "/admin/models", version_body(made["name"]))
    assert (again.status_code, again.json()["error"]["param"]) == (409, "version")
    own = ask(gateway, "POST", "/admin/models", version_body("vllm-alias"))
    assert (own.status_code, own.json()["error"]["param"]) == (409, "name")
    lost = ask(gateway, "POST", path_of(made, "/promote"), {})
    assert (lost.status_code, lost.json()["error"]["param"]) == (409, "pool")
    shadow = register(gateway)
    refused = ask(gateway, "POST", path_of(shadow, "/promote"), {"stage": "shadow"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "share")
    assert ask(gateway, "GET", "/admin/models/nothing/versions/prod").status_code == 404


def test_changes_are_conditional_and_audited(gateway: Gateway, admin: Admin) -> None:
    made = register(gateway)
    etag = f'"{made["revision"]}"'
    changed = ask(gateway, "PATCH", path_of(made), {"default_max_tokens": 5}, **{"if-match": etag})
    assert changed.json()["default_max_tokens"] == 5
    stale = ask(gateway, "PATCH", path_of(made), {"default_max_tokens": 6}, **{"if-match": etag})
    assert stale.status_code == 412
    known = ask(gateway, "GET", path_of(made), **{"if-none-match": changed.headers["etag"]})
    assert known.status_code == 304
    log = admin.get(f"/admin/audit?object_id={made['id']}")["data"]
    assert [entry["action"] for entry in log] == ["model.update", "model.create"]
    assert log[0]["before"]["default_max_tokens"] is None
    assert log[0]["after"]["default_max_tokens"] == 5


def test_permissions_and_confinement(gateway: Gateway, admin: Admin) -> None:
    made = register(gateway)
    reader = admin.token(role="auditor")["token"]
    confined = admin.token(role="owner", organisation=admin.organisation()["id"])["token"]
    narrow = admin.token(role="owner", scopes=["models:read"])["token"]
    for key, read, write in ((reader, 200, 403), (confined, 403, 403), (narrow, 200, 403)):

        def served(key: str = key, read: int = read) -> bool:
            return gateway.request("GET", path_of(made), None, key).status_code == read

        eventually(served)
        retired = gateway.request("POST", path_of(made, "/retire"), None, key)
        assert retired.status_code == write
    assert gateway.request("GET", path_of(made), None, TEAM_KEY).status_code == 403


def test_the_commands(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_URL", gateway.url)
    monkeypatch.setenv("SLUICE_ADMIN_KEY", ADMIN_KEY)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(main, ["models", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    manifest = run("manifest", str(weights))
    assert manifest["model.safetensors"]["size"] == 7
    name = unique("model")
    described = version_body(name)
    del described["manifest"]
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(described))
    made = run("create", str(file), "--weights-dir", str(weights))
    assert made["manifest"] == manifest
    assert [each["id"] for each in run("list", "--name", name)["data"]] == [made["id"]]
    assert run("promote", name, "1")["stage"] == "prod"
    assert run("show", name)["version"] == "1"
    assert run("retire", name, "1")["stage"] is None
    failed = CliRunner().invoke(main, ["models", "show", name])
    assert failed.exit_code == 1
    assert "There is no version `prod`" in failed.output
