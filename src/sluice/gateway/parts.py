"""The processes of an installation, as parts for the supervisor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from sluice.gateway.settings import Config
from sluice.gateway.supervisor import Part

_SLUICE = (sys.executable, "-m", "sluice")

#: Seconds beyond the drain deadline before a gateway that does not stop is killed.
_GRACE_SECONDS = 10.0


def billing_part(env: Mapping[str, str]) -> Part:
    """The consumer of the usage stream."""
    return Part(name="billing", command=[*_SLUICE, "billing"], env=env)


def gateway_part(
    config: Config,
    config_path: Path | None,
    host: str,
    port: int,
    env: Mapping[str, str],
    name: str,
    workers: int = 1,
) -> Part:
    """A gateway, of so many processes."""
    arguments = ["serve", "--host", host, "--port", str(port), "--workers", str(workers)]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    probe = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else host

    async def answers() -> bool:
        return await _status(f"http://{probe}:{port}/health/live") == 200

    return Part(
        name=name,
        command=[*_SLUICE, *arguments],
        env=env,
        answers=answers,
        stop_deadline=config.server.drain_seconds + _GRACE_SECONDS,
    )


def batch_part(config: Config, config_path: Path | None, env: Mapping[str, str]) -> Part:
    """A worker for batch jobs."""
    arguments = ["batch", "run"]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    return Part(
        name="batch",
        command=[*_SLUICE, *arguments],
        env=env,
        stop_deadline=config.server.drain_seconds + _GRACE_SECONDS,
    )


def router_part(config_path: Path | None, env: Mapping[str, str]) -> Part:
    """The loop that teaches `auto`."""
    arguments = ["router", "loop"]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    return Part(name="router", command=[*_SLUICE, *arguments], env=env)


async def _status(url: str) -> int | None:
    timeout = aiohttp.ClientTimeout(total=2)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
