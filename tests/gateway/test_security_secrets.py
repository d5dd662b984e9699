"""Key material reaches no output: cases 86, 88, 89 and 91 over everything that the data plane
serves, and a search of all that a gateway writes after it was driven through its errors."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import redis

from sluice.gateway.secrets import key_hash
from sluice.wire.request import REFUSED
from tests.gateway.test_oidc import forged_login
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.issuer import Issuer
from tests.harness.polling import eventually
from tests.harness.secured import DATA_PLANE, request_body
from tests.harness.upstream import Call, Upstream

LEAK = (
    "call to https://api.example/v1?key=URL-SECRET&api_key=URL-SECRET failed for"
    " PROVIDER-SECRET-KEY, Authorization: Bearer PROVIDER-SECRET-KEY, x-api-key:"
    " PROVIDER-SECRET-KEY"
)
MODELS = ["vllm-alias", "openai-alias", "anthropic-alias"]


@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_case_86_callers_cannot_steer_the_upstream_call(
    secured: Gateway, secured_upstream: Upstream, operation: str, path: str, stream: bool
) -> None:
    for field in sorted(REFUSED):
        marker = f"steer-{operation}-{stream}-{field}-end"
        more = {field: "http://169.254.169.254/"}
        for name in MODELS:
            body = request_body(operation, name, marker, stream, **more)
            answer = secured.request("POST", path, body)
            assert answer.status_code == 400
            assert field in answer.json()["error"]["message"]
            assert secured_upstream.calls_with(marker) == []


@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_case_86_nothing_of_the_callers_credentials_and_routing_headers_goes_upstream(
    secured: Gateway, secured_upstream: Upstream, operation: str, path: str, stream: bool
) -> None:
    marker = f"headers-{operation}-{stream}-end"
    caller = {
        "x-api-base": "http://169.254.169.254/",
        "openai-organization": "org-caller",
        "x-forwarded-host": "evil.example",
        "forwarded": "host=evil.example",
        "cookie": "session=caller",
        "proxy-authorization": "Basic caller",
        "x-caller": "caller",
    }
    secured.request(
        "POST", path, request_body(operation, "openai-alias", marker, stream), headers=caller
    )
    for call in secured_upstream.calls_with(marker):
        assert TEAM_KEY not in str(call.headers)
        assert not any("caller" in value or "evil" in value for value in call.headers.values())
        assert call.headers["authorization"] == "Bearer PROVIDER-SECRET-KEY"
        assert call.path.startswith("/v1/")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500, 502, 503])
@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_case_88_what_upstreams_tell_of_keys_goes_no_further(
    secured: Gateway,
    secured_upstream: Upstream,
    operation: str,
    path: str,
    stream: bool,
    status: int,
) -> None:
    marker = f"leak-{operation}-{stream}-{status}-end"
    bodies: Iterator[Any] = iter(
        [{"error": {"message": LEAK, "type": LEAK, "code": LEAK, "param": LEAK}}, LEAK.encode()]
        * 100
    )
    secured_upstream.on(
        marker,
        lambda call: call.respond(
            status, next(bodies), {"x-leak": LEAK, "www-authenticate": LEAK, "retry-after": "0"}
        ),
    )
    for name in MODELS:
        answer = secured.request("POST", path, request_body(operation, name, marker, stream))
        assert answer.status_code >= 400
        assert "SECRET" not in answer.text + str(answer.headers)
    assert "SECRET" not in secured.log_text()


@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_case_88_an_address_that_holds_a_key_is_not_shown(
    secured: Gateway, operation: str, path: str, stream: bool
) -> None:
    answer = secured.request("POST", path, request_body(operation, "refused", "x", stream))
    assert answer.status_code >= 400
    assert "SECRET" not in answer.text + str(answer.headers) + secured.log_text()
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize(("operation", "path"), [(o, p) for o, p, stream in DATA_PLANE if stream])
def test_case_88_an_error_inside_a_stream_shows_no_key(
    secured: Gateway, secured_upstream: Upstream, operation: str, path: str
) -> None:
    marker = f"leak-in-stream-{operation}-end"

    def script(call: Call) -> None:
        call.start_stream()
        call.event({"choices": [{"index": 0, "delta": {"content": "word"}, "text": "word"}]})
        call.event({"error": {"message": LEAK}})
        call.end()

    secured_upstream.on(marker, script)
    for name in ("vllm-alias", "openai-alias"):
        answer = secured.request("POST", path, request_body(operation, name, marker, True))
        assert "SECRET" not in answer.text
    assert "SECRET" not in secured.log_text()


def bad_keys(gateway: Gateway) -> dict[str, str]:
    """Keys of every kind that does not open the data plane."""
    made: dict[str, str] = {"unknown": "sk-unknown-key-material", "short": "key-material"}
    gateway.request("POST", "/admin/teams", {"name": "bad-keys"}, key=ADMIN_KEY)
    for kind, body in (("revoked", {}), ("expired", {"expires_at": "2020-01-01T00:00:00Z"})):
        answer = gateway.request("POST", "/admin/teams/bad-keys/keys", body, key=ADMIN_KEY)
        if answer.status_code == 201:
            made[kind] = answer.json()["key"]
            if kind == "revoked":
                gateway.api("DELETE", f"/admin/keys/{answer.json()['id']}", key=ADMIN_KEY)
    made["admin"] = ADMIN_KEY
    return made


@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_case_89_a_bad_key_is_a_401_without_its_text(
    secured: Gateway, operation: str, path: str, stream: bool
) -> None:
    body = json.dumps(request_body(operation, "simulated", "x", stream)).encode()
    for kind, key in bad_keys(secured).items():
        for headers in (
            {"authorization": f"Bearer {key}"},
            {"authorization": f"bearer {key}"},
            {"authorization": f"Basic {key}"},
            {"authorization": key},
            {"x-api-key": key},
        ):

            def refused(headers: dict[str, str] = headers) -> httpx.Response | None:
                answer = httpx.post(secured.url + path, content=body, headers=headers)
                return answer if answer.status_code == 401 else None

            # a revocation is in force within a second
            answer = eventually(refused, 5 if kind == "revoked" else 0.5)
            error = answer.json()["error"]
            assert error.get("param") is None
            assert key not in answer.text + str(answer.headers)
    for kind, key in bad_keys(secured).items():
        assert key not in secured.log_text(), kind


def test_case_91_callers_make_no_series(secured: Gateway) -> None:
    def series() -> set[str]:
        lines = secured.request("GET", "/metrics", key=None).text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def junk(number: int) -> None:
        with httpx.Client(base_url=secured.url, timeout=30) as client:
            for operation, path, stream in DATA_PLANE:
                known = request_body(
                    operation, "simulated", "x", stream, user=f"user-{number}", max_tokens=1
                )
                if operation == "embeddings":
                    known.pop("max_tokens")
                headers = {
                    "authorization": f"Bearer {TEAM_KEY}",
                    "user-agent": f"agent-{number}",
                    "x-request-id": f"id-{number}",
                }
                client.post(path, json=known, headers=headers)
                client.post(path, json={**known, "model": f"bogus-{number}"}, headers=headers)
                client.post(path, json={**known, "model": number}, headers=headers)
                bad = {**headers, "authorization": f"Bearer bad-{number}"}
                client.post(path, json=known, headers=bad)
                client.get(f"/v1/unknown-{number}", headers=headers)

    junk(0)
    before = series()
    for number in range(1, 20):
        junk(number)
    assert series() == before


async def rows(url: str) -> str:
    """Everything in a database, as text."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        found = []
        for table in tables:
            name = f'"{table["schemaname"]}"."{table["tablename"]}"'
            found += await connection.fetch(f"SELECT t::text FROM {name} t")
        return "\n".join(row[0] for row in found)
    finally:
        await connection.close()


def contents(url: str) -> str:
    """Everything in a Redis database, as text."""
    with redis.Redis.from_url(url) as server:
        found: list[Any] = []
        for key in server.scan_iter(count=1000):
            match server.type(key):
                case b"string":
                    value: Any = server.get(key)
                case b"hash":
                    value = server.hgetall(key)
                case b"stream":
                    value = server.xrange(key)
                case b"list":
                    value = server.lrange(key, 0, -1)
                case b"set":
                    value = server.smembers(key)
                case _:
                    value = server.zrange(key, 0, -1, withscores=True)
            found.append((key, value))
    return repr(found)


def drive(gateway: Gateway, issuer: Issuer) -> list[str]:
    """Use and misuse keys in every way; give all the secrets that took part."""
    api = gateway.api
    gateway.request("POST", "/admin/teams", {"name": "driven"}, key=ADMIN_KEY)
    first = api("POST", "/admin/teams/driven/keys", {"name": "first"}, key=ADMIN_KEY)
    rotated = api(
        "POST", f"/admin/keys/{first['id']}/rotate", {"overlap_seconds": 60}, key=ADMIN_KEY
    )
    known = [TEAM_KEY, ADMIN_KEY, first["key"], rotated["key"]]
    eventually(lambda: gateway.request("GET", "/v1/models", key=rotated["key"]).is_success)
    stray = [f"sk-stray-{secrets.token_urlsafe(24)}" for _ in range(4)]
    for operation, path, stream in DATA_PLANE:
        body = request_body(operation, "simulated", "x", stream)
        for key in known[2:]:
            gateway.request("POST", path, body, key=key, headers={"idempotency-key": "driven"})
            gateway.request("POST", f"{path}?api_key={stray[0]}", body, key=key)
            gateway.request("POST", path, {**body, "api_key": stray[1]}, key=key)
            gateway.request("POST", path, b"{" + stray[2].encode(), key=key)
            gateway.request("POST", path, {**body, "model": "none"}, key=key)
        gateway.request("POST", path, body, key=stray[3])
        gateway.request("POST", path, body, key=None, headers={"x-api-key": stray[3]})
    for path in ("/admin/teams", "/admin/keys", "/v1/usage", f"/{stray[0]}", f"/admin/{stray[0]}"):
        for key in (*known, *stray):
            gateway.request("GET", path, key=key)
            gateway.request("POST", path, {"name": 7, "key": stray[1]}, key=key)
    token = issuer.token()
    gateway.request("GET", "/admin/teams", key=token)
    gateway.request("GET", "/admin/teams", key=token[:-4] + "AAAA")
    login = forged_login(gateway, issuer, lambda claims, query: None)
    session = login.headers["set-cookie"].partition("sluice-session=")[2].partition(";")[0]
    assert session
    provider = ["PROVIDER-SECRET-KEY", "URL-SECRET", "OIDC-CLIENT-SECRET"]
    return [*known, *stray, *provider, session, token, token.rpartition(".")[2]]


def test_no_key_is_in_anything_that_is_written(secured: Gateway, issuer: Issuer) -> None:
    """Logs, metrics, Postgres and Redis hold hashes at most; so do command lines."""
    found = drive(secured, issuer)
    database = secured.env["SLUICE_DATABASE_URL"]
    # what was used last is in the ledger: nothing of it is still on its way
    marker = secured.request("POST", *DATA_PLANE[0][1:2], request_body(*_LAST))
    secured.record(marker.headers["x-request-id"])
    written = {
        "log": secured.log_text(),
        "billing log": (secured.log.parent / "billing.log").read_text(),
        "metrics": secured.request("GET", "/metrics", key=None).text,
        "api description": secured.request("GET", "/openapi/openapi.json", key=None).text,
        "postgres": asyncio.run(rows(database)),
        "redis": contents(secured.env["SLUICE_REDIS_URL"]),
        "command line": Path(f"/proc/{secured.pid}/cmdline").read_text(),
    }
    for place, text in written.items():
        for secret in found:
            assert secret not in text, f"{secret[:12]}… is in the {place}"
    # the search would have found something: the hash is where the key would be
    assert key_hash(TEAM_KEY).hex() in written["postgres"]
    assert len(written["redis"]) > 100


_LAST = ("chat", "simulated", "the last one", False)
