"""The command line: `sluice <command>`."""

from sluice.gateway.cli.main import main

__all__ = ["main"]
