"""The unix sockets of embedded servers: where they are, and who listens."""

import asyncio
import hashlib
import os
import re
import socket
from pathlib import Path

#: sockaddr_un holds 108 bytes on Linux, 104 on macOS.
_LONGEST_SOCKET = 100
_PROBE_TIMEOUT = 2.0


def socket_path(home: Path, name: str) -> Path:
    """Where the socket goes: in `home`, unless its path is too long or needs quoting."""
    path = home / "run" / name
    if len(os.fsencode(path)) <= _LONGEST_SOCKET and re.fullmatch(r"[\w./+-]+", str(path), re.A):
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path("/tmp") / f"sluice-{digest}" / name  # noqa: S108 - checked by private_directory


async def ask(path: Path, request: bytes) -> bytes:
    """Sends `request`, which has to end the connection, and returns the answer; b"" if none."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(request)
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def listening(path: Path) -> bool:
    """Whether a process has the socket open. The file alone proves nothing: kills leave it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PROBE_TIMEOUT)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):  # its queue is full, so there is one
            return True
    return True
