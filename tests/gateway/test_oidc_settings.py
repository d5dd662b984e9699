"""The `oidc` and `egress` sections: what they refuse, and what they become."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.gateway.config_file import load_config
from sluice.gateway.oidc.assembly import to_the_issuer
from sluice.gateway.settings import Config
from sluice.gateway.startup_errors import ConfigError

BASE: dict[str, Any] = {
    "providers": {"sim": {"kind": "simulator"}},
    "models": [
        {
            "name": "m",
            "context_length": 1000,
            "capabilities": ["chat"],
            "deployments": [{"provider": "sim", "model": "sim"}],
        }
    ],
}
OIDC: dict[str, Any] = {
    "issuer": "https://login.example.com",
    "client_id": "sluice",
    "public_url": "https://llm.example.com/",
    "roles": [{"value": "owners", "role": "owner"}],
}


def loaded(tmp_path: Path, **sections: Any) -> Config:
    """A configuration with the sections."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**BASE, **sections}))
    return load_config(file, {})


def test_sign_in_is_off_unless_configured(tmp_path: Path) -> None:
    assert loaded(tmp_path).oidc is None


def test_a_plain_section_becomes_a_public_client(tmp_path: Path) -> None:
    oidc = loaded(tmp_path, oidc=OIDC).oidc
    assert oidc is not None
    client = oidc.client()
    assert client.secret is None
    assert client.redirect_uri == "https://llm.example.com/auth/callback"
    assert client.origin == "https://llm.example.com"
    assert [(grant.claim, grant.value) for grant in oidc.grants()] == [("groups", "owners")]


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://login.example.com"},
        {"issuer": "login.example.com"},
        {"issuer": "ftp://login.example.com"},
        {"client_id": ""},
        {"public_url": "llm.example.com"},
        {"scopes": ["profile"]},
        {"roles": []},
        {"roles": [{"value": "x", "role": "team_admin"}]},
        {"roles": [{"value": "x", "role": "root"}]},
        {"roles": [{"value": "", "role": "owner"}]},
        {"session_hours": 0},
        {"unknown": 1},
    ],
)
def test_what_could_not_work_or_would_be_unsafe_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"oidc"):
        loaded(tmp_path, oidc={**OIDC, **change})


def test_an_issuer_on_this_machine_may_do_without_encryption(tmp_path: Path) -> None:
    assert loaded(tmp_path, oidc={**OIDC, "issuer": "http://127.0.0.1:9000"}).oidc is not None


def test_the_clients_secret_is_among_those_that_must_appear_nowhere(tmp_path: Path) -> None:
    config = loaded(tmp_path, oidc={**OIDC, "client_secret": "hush-hush"})
    assert "hush-hush" in config.secrets()


def test_the_issuers_own_host_and_port_may_be_reached(tmp_path: Path) -> None:
    policy = loaded(tmp_path, egress={"only_hosts": ["hooks.example.com"]}).egress.policy()
    widened = to_the_issuer(policy, "https://login.internal:8443")
    assert widened.allow_hosts == ("login.internal",)
    assert widened.ports == {80, 443, 8443}
    assert widened.only_hosts == ()
    assert not widened.plain_http
    assert policy.only_hosts == ("hooks.example.com",)


def test_egress_becomes_a_policy(tmp_path: Path) -> None:
    given = {"allow_networks": ["10.0.0.0/8", "fd00::/8"], "allow_hosts": ["a.internal"]}
    policy = loaded(tmp_path, egress={**given, "plain_http": False, "ports": [443]}).egress.policy()
    assert policy.allow_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert policy.allow_hosts == ("a.internal",)
    assert policy.ports == {443}
    assert not policy.plain_http


@pytest.mark.parametrize(
    "given", [{"allow_networks": ["10.0.0.1/8"]}, {"ports": []}, {"timeout_seconds": 0}, {"x": 1}]
)
def test_an_egress_section_that_is_none_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="egress"):
        loaded(tmp_path, egress=given)
