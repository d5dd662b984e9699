"""`sluice billing` and `sluice migrate`: what stands between the usage stream and the ledger."""

from __future__ import annotations

import click

from sluice.gateway import ledger_operations
from sluice.gateway.cli.running import run
from sluice.gateway.logs import configure_logs


@click.command()
def billing() -> None:
    """Move usage events from the stream into Postgres."""
    configure_logs()
    run(ledger_operations.billing())


@click.command()
def migrate() -> None:
    """Bring the database's schema up to date."""
    for version in run(ledger_operations.migrate_database()):
        click.echo(f"applied {version}")
