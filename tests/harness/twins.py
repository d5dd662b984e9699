"""Two gateways that share their Redis and their ledger, and requests with a key to them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import redis as redis_client

from sluice.gateway.secrets import key_hash
from tests.contract.scripts import ask as chat_body
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.upstream import Call, Upstream, answer_in_full, chunk

GRACE_SECONDS, LEASE_SECONDS, MAX_BYTES = 1.5, 1.0, 400_000

#: Operation, path and mode of everything that the pipeline serves.
OPERATIONS = [
    ("chat", "/v1/chat/completions", False),
    ("chat", "/v1/chat/completions", True),
    ("completions", "/v1/completions", False),
    ("completions", "/v1/completions", True),
    ("embeddings", "/v1/embeddings", False),
    ("moderations", "/v1/moderations", False),
    ("messages", "/v1/messages", False),
    ("messages", "/v1/messages", True),
    ("responses", "/v1/responses", False),
    ("responses", "/v1/responses", True),
]

#: Models by the kind of their provider, and what each can do.
MODELS = {
    "vllm": ["chat", "completions", "embeddings"],
    "compatible": ["chat", "completions", "embeddings", "moderations"],
    "claude": ["chat"],
}


def keyed_config(url: str, **idempotency: Any) -> dict[str, Any]:
    """A gateway's configuration, before an upstream that is known as each kind."""
    base = url.removesuffix("/v1")
    return {
        "providers": {
            "vllm": {"kind": "vllm", "replicas": [base]},
            "compatible": {"kind": "openai", "api_key": "any", "base_url": url},
            "claude": {"kind": "anthropic", "api_key": "any", "base_url": base},
        },
        "models": [
            model(name, {"provider": name, "model": "backend-model"}, capabilities=capabilities)
            for name, capabilities in MODELS.items()
        ],
        "dispatch": {"attempts": 1, "breaker": {"min_calls": 1_000_000}},
        "server": {"drain_seconds": 5, "heartbeat_seconds": 0.5},
        "idempotency": {
            "grace_seconds": GRACE_SECONDS,
            "lease_seconds": LEASE_SECONDS,
            "max_bytes": MAX_BYTES,
            **idempotency,
        },
    }


def body_of(operation: str, name: str, marker: str, stream: bool = False) -> dict[str, Any]:
    """A request's body whose prompt is the marker."""
    members: dict[str, Any] = {"model": name}
    match operation:
        case "chat" | "messages":
            members = chat_body(marker, name)
        case "completions":
            members |= {"prompt": marker, "max_tokens": 50}
        case "responses":
            members |= {"input": marker, "max_output_tokens": 50}
        case _:
            members |= {"input": marker}
    return members | ({"stream": True} if stream else {})


@dataclass
class Slow:
    """A chat stream that says a word, and goes on when it is told to.

    Attributes:
        words: said in all.
    """

    words: int = 3
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, call: Call) -> None:
        name = call.json["model"]
        call.start_stream()
        call.event(chunk(name, {"role": "assistant", "content": "word "}))
        while not self.go_on.wait(0.02):
            call.event(chunk(name, {"content": ""}))  # notices a gateway that has gone
        for _ in range(self.words - 1):
            call.event(chunk(name, {"content": "word "}))
        call.event(chunk(name, {}, "stop"))
        call.event("[DONE]")
        call.end()


@dataclass
class Twins:
    """See the module."""

    one: Gateway
    other: Gateway
    upstream: Upstream

    def post(
        self,
        key: str,
        body: Any,
        path: str = "/v1/chat/completions",
        gateway: Gateway | None = None,
        team_key: str = TEAM_KEY,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Ask with a key, and read the answer."""
        sent = {"idempotency-key": key, **(headers or {})}
        return (gateway or self.one).request("POST", path, body, team_key, sent)

    def rows(self, request_id: str) -> list[dict[str, Any]]:
        """What the ledger has of a request now."""
        path = f"/v1/usage/records?request_id={request_id}"
        found: list[dict[str, Any]] = self.one.api("GET", path, key=ADMIN_KEY)["data"]
        return found

    def redis(self) -> redis_client.Redis:
        """A client of their Redis."""
        return redis_client.Redis.from_url(self.one.env["SLUICE_REDIS_URL"])

    def limit(self, team_key: str, limits: dict[str, Any]) -> None:
        """Set a key's limits."""

        async def work() -> None:
            connection = await asyncpg.connect(self.one.env["SLUICE_DATABASE_URL"])
            await connection.execute(
                "UPDATE api_keys SET limits = $1 WHERE hash = $2",
                json.dumps(limits),
                key_hash(team_key),
            )
            await connection.close()

        asyncio.run(work())

    def new_team(self, name: str) -> str:
        """Makes a team, and gives a key of it."""
        team = self.one.api("POST", "/admin/teams", {"name": name}, ADMIN_KEY)
        made = self.one.api("POST", f"/admin/teams/{team['id']}/keys", {"name": "k"}, ADMIN_KEY)
        return str(made["key"])


def start_twins(start_gateway: StartGateway, directory: Path) -> Iterator[Twins]:
    """Start them, and end what is not the session's."""
    upstream = Upstream()
    config = keyed_config(upstream.url)
    one = start_gateway("idempotency", config)
    other = another(one, config, directory, "other")
    other.start()
    yield Twins(one, other, upstream)
    other.stop()
    upstream.close()


def another(one: Gateway, config: dict[str, Any], directory: Path, name: str) -> Gateway:
    """One more gateway beside one, not yet started."""
    return Gateway(
        config, one.env["SLUICE_DATABASE_URL"], one.env["SLUICE_REDIS_URL"], directory, name
    )


def answer_all(call: Call) -> None:
    """What an honest upstream says, moderations included."""
    if call.path.endswith("/moderations"):
        result = {"flagged": False, "categories": {}, "category_scores": {}}
        body = {"id": "modr-1", "model": call.json["model"], "results": [result]}
        call.respond(200, body)
    else:
        answer_in_full(call)


def text_of(stream: str) -> str:
    """The text of a chat stream's events."""
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
