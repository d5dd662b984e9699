"""The command line: where each command is."""

from __future__ import annotations

import click

from sluice import __version__
from sluice.gateway.cli.commands import Commands

_HERE = "sluice.gateway.cli"


@click.group(
    cls=Commands,
    places={
        "audit": f"{_HERE}.reports:audit",
        "batch": f"{_HERE}.batch:batch",
        "billing": f"{_HERE}.ledger:billing",
        "config": f"{_HERE}.configuration:config",
        "key": f"{_HERE}.keys:key",
        "limits": f"{_HERE}.reports:limits",
        "login": f"{_HERE}.login:login",
        "migrate": f"{_HERE}.ledger:migrate",
        "models": f"{_HERE}.models:models",
        "org": f"{_HERE}.organisations:organisation",
        "router": f"{_HERE}.router:router",
        "routing": f"{_HERE}.routing:routing",
        "serve": f"{_HERE}.serving:serve",
        "simulate": "sluice.gateway.simulate_command:simulate_command",
        "simulator": f"{_HERE}.serving:simulator",
        "team": f"{_HERE}.teams:team",
        "token": f"{_HERE}.tokens:token",
        "up": f"{_HERE}.one_machine:up",
        "usage": f"{_HERE}.reports:usage",
        "worker": "sluice.gateway.worker_command:worker",
    },
)
@click.version_option(__version__, prog_name="sluice")
def main() -> None:
    """An LLM gateway: one OpenAI-compatible door to every model a company pays for."""
