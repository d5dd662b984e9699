"""The command line: `sluice <command>`."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import click
import uvloop
from redis.exceptions import RedisError

from sluice import __version__
from sluice.gateway import operations
from sluice.gateway.config_file import load_config
from sluice.gateway.embedded import EmbeddedServerError
from sluice.gateway.engine_options import engine_options, engine_settings, simulator_config
from sluice.gateway.logs import configure_logs
from sluice.gateway.server import PortTaken
from sluice.gateway.settings import ConfigError
from sluice.gateway.simulate_command import simulate_command
from sluice.gateway.supervisor import PartFailedError
from sluice.gateway.worker_command import worker
from sluice.migrations import MigrationError

#: Everything that may go wrong at start and has a cause to name; the rest is a bug.
_EXPLAINED = (
    ConfigError,
    EmbeddedServerError,
    MigrationError,
    PartFailedError,
    PortTaken,
    operations.CommandError,
)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; explain what is known to go wrong in one line, without a traceback."""
    try:
        return uvloop.run(work)
    except _EXPLAINED as error:
        raise click.ClickException(str(error)) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise click.ClickException(f"the database refused: {error}") from None
    except RedisError as error:
        raise click.ClickException(f"Redis: {error}") from None
    except KeyboardInterrupt:
        sys.exit(130)


_config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SLUICE_CONFIG",
    help="YAML file; without one: providers by the keys in the environment, else the simulator.",
)
_host_option = click.option("--host", default="127.0.0.1", show_default=True)
_port_option = click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(1, 65535)
)


@click.group()
@click.version_option(__version__, prog_name="sluice")
def main() -> None:
    """An LLM gateway: one OpenAI-compatible door to every model a company pays for."""


@main.command()
@_config_option
@_host_option
@_port_option
@click.option(
    "--data-dir",
    default=".sluice",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where Postgres and Valkey keep their data.",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
def up(config_path: Path | None, host: str, port: int, data_dir: Path, workers: int) -> None:
    """Run everything on this machine: Postgres, Valkey, gateway and billing."""
    _run(operations.up(config_path, host, port, data_dir, workers))


@main.command()
@_config_option
@_host_option
@_port_option
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
def serve(config_path: Path | None, host: str, port: int, workers: int) -> None:
    """Run the gateway against SLUICE_DATABASE_URL and SLUICE_REDIS_URL."""
    configure_logs()
    _run(operations.serve(config_path, host, port, workers))


@main.command()
def billing() -> None:
    """Move usage events from the stream into Postgres."""
    configure_logs()
    _run(operations.billing())


@main.command()
def batch() -> None:
    """Run batch jobs. Not in this release."""
    raise click.ClickException("the batch tier is not in this release")


@main.command()
def migrate() -> None:
    """Bring the database's schema up to date."""
    for version in _run(operations.migrate_database()):
        click.echo(f"applied {version}")


@main.command()
@_host_option
@click.option("--port", default=8101, show_default=True, type=click.IntRange(1, 65535))
@click.option("--model", default="simulator", show_default=True, help="Name that it serves.")
@click.option("--ttft-ms", default=20.0, show_default=True, help="Time to first token.")
@click.option("--itl-ms", default=5.0, show_default=True, help="Time between tokens.")
@engine_options
def simulator(
    host: str, port: int, model: str, ttft_ms: float, itl_ms: float, **engine: Any
) -> None:
    """Serve a vLLM look-alike over HTTP; any option from `--kv-blocks` on gives it an engine."""
    configure_logs()
    config = simulator_config(ttft_ms, itl_ms, engine_settings(engine))
    _run(operations.simulator(host, port, model, config))


main.add_command(worker)
main.add_command(simulate_command)


@main.group()
def config() -> None:
    """The configuration file."""


@config.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def check_config(file: Path) -> None:
    """Validate FILE."""
    try:
        loaded = load_config(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{file}: ok, {len(loaded.providers)} providers, {len(loaded.models)} models")


@main.group()
def team() -> None:
    """Teams, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@team.command("create")
@click.argument("name")
@click.option("--default-max-tokens", type=click.IntRange(1))
def create_team(name: str, default_max_tokens: int | None) -> None:
    """Create a team."""
    body = {"name": name, "default_max_tokens": default_max_tokens}
    _print(operations.admin("POST", "/admin/teams", body))


@team.command("list")
def list_teams() -> None:
    """List teams."""
    _print(operations.admin("GET", "/admin/teams"))


@main.group()
def key() -> None:
    """API keys, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@key.command("create")
@click.argument("team_name", metavar="TEAM")
@click.option("--name", default="", help="What the key is for.")
@click.option("--expires-at", help="RFC 3339 time.")
def create_key(team_name: str, name: str, expires_at: str | None) -> None:
    """Create a key for TEAM (name or id); it is shown this once."""
    body = {"name": name, "expires_at": expires_at}
    _print(operations.admin("POST", f"/admin/teams/{team_name}/keys", body))


@key.command("list")
@click.option("--team", "team_name", help="Name or id.")
def list_keys(team_name: str | None) -> None:
    """List keys."""
    _print(operations.admin("GET", "/admin/keys", query={"team_id": team_name}))


@key.command("revoke")
@click.argument("key_id")
def revoke_key(key_id: str) -> None:
    """Refuse a key from now on."""
    _print(operations.admin("DELETE", f"/admin/keys/{key_id}"))


@key.command("rotate")
@click.argument("key_id")
@click.option("--overlap-seconds", default=0, show_default=True, type=click.IntRange(0))
def rotate_key(key_id: str, overlap_seconds: int) -> None:
    """Replace a key; the old one works for the overlap."""
    body = {"overlap_seconds": overlap_seconds}
    _print(operations.admin("POST", f"/admin/keys/{key_id}/rotate", body))


@main.command()
@click.option("--team", "team_name", required=True, help="Name or id.")
@click.option("--date", help="YYYY-MM-DD, UTC; today by default.")
def usage(team_name: str, date: str | None) -> None:
    """A team's usage on a day."""
    _print(operations.admin("GET", "/v1/usage", query={"team_id": team_name, "date": date}))


def _print(work: Coroutine[Any, Any, str]) -> None:
    click.echo(_run(work))
