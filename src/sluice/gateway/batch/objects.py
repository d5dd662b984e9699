"""Files and batches as callers see them: OpenAI's objects, and our own of a batch. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sluice.billing.prices import NANO
from sluice.gateway.batch.batches import Batch
from sluice.gateway.batch.completion_window import window_text
from sluice.gateway.batch.files import File
from sluice.gateway.batch.ids import public_id


def file_object(file: File) -> dict[str, Any]:
    """OpenAI's `file`."""
    shown = {
        "id": public_id("file-", file.id),
        "object": "file",
        "bytes": file.bytes,
        "created_at": _seconds(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
    if file.expires_at is not None:
        shown["expires_at"] = _seconds(file.expires_at)
    return shown


def batch_object(batch: Batch) -> dict[str, Any]:
    """OpenAI's `batch`."""
    errors = None if batch.errors is None else {"object": "list", "data": batch.errors}
    return {
        "id": public_id("batch_", batch.id),
        "object": "batch",
        "endpoint": f"/v1/{batch.endpoint}",
        "model": batch.model,
        "errors": errors,
        "input_file_id": public_id("file-", batch.input_file),
        "completion_window": window_text(batch.completion_window),
        "status": batch.status,
        "output_file_id": _file_id(batch.output_file),
        "error_file_id": _file_id(batch.error_file),
        "created_at": _seconds(batch.created_at),
        "in_progress_at": _maybe_seconds(batch.in_progress_at),
        "expires_at": _seconds(batch.expires_at),
        "finalizing_at": _maybe_seconds(batch.finalizing_at),
        "completed_at": _maybe_seconds(batch.completed_at),
        "failed_at": _maybe_seconds(batch.failed_at),
        "expired_at": _maybe_seconds(batch.expired_at),
        "cancelling_at": _maybe_seconds(batch.cancelling_at),
        "cancelled_at": _maybe_seconds(batch.cancelled_at),
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": _usage(batch),
        "metadata": batch.metadata,
    }


def job_object(batch: Batch, estimate: datetime | None) -> dict[str, Any]:
    """Our own view of a batch: OpenAI's, and what else there is to say.

    Args:
        estimate: when it will be done; None: it has ended.
    """
    usd = (Decimal(batch.cost_nano_usd) / NANO).normalize()
    return {
        "batch_id": public_id("batch_", batch.id),
        **batch_object(batch),
        "priority": batch.priority,
        "estimated_completion": _maybe_seconds(estimate),
        "cost_nano_usd": batch.cost_nano_usd,
        "cost_usd": f"{usd:f}",
        "callback": batch.callback,
    }


def list_object(shown: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """A page as OpenAI's lists are."""
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": has_more,
    }


def _usage(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }


def _file_id(id: UUID | None) -> str | None:
    return None if id is None else public_id("file-", id)


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


def _maybe_seconds(time: datetime | None) -> int | None:
    return None if time is None else _seconds(time)
