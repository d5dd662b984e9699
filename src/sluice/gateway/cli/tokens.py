"""`sluice token`."""

from __future__ import annotations

from typing import Any, get_args

import click

from sluice.gateway.cli.admin_api import call, listed, path
from sluice.gateway.cli.limit_flags import given
from sluice.gateway.cli.running import show
from sluice.gateway.tenancy.roles import PERMISSIONS, Role


@click.group()
def token() -> None:
    """Admin tokens, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@token.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--organisation", help="Confined to this one; name or id.")
@click.option("--team", help="Confined to this one; name or id.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(sorted(PERMISSIONS)),
    multiple=True,
    help="Narrowed to this; repeatable. All of the role by default.",
)
@click.option("--expires-at", help="RFC 3339 time.")
def create_token(name: str, **members: Any) -> None:
    """Create a token for NAME (what it is for); it is shown this once."""
    show(call("POST", "/admin/tokens", {"name": name, **given(**members)}))


@token.command("list")
def list_tokens() -> None:
    """List tokens."""
    show(listed("/admin/tokens"))


@token.command("show")
@click.argument("token_id")
def show_token(token_id: str) -> None:
    """Show a token's record."""
    show(call("GET", _of(token_id)))


@token.command("revoke")
@click.argument("token_id")
def revoke_token(token_id: str) -> None:
    """Refuse a token from now on."""
    show(call("DELETE", _of(token_id)))


def _of(token_id: str) -> str:
    return path("admin", "tokens", token_id)
