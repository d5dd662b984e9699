"""A TCP port in front of a server's unix socket, whose connections a drill can break."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Self


class Proxy:
    """Passes bytes both ways; a context manager."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._clients: list[socket.socket] = []
        self._passing: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_all(reset=False)
        for thread in self._passing:
            thread.join(10)

    def break_all(self, reset: bool) -> int:
        """End every connection, with a reset or in good order; gives their number."""
        broken, self._clients = self._clients, []
        for client in broken:
            with contextlib.suppress(OSError):
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
            client.close()
        return len(broken)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._target))
            self._clients.append(client)
            thread = threading.Thread(target=_serve, args=(client, server), daemon=True)
            self._passing.append(thread)
            thread.start()


def _serve(client: socket.socket, server: socket.socket) -> None:
    back = threading.Thread(target=_pass, args=(server, client), daemon=True)
    back.start()
    with server:
        _pass(client, server)
        back.join()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
