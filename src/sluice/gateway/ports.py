"""Ports to listen on."""

from __future__ import annotations

import errno
import socket

from sluice.gateway.startup_errors import PortTaken


def check_port(host: str, port: int) -> None:
    """See that nobody listens on an address yet.

    The server itself shares its port among processes, and would not notice.

    Raises:
        PortTaken: somebody does, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = "it is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise PortTaken(f"can't listen on {host}:{port}: {reason}") from None
