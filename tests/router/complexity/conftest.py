"""Tests of what is compiled run on both: the Python, and what was compiled after it."""

from __future__ import annotations

import pytest


@pytest.fixture(name="compiled", params=[False, True], ids=["python", "compiled"])
def both(request: pytest.FixtureRequest) -> bool:
    """Whether the compiled code is to be used."""
    return bool(request.param)
