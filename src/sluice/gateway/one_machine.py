"""What `sluice up` does: everything on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import click
import msgspec

from sluice.gateway.config_file import load_config
from sluice.gateway.connections import connect_database
from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.valkey import EmbeddedValkey
from sluice.gateway.environment import Environment
from sluice.gateway.logs import configure_logs
from sluice.gateway.parts import batch_part, billing_part, gateway_part, router_part
from sluice.gateway.ports import check_port
from sluice.gateway.settings import Config
from sluice.gateway.supervisor import Supervisor
from sluice.gateway.tenancy.first_keys import FIRST_TEAM_MAX_TOKENS, FirstKeys
from sluice.migrations import migrate


async def up(config_path: Path | None, host: str, port: int, data_dir: Path, workers: int) -> None:
    """Run everything on this machine until told to stop."""
    configure_logs()
    config = load_config(config_path)
    given = Environment.read()
    check_port(host, port)
    postgres, valkey = EmbeddedPostgres(data_dir), EmbeddedValkey(data_dir)
    async with Supervisor() as supervisor:
        for server in (postgres, valkey):
            await asyncio.to_thread(server.prepare)
            await supervisor.start(server.part())
        env = {
            **os.environ,
            "SLUICE_DATABASE_URL": postgres.url,
            "SLUICE_REDIS_URL": valkey.url,
            "SLUICE_SPOOL_DIR": os.path.abspath(data_dir / "spool"),
            "SLUICE_FILES_DIR": os.path.abspath(data_dir / "files"),
        }
        await migrate(postgres.url)
        new_keys = await _first_keys(postgres.url, given)
        await supervisor.start(billing_part(env))
        await supervisor.start(
            gateway_part(config, config_path, host, port, env, "gateway", workers)
        )
        await supervisor.start(batch_part(config, config_path, env))
        await supervisor.start(router_part(config_path, env))
        _greet(config, host, port, given, new_keys)
        await supervisor.wait()


async def _first_keys(database_url: str, given: Environment) -> dict[str, str]:
    """See that there are a first team's key and an admin token; those made now, by name."""
    pool = await connect_database(database_url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        first = FirstKeys(pool)
        made: dict[str, str] = {}
        team_key = await first.team_key(given.bootstrap_key, FIRST_TEAM_MAX_TOKENS)
        if team_key is not None:
            made["team"] = team_key
        if given.admin_key is None and (token := await first.admin_token()) is not None:
            made["admin"] = token
        return made


def _greet(
    config: Config, host: str, port: int, given: Environment, new_keys: Mapping[str, str]
) -> None:
    """Print where it is and how to call it. Keys that the caller set are not repeated."""
    url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    lines = [f"Sluice is up at {url}/v1"]
    key = '"$SLUICE_BOOTSTRAP_KEY"' if given.bootstrap_key else '"$SLUICE_KEY"'
    if "team" in new_keys and not given.bootstrap_key:
        key = new_keys["team"]
        lines.append(f"First team's key (shown this once): {key}")
    if "admin" in new_keys:
        lines.append(f"Admin key (shown this once): {new_keys['admin']}")
    model = config.models[0].name if config.models else "MODEL"
    body = msgspec.json.encode(
        {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    ).decode()
    lines += [
        "Try it:",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
        f" -H \"Authorization: Bearer {key.strip(chr(34))}\" -d '{body}'",
    ]
    click.echo("\n".join(lines))
    sys.stdout.flush()
