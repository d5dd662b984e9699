"""Structured logs: JSON lines on standard error. Prompts, answers and keys are never logged."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import BinaryIO

import msgspec
import structlog
from typing_extensions import Buffer


def configure_logs(level: str = "info") -> None:
    """Set up structlog, and route the standard library's loggers through the same form."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_serialise),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.BytesLoggerFactory(_Unbreakable(sys.stderr.buffer)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class _Unbreakable(io.BufferedIOBase):
    """A stream whose reader may go away: a log line that nobody reads must fail no request."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: Buffer) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(data)
        return len(memoryview(data))

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _serialise(value: object, **_: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


class _JSONFormatter(logging.Formatter):
    """Lines of libraries in our form."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _serialise({**line, "logger": record.name}).decode()
