"""The listening socket, and how long a connection may do nothing."""

from __future__ import annotations

import socket
import warnings
from dataclasses import dataclass
from typing import Any

from granian import net
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may hold of the gateway.

    Attributes:
        max_header_bytes: of a request's line and headers together. It also bounds what is kept
            of an answer that the client does not read.
        header_seconds: to send them, and to be idle between two requests.
        body_seconds: to send a body.
        stalled_reader_seconds: how long a client may leave sent data unread.
    """

    max_header_bytes: int = 64 * 1024
    header_seconds: float = 30.0
    body_seconds: float = 60.0
    stalled_reader_seconds: float = 30.0


def create_server(
    app: Any, host: str, port: int, limits: ConnectionLimits = ConnectionLimits()
) -> Server:
    """A granian server inside this event loop, so that the loop's signals and order are ours.

    It speaks HTTP/1.1 only: the limits are on its connections, and a mode that waits to see which
    version comes would wait without one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Server(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=100_000,
            log_enabled=False,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(limits.header_seconds * 1000),
                max_buffer_size=limits.max_header_bytes,
            ),
            limits=limits,
        )


class _Server(Server):
    """Listens on a socket of ours: accepted connections inherit its options."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        self._limits = limits
        super().__init__(*arguments, **options)

    def _init_shared_socket(self) -> None:
        listener = bound_socket(self.bind_addr, self.bind_port, self._limits.stalled_reader_seconds)
        # granian's stubs know neither the attributes' types nor the constructor.
        socket_holder: Any = net.SocketHolder  # type: ignore[attr-defined]
        self._sfd: Any = listener.detach()
        self._shd: Any = socket_holder(self._sfd, False, self.backlog)
        self._ssp = None


def bound_socket(host: str, port: int, stalled_seconds: float) -> socket.socket:
    """A bound socket whose connections end when the other side is gone, or takes no data for so
    many seconds: the kernel sees both, whatever the state of the request.

    Raises:
        OSError: the address can't be bound.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _kernel_options(stalled_seconds):
            if (option := getattr(socket, name, None)) is not None:  # not every system has all
                bound.setsockopt(socket.IPPROTO_TCP, option, value)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _kernel_options(stalled_seconds: float) -> list[tuple[str, int]]:
    probe = max(1, int(stalled_seconds / 3))
    return [
        ("TCP_USER_TIMEOUT", int(stalled_seconds * 1000)),
        ("TCP_KEEPIDLE", max(1, int(stalled_seconds))),
        ("TCP_KEEPINTVL", probe),
        ("TCP_KEEPCNT", 3),
    ]
