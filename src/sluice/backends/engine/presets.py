"""Paces that were fitted to real engines; `docs/simulated-engine.md` says how well they fit."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec

from sluice.backends.engine.pace import Pace


def preset_names() -> list[str]:
    """What `preset` knows."""
    return sorted(_read())


def preset(name: str) -> Pace:
    """The pace of that name.

    Raises:
        KeyError: there is none.
    """
    return Pace(**_read()[name]["pace"])


def _read() -> dict[str, Any]:
    text = files("sluice.backends.engine").joinpath("presets.json").read_bytes()
    presets: dict[str, Any] = msgspec.json.decode(text)
    return presets
