"""`sluice usage`, `sluice audit`, `sluice limits`: what was spent, changed, and is allowed."""

from __future__ import annotations

import click

from sluice.gateway.cli.admin_api import call, call_as, listed
from sluice.gateway.cli.running import show


@click.command()
@click.option("--team", "team_name", required=True, help="Name or id.")
@click.option("--date", help="YYYY-MM-DD, UTC; today by default.")
def usage(team_name: str, date: str | None) -> None:
    """A team's usage on a day."""
    show(call("GET", "/v1/usage", query={"team_id": team_name, "date": date}))


@click.command()
@click.option("--actor", help="token:ID, person:SUBJECT or environment.")
@click.option("--action", help="Such as team.update.")
@click.option("--object-type", type=click.Choice(["organisation", "team", "key", "token"]))
@click.option("--object-id")
@click.option("--organisation", help="Name or id.")
@click.option("--team", help="Name or id.")
@click.option("--from", "start", help="RFC 3339 time, or a date; inclusive.")
@click.option("--to", "end", help="RFC 3339 time, or a date; exclusive.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
def audit(start: str | None, end: str | None, limit: int, **filters: str | None) -> None:
    """Who changed what, newest first."""
    show(listed("/admin/audit", {**filters, "from": start, "to": end}, limit))


@click.command()
@click.option("--key", envvar="SLUICE_KEY", required=True, help="A team's key, or SLUICE_KEY.")
def limits(key: str) -> None:
    """A key's limits, and what remains of them."""
    show(call_as(key, "/v1/limits"))
