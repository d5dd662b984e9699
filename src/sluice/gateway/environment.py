"""The process's environment: where its servers are, and the secrets that it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.gateway.oidc.token_file import TokenFileError, saved_token, token_path
from sluice.gateway.startup_errors import ConfigError

MIN_SECRET_CHARACTERS = 32

_SECRETS = (
    "SLUICE_ADMIN_KEY",
    "SLUICE_BOOTSTRAP_KEY",
    "SLUICE_SALT_SECRET",
    "SLUICE_CALLBACK_SECRET",
)


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Where the admin API is, and the key to it."""

    url: str
    key: str


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process takes from its environment.

    Attributes:
        database_url, redis_url: the servers of `sluice serve` and `sluice billing`.
        admin_key: bearer of the admin API; None: only admin tokens and people who signed in.
        bootstrap_key: the first team's key, verbatim; None: none is made.
        salt_secret: of the salts that keep teams' cached prefixes apart; None: the database's.
        callback_secret: of the secrets that sign callbacks; None: the database's.
        spool: directory for usage events while Redis is away.
        files: directory for tenants' files, where the configuration names no other place.
        url: the gateway that the administrative commands talk to.
        is_worker: this process shares its port with siblings under one supervisor.
        metrics_dir: where siblings' metrics are added up; None for a process on its own.
        token_file: where the token of who has signed in is.
    """

    database_url: str | None
    redis_url: str | None
    admin_key: str | None
    bootstrap_key: str | None
    salt_secret: str | None
    callback_secret: str | None
    spool: Path
    files: Path
    url: str
    is_worker: bool
    metrics_dir: Path | None
    token_file: Path

    def admin_access(self) -> AdminAccess:
        """How to call the admin API: with the admin key, or else as who has signed in.

        Raises:
            ConfigError: there is neither.
        """
        try:
            key = self.admin_key or saved_token(self.token_file, self.url)
        except TokenFileError as error:
            raise ConfigError(str(error)) from None
        if key is None:
            raise ConfigError("SLUICE_ADMIN_KEY is not set; or sign in: `sluice login`")
        return AdminAccess(self.url, key)

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Environment:
        """From the process's environment, or a given one.

        Raises:
            ConfigError: a key is too short to be a secret.
        """
        values = os.environ if env is None else env
        for name in _SECRETS:
            key = values.get(name)
            if key is not None and len(key) < MIN_SECRET_CHARACTERS:
                raise ConfigError(f"{name} must have at least {MIN_SECRET_CHARACTERS} characters")
            if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
                raise ConfigError(f"{name} must be printable ASCII without spaces")
        return cls(
            database_url=values.get("SLUICE_DATABASE_URL") or None,
            redis_url=values.get("SLUICE_REDIS_URL") or None,
            admin_key=values.get("SLUICE_ADMIN_KEY"),
            bootstrap_key=values.get("SLUICE_BOOTSTRAP_KEY"),
            salt_secret=values.get("SLUICE_SALT_SECRET"),
            callback_secret=values.get("SLUICE_CALLBACK_SECRET"),
            spool=Path(values.get("SLUICE_SPOOL_DIR") or "sluice-spool"),
            files=Path(values.get("SLUICE_FILES_DIR") or "sluice-files"),
            url=(values.get("SLUICE_URL") or "http://127.0.0.1:8080").rstrip("/"),
            is_worker=values.get("SLUICE_WORKER") == "1",
            metrics_dir=_path(values.get("PROMETHEUS_MULTIPROC_DIR")),
            token_file=token_path(values),
        )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def needed(value: str | None, name: str) -> str:
    """The value of a variable.

    Raises:
        ConfigError: it is not set.
    """
    if value is None:
        raise ConfigError(f"{name} is not set")
    return value
