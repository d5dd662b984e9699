"""Commands that are imported when they are asked for."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class Commands(click.Group):
    """A group of commands by where each is, as `module:attribute`.

    Importing all of the program takes a second, and most commands need a small part of it.
    """

    def __init__(self, places: Mapping[str, str], **settings: Any) -> None:
        """Takes the places by the commands' names, and what `click.Group` takes."""
        super().__init__(**settings)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*self._places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now; None if there is none."""
        if cmd_name not in self._places:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._places[cmd_name].partition(":")
        # Nothing of what is imported is garbage, and looking for some takes a tenth of the time.
        gc.disable()
        try:
            command: click.Command = getattr(import_module(module), attribute)
        finally:
            gc.enable()
        return command
