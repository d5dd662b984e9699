"""`sluice routing`."""

from __future__ import annotations

from typing import Any

import click
import yaml

from sluice.gateway.cli.admin_api import call, listed, path, replace
from sluice.gateway.cli.running import show

_team_option = click.option("--team", help="Of this team's requests only; id or name.")


@click.group()
def routing() -> None:
    """Where requests go, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@routing.command("show")
@click.argument("alias", required=False)
@_team_option
@click.option("--versions", is_flag=True, help="All versions that are or were in force.")
def show_routing(alias: str | None, team: str | None, versions: bool) -> None:
    """Show what holds for ALIAS; all documents by default."""
    if alias is None:
        show(listed("/admin/routing", {"team": team}))
        return
    more = ("versions",) if versions else ()
    show(call("GET", path("admin", "routing", alias, *more), query={"team": team}))


@routing.command("set")
@click.argument("alias")
@click.argument("file", type=click.File("rb"), required=False)
@_team_option
@click.option("--weight", "weights", multiple=True, metavar="DEPLOYMENT=WEIGHT", help="Instead.")
def set_routing(alias: str, file: Any, team: str | None, weights: tuple[str, ...]) -> None:
    """Put the document in FILE (YAML or JSON; `-` reads standard input) in force for ALIAS, or
    weights of its deployments. If somebody else changes it meanwhile, nothing is done."""
    show(replace(path("admin", "routing", alias), _document(file, weights), {"team": team}))


@routing.command("preview")
@click.argument("alias")
@click.argument("file", type=click.File("rb"), required=False)
@_team_option
@click.option("--weight", "weights", multiple=True, metavar="DEPLOYMENT=WEIGHT", help="Instead.")
def preview_routing(alias: str, file: Any, team: str | None, weights: tuple[str, ...]) -> None:
    """Show where the last 1,000 requests to ALIAS would have gone, and at what cost."""
    query = {"team": team, "dry_run": "true"}
    show(call("PUT", path("admin", "routing", alias), _document(file, weights), query))


@routing.command("rollback")
@click.argument("alias")
@_team_option
@click.option("--version", type=click.IntRange(0), help="By default the one before; 0: none.")
def roll_back_routing(alias: str, team: str | None, version: int | None) -> None:
    """Put an earlier version of ALIAS's document in force again."""
    where = path("admin", "routing", alias, "rollback")
    show(call("POST", where, {"version": version}, {"team": team}))


def _document(file: Any, weights: tuple[str, ...]) -> dict[str, Any]:
    if (file is None) == (not weights):
        raise click.UsageError("give FILE, or --weight for each deployment")
    if file is None:
        return {"weights": dict(map(_weight, weights))}
    try:
        document = yaml.safe_load(file.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file.name} can't be read: {error}") from None
    if not isinstance(document, dict):
        raise click.ClickException(f"{file.name} holds no routing document")
    return document


def _weight(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal():
        raise click.UsageError(f"`{text}` is not DEPLOYMENT=WEIGHT")
    return name, int(number)
