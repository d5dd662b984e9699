"""Callers that open streams and leave, many a second, for little processor time of their own.

Bare sockets and one loop: a client library takes longer to open a stream than a gateway to serve
it, and on the same machine its own limit would be measured.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

#: Closing sends a reset, as when a caller dies.
_RESET = struct.pack("ii", 1, 0)
#: How late a stream may be opened or left.
_GRAIN_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Dropped:
    """What they did.

    Attributes:
        opened: streams whose request was sent.
        begun: those of them that had an answer's beginning before they were left.
        rate: how many were opened in a second.
    """

    opened: int
    begun: int
    rate: float


def open_and_drop(
    port: int, request: bytes, rate: float, seconds: float, longest: float, draw: Random
) -> Dropped:
    """Open streams at a rate, and leave each after a while; those that are late follow at once.

    Args:
        port: of the gateway, on this machine.
        request: what is sent on each connection.
        rate: streams a second.
        seconds: for so long.
        longest: seconds that a stream is held at most; how long each is held is drawn.
        draw: what it is drawn from.
    """
    held: list[tuple[float, int, socket.socket]] = []
    opened = begun = 0
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds or held:
        while held and held[0][0] <= now:
            begun += _leave(heappop(held)[2])
        if now < seconds and opened < now * rate:
            heappush(held, (now + draw.uniform(0, longest), opened, _open(port, request)))
            opened += 1
        else:
            time.sleep(_GRAIN_SECONDS)
    return Dropped(opened, begun, opened / seconds)


def _open(port: int, request: bytes) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.sendall(request)
    return stream


def _leave(stream: socket.socket) -> bool:
    """Whether anything had come."""
    with stream:
        stream.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            return stream.recv(1) != b""
    return False
