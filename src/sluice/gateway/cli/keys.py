"""`sluice key`."""

from __future__ import annotations

from typing import Any

import click

from sluice.gateway.cli.admin_api import call, listed, path, update
from sluice.gateway.cli.limit_flags import given, limit_flags, patch, unset_flag
from sluice.gateway.cli.running import show


@click.group()
def key() -> None:
    """API keys, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@key.command("create")
@click.argument("team_name", metavar="TEAM")
@click.option("--name", default="", help="What the key is for.")
@click.option("--expires-at", help="RFC 3339 time.")
@limit_flags
def create_key(team_name: str, **members: Any) -> None:
    """Create a key for TEAM (name or id); it is shown this once."""
    show(call("POST", path("admin", "teams", team_name, "keys"), given(**members)))


@key.command("list")
@click.option("--team", "team_name", help="Name or id.")
def list_keys(team_name: str | None) -> None:
    """List keys."""
    show(listed("/admin/keys", {"team_id": team_name}))


@key.command("show")
@click.argument("key_id")
def show_key(key_id: str) -> None:
    """Show a key's record."""
    show(call("GET", _of(key_id)))


@key.command("update")
@click.argument("key_id")
@click.option("--name", help="What the key is for.")
@click.option("--expires-at", help="RFC 3339 time.")
@limit_flags
@unset_flag("expires_at")
def update_key(key_id: str, unset: tuple[str, ...], **members: Any) -> None:
    """Change a key."""
    show(update(_of(key_id), patch(unset, **members)))


@key.command("revoke")
@click.argument("key_id")
def revoke_key(key_id: str) -> None:
    """Refuse a key from now on."""
    show(call("DELETE", _of(key_id)))


@key.command("rotate")
@click.argument("key_id")
@click.option("--overlap-seconds", default=0, show_default=True, type=click.IntRange(0))
def rotate_key(key_id: str, overlap_seconds: int) -> None:
    """Replace a key; the old one works for the overlap."""
    body = {"overlap_seconds": overlap_seconds}
    show(call("POST", path("admin", "keys", key_id, "rotate"), body))


def _of(key_id: str) -> str:
    return path("admin", "keys", key_id)
