"""A gateway with short patience, for tests of what it bears; and requests to all its endpoints."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fixtures import model, scripted_config
from tests.harness.gateway import TEAM_KEY, Gateway, Process, free_port, sluice
from tests.harness.issuer import AUDIENCE, CLIENT, Issuer
from tests.harness.upstream import Upstream

EVERYTHING = ["chat", "completions", "embeddings", "moderations"]

#: Limits of the gateway, in seconds.
HEADER_SECONDS, BODY_SECONDS, STALLED_SECONDS = 1.0, 1.0, 2.0

#: Operation, path, mode: everything that the data plane serves.
DATA_PLANE = [
    ("chat", "/v1/chat/completions", False),
    ("chat", "/v1/chat/completions", True),
    ("completions", "/v1/completions", False),
    ("completions", "/v1/completions", True),
    ("embeddings", "/v1/embeddings", False),
    ("messages", "/v1/messages", False),
    ("messages", "/v1/messages", True),
    ("responses", "/v1/responses", False),
    ("responses", "/v1/responses", True),
    ("moderations", "/v1/moderations", False),
]


def request_body(operation: str, name: str, marker: str, stream: bool, **more: Any) -> Any:
    """A body for an operation whose prompt is the marker."""
    turns = [{"role": "user", "content": marker}]
    body: dict[str, Any] = {"model": name}
    match operation:
        case "chat" | "messages":
            body |= {"messages": turns, "max_tokens": 20}
        case "completions":
            body |= {"prompt": marker, "max_tokens": 20}
        case "responses":
            body |= {"input": marker, "max_output_tokens": 20, "store": False}
        case _:
            body |= {"input": marker}
    if stream:
        body["stream"] = True
    return {**body, **more}


#: What people are, by the groups that their identity provider says they are in.
ROLES = [
    {"claim": "groups", "value": "owners", "role": "owner"},
    {"claim": "groups", "value": "auditors", "role": "auditor"},
    {"claim": "groups", "value": "search-admins", "role": "team_admin", "team": "search"},
    {"claim": "groups", "value": "lost", "role": "team_admin", "team": "no-such-team"},
]


def sign_in_config(issuer: str, port: int, **more: Any) -> dict[str, Any]:
    """The `oidc` section for a gateway on a port."""
    return {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret": "OIDC-CLIENT-SECRET",
        "audiences": [AUDIENCE],
        "public_url": f"http://127.0.0.1:{port}",
        "roles": ROLES,
        **more,
    }


def secured_config(upstream: Upstream) -> dict[str, Any]:
    """Models over the scripted upstream, by the kind of their provider."""
    config = scripted_config(upstream)
    config["models"] = [
        model("simulated", {"provider": "sim", "model": "sim"}),
        *(
            model(name, {"provider": provider, "model": "backend-model"}, capabilities=EVERYTHING)
            for name, provider in (
                ("vllm-alias", "pool"),
                ("openai-alias", "compatible"),
                ("anthropic-alias", "claude"),
                ("refused", "dead"),
            )
        ),
    ]
    config["providers"]["claude"] = {
        "kind": "anthropic",
        "api_key": "PROVIDER-SECRET-KEY",
        "base_url": upstream.url.removesuffix("/v1"),
    }
    config["server"] |= {
        "header_seconds": HEADER_SECONDS,
        "body_seconds": BODY_SECONDS,
        "stalled_reader_seconds": STALLED_SECONDS,
    }
    return config


@pytest.fixture(scope="session")
def secured_upstream() -> Iterator[Upstream]:
    """The scripted upstream behind `secured`."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    """The identity provider behind `secured`, which also forges."""
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="session")
def secured(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
    secured_upstream: Upstream,
    issuer: Issuer,
) -> Iterator[Gateway]:
    """One gateway with its billing consumer; see `secured_config`."""
    directory: Path = tmp_path_factory.mktemp("secured")
    port = free_port()
    config = secured_config(secured_upstream)
    config["oidc"] = sign_in_config(issuer.url, port)
    gateway = Gateway(config, new_database("secured"), new_redis(), directory, port=port)
    gateway.start()
    billing = Process(sluice("billing"), gateway.env, directory / "billing.log")
    billing.start()
    yield gateway
    billing.stop()
    gateway.stop()


def another_gateway(
    secured: Gateway, config: dict[str, Any], directory: Path, port: int | None = None
) -> Gateway:
    """Another gateway of the same installation, to be started and stopped by the test."""
    servers = secured.env["SLUICE_DATABASE_URL"], secured.env["SLUICE_REDIS_URL"]
    return Gateway(config, *servers, directory, port=port)


def head(
    *lines: str,
    first: str = "POST /v1/chat/completions HTTP/1.1",
    key: str | None = TEAM_KEY,
    host: str | None = "gateway.test",
    line_end: str = "\r\n",
) -> bytes:
    """The head of a raw request."""
    common = [first]
    common += [] if host is None else [f"host: {host}"]
    common += [] if key is None else [f"authorization: Bearer {key}"]
    return (line_end.join([*common, *lines]) + line_end * 2).encode("latin-1")


def talk(gateway: Gateway, data: bytes, seconds: float = 5.0) -> tuple[bytes, bool]:
    """Send bytes; give what came back until the gateway closed, and whether it did in time."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=seconds) as connection:
        with suppress(OSError):
            connection.sendall(data)
        try:
            while piece := connection.recv(65536):
                received += piece
        except TimeoutError:
            return bytes(received), False
        except ConnectionError:
            pass
    return bytes(received), True


def statuses(received: bytes) -> list[int]:
    """The status of every response in the bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]
