"""Where the command line keeps a person's token: a file that is theirs alone, by gateway."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec


class TokenFileError(Exception):
    """The file can't be used; the message says why."""


class SavedToken(msgspec.Struct, frozen=True):
    """A token for one gateway.

    Attributes:
        expires_at: seconds since the epoch.
    """

    token: str
    expires_at: float


def token_path(env: Mapping[str, str]) -> Path:
    """The file's path: `SLUICE_TOKEN_FILE`, or in the user's configuration directory."""
    if given := env.get("SLUICE_TOKEN_FILE"):
        return Path(given)
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "sluice" / "tokens.json"


def saved_token(path: Path, gateway: str) -> str | None:
    """The token for a gateway; None where there is none, or it has expired.

    Raises:
        TokenFileError: the file is malformed, or others may read it.
    """
    saved = _read(path).get(gateway)
    return saved.token if saved is not None and saved.expires_at > time.time() else None


def save_token(path: Path, gateway: str, token: SavedToken) -> None:
    """Keep a token, beside those for other gateways.

    Raises:
        TokenFileError: as `saved_token` does.
        OSError: the file can't be written.
    """
    text = msgspec.json.encode({**_read(path), gateway: token})
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, SavedToken]:
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenFileError(f"{path}: can't be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise TokenFileError(f"{path}: others may read it; `chmod 600` it, and sign in again")
    try:
        return msgspec.json.decode(text, type=dict[str, SavedToken])
    except msgspec.DecodeError:
        raise TokenFileError(f"{path}: is malformed; delete it, and sign in again") from None
