"""Model versions for the tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from sluice.gateway.registry.versions import ModelVersion, NewVersion

SUM = "0" * 64
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def body(**changes: Any) -> dict[str, Any]:
    """A version as a caller registers it."""
    return {
        "name": "llama",
        "version": "1",
        "pool": "pool",
        "weights": "/weights/llama-1",
        "manifest": {"model.safetensors": {"sha256": SUM, "size": 10}},
        "context_length": 8192,
        "capabilities": ["chat", "completions"],
        **changes,
    }


def new(**changes: Any) -> NewVersion:
    """The same, read."""
    return msgspec.convert(body(**changes), NewVersion)


def registered(number: int = 1, **changes: Any) -> ModelVersion:
    """A version as it is registered; its id and revision are the number."""
    given = {name: changes.pop(name) for name in ("stage", "share") if name in changes}
    fields = {name: getattr(new(**changes), name) for name in NewVersion.__struct_fields__}
    return ModelVersion(
        **fields,
        id=UUID(int=number),
        stage=given.get("stage"),
        share=given.get("share"),
        created_at=WHEN,
        staged_at=WHEN if given.get("stage") else None,
        revision=number,
    )
