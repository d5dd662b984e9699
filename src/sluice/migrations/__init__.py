"""The schema's history: numbered SQL files, applied once each, in order.

Migrations only ever move forward, and each must leave the schema usable by the release before
it, so that gateways can be replaced one by one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import asyncpg

_LOCK = 7363620

_HISTORY = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version     text PRIMARY KEY,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
)
"""


class MigrationError(Exception):
    """The database's history and the files' don't fit together."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step."""

    version: str
    sql: str

    @property
    def checksum(self) -> str:
        """Identifies the file's contents."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All steps, in order."""
    files = resources.files("sluice.migrations").iterdir()
    return sorted(
        (
            Migration(f.name.removesuffix(".sql"), f.read_text())
            for f in files
            if f.name.endswith(".sql")
        ),
        key=lambda step: step.version,
    )


async def migrate(database_url: str) -> list[str]:
    """Bring a database up to date; several processes may do so at once.

    Returns:
        The versions applied now.

    Raises:
        MigrationError: an applied file was changed, or the database is newer than this release.
        asyncpg.PostgresError, OSError: the database can't be reached, or refused a step.
    """
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await connection.execute(_HISTORY)
        rows = await connection.fetch("SELECT version, checksum FROM schema_migrations")
        todo = pending(migrations(), {row["version"]: row["checksum"] for row in rows})
        for step in todo:
            async with connection.transaction():
                await connection.execute(step.sql)
                await connection.execute(
                    "INSERT INTO schema_migrations (version, checksum) VALUES ($1, $2)",
                    step.version,
                    step.checksum,
                )
        return [step.version for step in todo]
    finally:
        await connection.close()


def pending(steps: list[Migration], applied: dict[str, str]) -> list[Migration]:
    """The steps that are still to be applied.

    Raises:
        MigrationError: see `migrate`.
    """
    known = {step.version: step for step in steps}
    for version, checksum in applied.items():
        step = known.get(version)
        if step is None:
            raise MigrationError(f"the database has migration {version}, which this release lacks")
        if step.checksum != checksum:
            raise MigrationError(f"migration {version} was changed after it had been applied")
    return [step for step in steps if step.version not in applied]
