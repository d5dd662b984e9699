"""Commands are imported when they are asked for, and with them what they need only."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from sluice.gateway.cli import main

CONTEXT = click.Context(main)


@pytest.mark.parametrize("name", main.list_commands(CONTEXT))
def test_a_command_has_the_name_that_it_is_found_by(name: str) -> None:
    command = main.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str()


def test_what_there_is_not_is_not_found() -> None:
    assert main.get_command(CONTEXT, "nothing") is None


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("main", "asyncpg"),
        ("ledger", "sluice.gateway.settings"),
        ("teams", "sluice.gateway.settings"),
        ("one_machine", "sluice.gateway.app"),
        ("serving", "numpy"),
    ],
)
def test_a_command_does_not_import_what_it_can_do_without(module: str, heavy: str) -> None:
    """A consumer starts five times as quickly as a gateway, and takes half of its memory."""
    program = f"import sys, sluice.gateway.cli.{module}; print({heavy!r} in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "False\n"
