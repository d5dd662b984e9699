"""Schemas of files and batches, for the API's description."""

from __future__ import annotations

from typing import Any

from sluice.gateway.batch.lines import URLS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME: Schema = {"type": "integer", "description": "Seconds since the epoch"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_TIME: Schema = {"type": ["integer", "null"], "description": "Seconds since the epoch"}
_MAYBE_OBJECT: Schema = {"type": ["object", "null"]}
_METADATA: Schema = {
    "type": ["object", "null"],
    "maxProperties": 16,
    "additionalProperties": {"type": "string", "maxLength": 512},
}
_ENDPOINT: Schema = {"enum": list(URLS)}


def _object(required: str, **members: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": members}


def _page(of: str) -> Schema:
    return _object(
        "object data has_more",
        object={"const": "list"},
        data={"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}},
        first_id=_MAYBE_TEXT,
        last_id=_MAYBE_TEXT,
        has_more={"type": "boolean"},
    )


_EXPIRY = _object(
    "anchor seconds",
    anchor={"const": "created_at"},
    seconds={"type": "integer", "minimum": 3600, "maximum": 2_592_000},
)

_OPTIONS: dict[str, Schema] = {
    "priority": {"enum": ["high", "normal", "low"]},
    "metadata": _METADATA,
    "output_expires_after": {"anyOf": [_EXPIRY, {"type": "null"}]},
    "callback_url": {**_MAYBE_TEXT, "description": "Is told when the batch has ended"},
}

_WINDOW: Schema = {**_TEXT, "description": "`24h`, or less, such as `90m`"}

_BATCH: dict[str, Schema] = {
    "id": _TEXT,
    "object": {"const": "batch"},
    "endpoint": _ENDPOINT,
    "model": _TEXT,
    "errors": _MAYBE_OBJECT,
    "input_file_id": _TEXT,
    "completion_window": _TEXT,
    "status": {
        "enum": [
            *("validating", "failed", "in_progress", "finalizing"),
            *("completed", "expired", "cancelling", "cancelled"),
        ]
    },
    "output_file_id": _MAYBE_TEXT,
    "error_file_id": _MAYBE_TEXT,
    "created_at": _TIME,
    "in_progress_at": _MAYBE_TIME,
    "expires_at": _MAYBE_TIME,
    "finalizing_at": _MAYBE_TIME,
    "completed_at": _MAYBE_TIME,
    "failed_at": _MAYBE_TIME,
    "expired_at": _MAYBE_TIME,
    "cancelling_at": _MAYBE_TIME,
    "cancelled_at": _MAYBE_TIME,
    "request_counts": _object(
        "total completed failed", total=_COUNT, completed=_COUNT, failed=_COUNT
    ),
    "usage": _MAYBE_OBJECT,
    "metadata": _METADATA,
}

_ESSENTIAL = "id object endpoint input_file_id completion_window status created_at request_counts"

#: By name.
BATCH_SCHEMAS: dict[str, Schema] = {
    "FileUpload": _object(
        "file purpose",
        file={**_TEXT, "contentMediaType": "application/octet-stream"},
        purpose=_TEXT,
        **{"expires_after[anchor]": _TEXT, "expires_after[seconds]": _TEXT},
    ),
    "File": _object(
        "id object bytes created_at filename purpose status",
        id=_TEXT,
        object={"const": "file"},
        bytes=_COUNT,
        created_at=_TIME,
        filename=_TEXT,
        purpose=_TEXT,
        status={"const": "processed"},
        status_details={"type": "null"},
        expires_at=_TIME,
    ),
    "Files": _page("File"),
    "DeletedFile": _object(
        "id object deleted", id=_TEXT, object={"const": "file"}, deleted={"const": True}
    ),
    "Bytes": {"type": "string", "contentMediaType": "application/octet-stream"},
    "NewBatch": _object(
        "input_file_id endpoint completion_window",
        input_file_id=_TEXT,
        endpoint=_ENDPOINT,
        completion_window=_WINDOW,
        **_OPTIONS,
    ),
    "Batch": _object(_ESSENTIAL, **_BATCH),
    "Batches": _page("Batch"),
    "NewJob": _object(
        "requests",
        requests={
            "type": "array",
            "items": {
                "type": "object",
                "description": "A line of a batch's input, or the body of a request",
            },
        },
        endpoint=_ENDPOINT,
        completion_window=_WINDOW,
        **_OPTIONS,
    ),
    "JobForm": {
        **_object("file", file={**_TEXT, "contentMediaType": "application/jsonl"}),
        "description": "The members of `NewJob` but `requests` may be fields, too",
    },
    "Lines": {
        "type": "string",
        "description": "One request a line; the other members of `NewJob` may be in the query",
    },
    "Job": _object(
        f"batch_id {_ESSENTIAL} priority estimated_completion cost_nano_usd cost_usd",
        batch_id=_TEXT,
        **_BATCH,
        priority=_OPTIONS["priority"],
        estimated_completion=_MAYBE_TIME,
        cost_nano_usd=_COUNT,
        cost_usd=_TEXT,
        callback=_MAYBE_OBJECT,
    ),
    "Jobs": _page("Job"),
    "ResultLines": {
        "type": "string",
        "description": "Lines of the output or error file, each with its `sequence`",
    },
}
