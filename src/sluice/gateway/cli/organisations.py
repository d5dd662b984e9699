"""`sluice org`."""

from __future__ import annotations

from typing import Any

import click

from sluice.gateway.cli.admin_api import call, listed, path, update
from sluice.gateway.cli.limit_flags import given, limit_flags, patch, unset_flag
from sluice.gateway.cli.running import show


@click.group("org")
def organisation() -> None:
    """Organisations, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@organisation.command("create")
@click.argument("name")
@click.option("--time-zone", help="IANA name, where budgets' periods begin; UTC by default.")
@limit_flags
def create_organisation(name: str, **members: Any) -> None:
    """Create an organisation."""
    show(call("POST", "/admin/organisations", {"name": name, **given(**members)}))


@organisation.command("list")
def list_organisations() -> None:
    """List organisations."""
    show(listed("/admin/organisations"))


@organisation.command("show")
@click.argument("name")
def show_organisation(name: str) -> None:
    """Show an organisation, by name or id."""
    show(call("GET", _of(name)))


@organisation.command("update")
@click.argument("name")
@click.option("--rename", help="Its new name.")
@click.option("--time-zone", help="IANA name.")
@limit_flags
@unset_flag()
def update_organisation(
    name: str, rename: str | None, unset: tuple[str, ...], **members: Any
) -> None:
    """Change an organisation, by name or id."""
    show(update(_of(name), patch(unset, name=rename, **members)))


@organisation.command("archive")
@click.argument("name")
def archive_organisation(name: str) -> None:
    """Archive an organisation that has no teams left."""
    show(call("DELETE", _of(name)))


def _of(name: str) -> str:
    return path("admin", "organisations", name)
