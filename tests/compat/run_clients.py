"""Runs a folder of third-party client checks against a gateway of this checkout: `make compat`.

The folder (COMPAT_DIR, `../shared/compat` by default) holds `run.py`, which runs the clients, and
`upstream.py`, the model server that they are answered by. The gateway stands in between, in four
settings: same format on both sides and crossed, with and without what upstreams may lack.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.valkey import EmbeddedValkey
from sluice.migrations import migrate
from tests.harness.gateway import TEAM_KEY, Gateway, Process, free_port
from tests.servers import RunningServer

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM_KEY = "sk-upstream"

SETTINGS: dict[str, tuple[Sequence[str], str, str]] = {
    "same format": ((), "compat-model", "compat-claude"),
    "crossed": ((), "compat-claude", "compat-model"),
    "same format, bare upstream": (
        ("--no-responses", "--no-threads"),
        "compat-model",
        "compat-claude",
    ),
    "crossed, bare upstream": (
        ("--no-responses", "--no-threads"),
        "compat-claude",
        "compat-model",
    ),
}


def config(upstream_port: int, responses: bool) -> dict[str, Any]:
    """The models that the checks ask for, over the model server.

    Args:
        upstream_port: the model server's.
        responses: whether it has Responses, which are then passed through.
    """
    openai = {"kind": "openai", "api_key": UPSTREAM_KEY, "responses": responses}
    upstream = f"http://127.0.0.1:{upstream_port}"
    capabilities = ["chat", "completions", "tools", "vision", "json_schema", "reasoning"]
    common = {"context_length": 128_000, "default_max_tokens": 1024}
    return {
        "providers": {
            "oai": {**openai, "base_url": f"{upstream}/v1"},
            "ant": {"kind": "anthropic", "api_key": UPSTREAM_KEY, "base_url": upstream},
        },
        "models": [
            {
                "name": "compat-model",
                "capabilities": capabilities,
                "deployments": [{"provider": "oai", "model": "compat-model"}],
                **common,
            },
            {
                "name": "compat-claude",
                "capabilities": capabilities,
                "deployments": [{"provider": "ant", "model": "claude-opus-4-6"}],
                **common,
            },
            {
                "name": "compat-embed",
                "context_length": 8192,
                "capabilities": ["embeddings"],
                "deployments": [{"provider": "oai", "model": "compat-embed"}],
            },
        ],
    }


def run_setting(folder: Path, work: Path, name: str, servers: tuple[str, str]) -> bool:
    """Run all clients in one setting; whether every check passed."""
    options, model, anthropic_model = SETTINGS[name]
    port = free_port()
    command = [sys.executable, str(folder / "upstream.py"), "--port", str(port)]
    upstream = Process([*command, "--key", UPSTREAM_KEY, *options], {}, work / "upstream.log")
    gateway = Gateway(config(port, "--no-responses" not in options), *servers, work)
    upstream.start()
    try:
        gateway.start()
        print(f"== {name}", flush=True)
        checks = [sys.executable, str(folder / "run.py"), "--base-url", f"{gateway.url}/v1"]
        checks += ["--key", TEAM_KEY, "--embedding-model", "compat-embed"]
        checks += ["--model", model, "--anthropic-model", anthropic_model]
        checks += ["--cache", str(ROOT / ".cache" / "compat")]
        return subprocess.run([*checks, *sys.argv[1:]], check=False).returncode == 0
    finally:
        gateway.stop()
        upstream.stop()


def main() -> int:
    """Run every setting; the number of those with a failed check."""
    folder = Path(os.environ.get("COMPAT_DIR", ROOT / ".." / "shared" / "compat")).resolve()
    if not (folder / "run.py").exists():
        print("set COMPAT_DIR to the folder of the client checks (run.py, upstream.py)")
        return 2
    with tempfile.TemporaryDirectory(prefix="sluice-compat-") as directory:
        work = Path(directory)
        work.chmod(0o711)
        postgres = RunningServer(EmbeddedPostgres(work))
        valkey = RunningServer(EmbeddedValkey(work))
        for server in (postgres, valkey):
            server.start()
        try:
            asyncio.run(migrate(postgres.url))
            servers = (postgres.url, valkey.url)
            return sum(not run_setting(folder, work, name, servers) for name in SETTINGS)
        finally:
            valkey.stop()
            postgres.stop()


if __name__ == "__main__":
    sys.exit(main())
