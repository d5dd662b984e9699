"""`sluice team`."""

from __future__ import annotations

from typing import Any

import click

from sluice.gateway.cli.admin_api import call, listed, path, update
from sluice.gateway.cli.limit_flags import given, limit_flags, patch, unset_flag
from sluice.gateway.cli.running import show


@click.group()
def team() -> None:
    """Teams, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@team.command("create")
@click.argument("name")
@click.option("--organisation", help="Name or id; the default one by default.")
@limit_flags
def create_team(name: str, **members: Any) -> None:
    """Create a team."""
    show(call("POST", "/admin/teams", {"name": name, **given(**members)}))


@team.command("list")
@click.option("--organisation", help="Name or id; all by default.")
def list_teams(organisation: str | None) -> None:
    """List teams."""
    show(listed("/admin/teams", {"organisation": organisation}))


@team.command("show")
@click.argument("name")
def show_team(name: str) -> None:
    """Show a team, by name or id."""
    show(call("GET", _of(name)))


@team.command("update")
@click.argument("name")
@click.option("--rename", help="Its new name.")
@limit_flags
@unset_flag()
def update_team(name: str, rename: str | None, unset: tuple[str, ...], **members: Any) -> None:
    """Change a team, by name or id."""
    show(update(_of(name), patch(unset, name=rename, **members)))


@team.command("archive")
@click.argument("name")
def archive_team(name: str) -> None:
    """Archive a team: its keys are refused from now on, its usage stays."""
    show(call("DELETE", _of(name)))


def _of(name: str) -> str:
    return path("admin", "teams", name)
