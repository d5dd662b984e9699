"""Structured logs: JSON lines on standard error. Prompts, answers and keys are never logged."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import logging
import sys
from collections.abc import Callable
from typing import BinaryIO, cast

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
        logger_factory=_factory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


_GATHER_SECONDS = 0.05


def _factory(stream: BinaryIO) -> Callable[..., _GatheringLogger]:
    lines = _Lines(stream)
    atexit.register(lines.flush)
    return lambda *_: _GatheringLogger(cast("BinaryIO", lines))


class _Lines(io.RawIOBase):
    """Log lines on their way out.

    Inside an event loop they are gathered for a moment and written together: a system call for
    each request's line is a tenth of its cost. A reader that goes away fails no request.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[Buffer] = []

    def write(self, data: Buffer) -> int:
        if not self._lines:
            try:
                asyncio.get_running_loop().call_later(_GATHER_SECONDS, self.flush)
            except RuntimeError:
                self._out(data)
                return len(memoryview(data))
        self._lines.append(bytes(data))
        return len(memoryview(data))

    def flush(self) -> None:
        """Write what has gathered; called by the loop, and at exit."""
        lines, self._lines = self._lines, []
        if lines:
            self._out(b"".join(lines))

    def _out(self, data: Buffer) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(data)
            self._stream.flush()


class _GatheringLogger(structlog.BytesLogger):
    """Leaves flushing to the stream."""

    def msg(self, message: bytes) -> None:
        self._write(message + b"\n")

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def _serialise(value: object, **_: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


class _JSONFormatter(logging.Formatter):
    """Lines of libraries in our form."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _serialise({**line, "logger": record.name}).decode()
