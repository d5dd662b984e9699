"""People sign in: by a browser, by a token, by the command line; with an identity provider that
is honest (a package, as a process of its own), and with one that forges."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from sluice.gateway.oidc.login import challenge
from sluice.gateway.oidc.token_file import SavedToken, TokenFileError, save_token, saved_token
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway, Process, free_port, sluice
from tests.harness.issuer import CLIENT, Issuer
from tests.harness.polling import eventually
from tests.harness.secured import another_gateway, secured_config, sign_in_config
from tests.harness.upstream import Upstream

PEOPLE = {
    "olga": {"name": "Olga Owner", "groups": ["owners"]},
    "tim": {"name": "Tim Team", "groups": ["search-admins"]},
    "ada": {"name": "Ada Auditor", "groups": ["auditors"]},
    "nobody": {"name": "No Body", "groups": ["others"]},
    "lost": {"name": "Lost Team", "groups": ["lost"]},
}


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An honest identity provider; gives its issuer."""
    port = free_port()
    people = [
        f"--user-claims={json.dumps({'sub': sub, **claims})}" for sub, claims in PEOPLE.items()
    ]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    process = Process([*command, *people], {}, tmp_path_factory.mktemp("idp") / "idp.log")
    process.start()
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/.well-known/openid-configuration").status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers, 30)
    yield url
    process.kill()


@pytest.fixture(scope="session")
def staffed(
    secured: Gateway,
    secured_upstream: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
    provider: str,
) -> Iterator[Gateway]:
    """A gateway whose people come from the honest provider, with the teams `search` and `ads`."""
    port = free_port()
    config = secured_config(secured_upstream)
    config["oidc"] = sign_in_config(provider, port)
    directory = tmp_path_factory.mktemp("staffed")
    gateway = another_gateway(secured, config, directory, port)
    gateway.start()
    for team in ("search", "ads"):
        gateway.api("POST", "/admin/teams", {"name": team}, key=ADMIN_KEY)
    yield gateway
    gateway.stop()


@pytest.fixture
def browser(staffed: Gateway) -> Iterator[httpx.Client]:
    """A browser with nothing in its jar, on the gateway's own pages."""
    headers = {"sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=staffed.url, headers=headers, timeout=30) as client:
        yield client


def sign_in(
    browser: httpx.Client, subject: str, return_to: str = "/auth/session"
) -> httpx.Response:
    """The whole flow; gives the gateway's answer to the browser that comes back."""
    start = browser.get("/auth/login", params={"return_to": return_to})
    assert start.status_code == 303
    with httpx.Client(timeout=30) as elsewhere:
        back = elsewhere.post(start.headers["location"], data={"sub": subject})
    assert back.status_code in (302, 303), back.text
    return browser.get(back.headers["location"])


def id_token(provider: str, subject: str) -> str:
    """A token as a program of the organisation's would get it."""
    verifier = secrets.token_urlsafe(32)
    query = {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": "http://127.0.0.1:1/callback",
        "scope": "openid profile email",
        "nonce": secrets.token_urlsafe(8),
        "code_challenge": challenge(verifier),
        "code_challenge_method": "S256",
    }
    back = httpx.post(f"{provider}/oauth2/authorize", params=query, data={"sub": subject})
    code = parse_qs(urlsplit(back.headers["location"]).query)["code"][0]
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": query["redirect_uri"],
        "client_id": CLIENT,
        "client_secret": "any",
        "code_verifier": verifier,
    }
    answer = httpx.post(f"{provider}/oauth2/token", data=form)
    token: str = answer.json()["id_token"]
    return token


def test_a_browser_signs_in_sees_who_it_is_and_signs_out(browser: httpx.Client) -> None:
    assert browser.get("/auth/session").status_code == 401
    back = sign_in(browser, "olga", "/admin/teams?limit=1")
    assert (back.status_code, back.headers["location"]) == (303, "/admin/teams?limit=1")
    cookie = next(each for each in back.headers.get_list("set-cookie") if "-session=" in each)
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    who = browser.get("/auth/session")
    assert who.json() == {
        "actor": "person:olga",
        "name": "Olga Owner",
        "role": "owner",
        "organisation_id": None,
        "team_id": None,
    }
    assert who.headers["cache-control"] == "no-store"
    assert browser.get("/admin/teams").status_code == 200
    session = dict(browser.cookies)
    assert browser.post("/auth/logout").json() == {"signed_in": False}
    assert browser.get("/admin/teams").status_code == 401
    browser.cookies.update(session)  # a copy of the cookie is worth nothing any more
    assert browser.get("/admin/teams").status_code == 401


def test_what_people_change_is_in_the_audit_log_by_their_names(
    staffed: Gateway, browser: httpx.Client
) -> None:
    sign_in(browser, "olga")
    made = browser.post("/admin/teams", json={"name": "by-olga"})
    assert made.status_code == 201, made.text
    log = staffed.api("GET", "/admin/audit?actor=person:olga", key=ADMIN_KEY)["data"]
    assert (log[0]["actor"], log[0]["actor_name"]) == ("person:olga", "Olga Owner")
    assert log[0]["object_id"] == made.json()["id"]


@pytest.mark.parametrize("way", ["browser", "bearer"])
def test_roles_hold_for_people_as_for_tokens(
    staffed: Gateway, browser: httpx.Client, provider: str, way: str
) -> None:
    def calls(subject: str) -> Callable[..., int]:
        if way == "browser":
            browser.cookies.clear()
            sign_in(browser, subject)
        else:
            browser.headers["authorization"] = f"Bearer {id_token(provider, subject)}"
        return lambda method, path, **more: browser.request(method, path, **more).status_code

    name = f"team-{way}"
    olga = calls("olga")
    assert olga("POST", "/admin/teams", json={"name": name}) == 201
    assert olga("GET", "/v1/usage?team_id=search") == 200
    tim = calls("tim")
    assert tim("GET", "/admin/teams/search") == 200
    assert tim("POST", "/admin/teams/search/keys", json={}) == 201
    assert tim("GET", "/v1/usage?team_id=search") == 200
    assert tim("GET", "/admin/teams/ads") == 404
    assert tim("POST", "/admin/teams/ads/keys", json={}) == 404
    assert tim("GET", "/v1/usage?team_id=ads") == 404
    assert tim("POST", "/admin/teams", json={"name": "more"}) == 403
    ada = calls("ada")
    assert ada("GET", "/admin/teams/ads") == 200
    assert ada("GET", "/admin/audit") == 200
    assert ada("POST", "/admin/teams", json={"name": "more"}) == 403
    assert ada("POST", "/admin/teams/ads/keys", json={}) == 403
    for nobody in ("nobody", "lost"):
        without = calls(nobody)
        assert without("GET", "/admin/teams") == 403
        assert without("GET", "/auth/session") == 200


def test_people_have_no_key_to_the_data_plane(staffed: Gateway, provider: str) -> None:
    body = {"model": "simulated", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    token = id_token(provider, "olga")
    answer = staffed.request("POST", "/v1/chat/completions", body, key=token)
    assert answer.status_code == 401
    assert token not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {},
    ],
)
def test_other_sites_pages_change_nothing(
    staffed: Gateway, browser: httpx.Client, headers: dict[str, str]
) -> None:
    sign_in(browser, "olga")
    del browser.headers["sec-fetch-site"]
    answer = browser.post("/admin/teams", json={"name": "forged"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "cross_site_request"
    assert browser.post("/auth/logout", headers=headers).status_code == 403
    assert browser.get("/admin/teams", headers=headers).status_code == 200
    assert staffed.request("GET", "/admin/teams/forged", key=ADMIN_KEY).status_code == 404
    own = {"origin": staffed.url}
    assert browser.post("/auth/logout", headers=own).status_code == 200


def test_a_key_beside_a_cookie_decides(staffed: Gateway, browser: httpx.Client) -> None:
    sign_in(browser, "olga")
    bearer = {"authorization": f"Bearer {TEAM_KEY}"}
    assert browser.get("/admin/teams", headers=bearer).status_code == 403
    bearer = {"authorization": "Bearer nonsense"}
    assert browser.get("/admin/teams", headers=bearer).status_code == 401


def test_a_login_is_answered_once_and_in_its_own_browser(
    staffed: Gateway, browser: httpx.Client
) -> None:
    start = browser.get("/auth/login")
    back = httpx.post(start.headers["location"], data={"sub": "olga"}).headers["location"]
    stolen = httpx.get(back)  # another browser: a login that was planted on it
    assert stolen.status_code == 401
    assert "set-cookie" not in stolen.headers
    again = browser.get(back)  # and the state is used up by that
    assert again.status_code == 401
    assert sign_in(browser, "olga").status_code == 303
    for state in ("", "made-up", "x" * 500):
        answer = browser.get("/auth/callback", params={"state": state, "code": "c"})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "login_failed"


def test_a_denied_login_is_a_401(staffed: Gateway, browser: httpx.Client) -> None:
    start = browser.get("/auth/login")
    back = httpx.post(start.headers["location"], data={"action": "deny"}).headers["location"]
    assert browser.get(back).status_code == 401


def forged_login(
    secured: Gateway, issuer: Issuer, change: Callable[[dict[str, Any], dict[str, str]], Any]
) -> httpx.Response:
    """A login whose ID token `change` makes of the honest claims; gives the callback's answer."""
    with httpx.Client(base_url=secured.url) as browser:
        start = browser.get("/auth/login")
        query = {k: v[0] for k, v in parse_qs(urlsplit(start.headers["location"]).query).items()}
        assert query["code_challenge_method"] == "S256"
        claims = issuer.claims(nonce=query["nonce"])
        code = secrets.token_urlsafe(8)
        made = change(claims, query) or claims
        issuer.codes[code] = (made, query["code_challenge"])
        params = {"state": query["state"], "code": code, **made.get("params", {})}
        return browser.get("/auth/callback", params=params)


def test_an_honest_login_with_the_other_provider_proves_itself(
    secured: Gateway, issuer: Issuer
) -> None:
    assert forged_login(secured, issuer, lambda claims, query: None).status_code == 303
    sent = issuer.forms[-1]
    assert sent["basic"].startswith("Basic ")
    assert sent["redirect_uri"] == f"{secured.url}/auth/callback"
    assert "client_secret" not in sent


FORGERIES: dict[str, Callable[[Issuer, dict[str, Any], dict[str, str]], Any]] = {
    "another nonce": lambda _, claims, __: {**claims, "nonce": "other"},
    "no nonce": lambda _, claims, __: {k: v for k, v in claims.items() if k != "nonce"},
    "another audience": lambda _, claims, __: {**claims, "aud": "other"},
    "the programs' audience": lambda _, claims, __: {**claims, "aud": "sluice-api"},
    "another issuer": lambda _, claims, __: {**claims, "iss": "https://evil.example"},
    "expired": lambda _, claims, __: {**claims, "exp": claims["iat"] - 600},
    "another party": lambda _, claims, __: {**claims, "azp": "other"},
    "another issuer in the answer": lambda _, claims, __: {
        **claims,
        "params": {"iss": "https://evil.example"},
    },
    "no token": lambda _, __, ___: {"token": 7},
    "nonsense": lambda _, __, ___: {"token": "a.b.c"},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_logins_open_no_session(secured: Gateway, issuer: Issuer, name: str) -> None:
    answer = forged_login(secured, issuer, lambda *given: FORGERIES[name](issuer, *given))
    assert answer.status_code == 401
    assert not [each for each in answer.headers.get_list("set-cookie") if "session" in each]


def test_a_code_that_was_given_out_for_another_login_is_refused(
    secured: Gateway, issuer: Issuer
) -> None:
    def injected(claims: dict[str, Any], query: dict[str, str]) -> None:
        query["code_challenge"] = challenge("the attacker's verifier")

    assert forged_login(secured, issuer, injected).status_code == 401


BAD_TOKENS: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"},
    "another audience": {"aud": "other"},
    "expired": {"exp": 1},
    "not yet": {"nbf": 4_000_000_000},
    "unknown key": {"header": {"kid": "made-up"}},
}


@pytest.mark.parametrize("path", ["/admin/teams", "/v1/usage?team_id=default", "/auth/session"])
@pytest.mark.parametrize("name", BAD_TOKENS)
def test_bad_tokens_are_a_401_that_says_why_and_shows_nothing(
    secured: Gateway, issuer: Issuer, path: str, name: str
) -> None:
    token = issuer.token(**BAD_TOKENS[name])
    answer = secured.request("GET", path, key=token)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer ")
    assert "invalid_token" in answer.headers["www-authenticate"]
    for part in token.split("."):
        assert part not in answer.text + str(answer.headers) + secured.log_text()


def test_good_tokens_of_every_key_and_audience_open_the_admin_api(
    secured: Gateway, issuer: Issuer
) -> None:
    for token in (
        *(issuer.token(key) for key in ("rsa", "ec", "ed")),
        issuer.token(aud="sluice-api"),
    ):
        assert secured.request("GET", "/admin/teams", key=token).status_code == 200
        who = secured.request("GET", "/auth/session", key=token).json()
        assert (who["actor"], who["name"], who["role"]) == ("person:subject-1", "Ada", "owner")


def test_without_a_provider_there_is_no_sign_in(gateway: Gateway, issuer: Issuer) -> None:
    for path in ("/auth/login", "/auth/session", "/auth/config"):
        assert gateway.request("GET", path, key=None).status_code == 404
    assert gateway.request("GET", "/admin/teams", key=issuer.token()).status_code == 401


def command(gateway: Gateway, home: Path, *arguments: str) -> subprocess.Popen[str]:
    """A `sluice` command of a person without a key."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "SLUICE_URL": gateway.url,
    }
    return subprocess.Popen(
        sluice(*arguments), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_line_signs_in_and_keeps_its_token_to_itself(
    secured: Gateway, issuer: Issuer, tmp_path: Path
) -> None:
    refused = command(secured, tmp_path, "team", "list")
    assert "sluice login" in refused.communicate(timeout=60)[1]
    with command(secured, tmp_path, "login", "--no-browser") as login:
        assert login.stdout is not None
        page = login.stdout.readline().strip()
        query = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
        back = query["redirect_uri"]
        assert back.startswith("http://127.0.0.1:")
        # What a page of another site sends to the port is not the answer that is waited for.
        assert httpx.get(back, params={"state": "x", "code": "planted"}).status_code == 200
        issuer.codes["cli"] = (issuer.claims(nonce=query["nonce"]), query["code_challenge"])
        assert httpx.get(back, params={"state": query["state"], "code": "cli"}).is_success
        assert login.wait(60) == 0
    file = tmp_path / ".config" / "sluice" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = command(secured, tmp_path, "team", "list")
    output = listed.communicate(timeout=60)
    assert listed.returncode == 0, output
    assert "default" in output[0]
    file.chmod(0o644)
    exposed = command(secured, tmp_path, "team", "list")
    assert "others may read it" in exposed.communicate(timeout=60)[1]


@pytest.mark.parametrize("change", [{"nonce": "other"}, {"error": "access_denied"}, {"code": ""}])
def test_the_command_line_takes_no_other_answer(
    secured: Gateway, issuer: Issuer, tmp_path: Path, change: dict[str, str]
) -> None:
    with command(secured, tmp_path, "login", "--no-browser") as login:
        assert login.stdout is not None
        page = login.stdout.readline().strip()
        query = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
        nonce = change.get("nonce", query["nonce"])
        issuer.codes["cli"] = (issuer.claims(nonce=nonce), query["code_challenge"])
        params = {"state": query["state"], "code": "cli", **change}
        httpx.get(query["redirect_uri"], params=params)
        assert login.wait(60) == 1
    assert not (tmp_path / ".config").exists()


def test_tokens_are_kept_by_gateway_and_forgotten_when_they_expire(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "tokens.json"
    assert saved_token(file, "http://a") is None
    save_token(file, "http://a", SavedToken("one", 4e9))
    save_token(file, "http://b", SavedToken("two", 4e9))
    save_token(file, "http://c", SavedToken("old", 1.0))
    assert [saved_token(file, f"http://{name}") for name in "abc"] == ["one", "two", None]
    file.write_text("nonsense")
    with pytest.raises(TokenFileError):
        saved_token(file, "http://a")
