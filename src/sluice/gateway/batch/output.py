"""Lines of a batch's output and error files, as OpenAI's batches have them. Pure."""

from __future__ import annotations

from uuid import UUID

import msgspec

from sluice.billing.ledger import storable


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Line(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


_encoder = msgspec.json.Encoder()


def answered_line(id: UUID, custom_id: str, status: int, body: bytes) -> str:
    """The line of a request that was answered, be it with an error.

    Args:
        id: the request's, `x-request-id` of its answer.
        custom_id: the tenant's name for it.
        status: HTTP status; from 400 on the line belongs in the error file.
        body: JSON text; what is none is quoted as text.
    """
    response = _Response(status, str(id), _json(body))
    return _text(_Line(_line_id(id), custom_id, response, None))


def unexecuted_line(id: UUID, custom_id: str, code: str, message: str) -> str:
    """The error line of a request that got no answer.

    Args:
        id: any of the request's own.
        code: `batch_expired`, `batch_cancelled`, `request_timeout`, ….
    """
    return _text(_Line(_line_id(id), custom_id, None, _Error(code, message)))


def lost_line(id: UUID, custom_id: str) -> str:
    """The error line of a request whose workers were lost again and again."""
    message = "The request was given up: the processes that ran it ended again and again."
    return unexecuted_line(id, custom_id, "request_lost", message)


def _line_id(id: UUID) -> str:
    return f"batch_req_{id.hex}"


def _text(line: _Line) -> str:
    return storable(_encoder.encode(line).decode())


def _json(body: bytes) -> msgspec.Raw:
    """The body on one line, and as it is but for that."""
    try:
        text = body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
        return msgspec.Raw(body if "\n" not in text else _one_line(body))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return msgspec.Raw(_encoder.encode(body.decode(errors="replace")))


def _one_line(body: bytes) -> bytes:
    """JSON text without its line breaks, which can only be between its parts."""
    return body.replace(b"\r", b" ").replace(b"\n", b" ")
