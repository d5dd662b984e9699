"""The schema's history on real databases: from nothing, again, at once, and out of step."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import asyncpg
import pytest

from sluice.migrations import Migration, MigrationError, migrate, migrations, pending

ALL = [step.version for step in migrations()]


async def execute(database: str, statement: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def applied(database: str) -> list[str]:
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch("SELECT version FROM schema_migrations ORDER BY version")
        return [row["version"] for row in rows]
    finally:
        await connection.close()


def test_versions_are_numbered_in_order_without_gaps() -> None:
    assert [int(version.split("_")[0]) for version in ALL] == list(range(1, len(ALL) + 1))


async def test_from_nothing_and_again(database: str) -> None:
    assert await migrate(database) == ALL
    assert await migrate(database) == []
    assert await applied(database) == ALL


def migrate_in_two_processes(database: str) -> list[int]:
    """How many steps each applied."""
    code = (
        "import asyncio, sys; from sluice.migrations import migrate;"
        "print(len(asyncio.run(migrate(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, database]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return [int(process.communicate(timeout=60)[0]) for process in both]


async def test_processes_at_once_apply_each_step_once(database: str) -> None:
    counts = await asyncio.to_thread(migrate_in_two_processes, database)
    assert sorted(counts) == [0, len(ALL)]
    assert await applied(database) == ALL


async def test_a_file_changed_after_it_was_applied_is_detected(database: str) -> None:
    await migrate(database)
    await execute(database, "UPDATE schema_migrations SET checksum = 'other'")
    with pytest.raises(MigrationError, match=f"{ALL[0]} was changed"):
        await migrate(database)


async def test_a_newer_database_is_left_alone(database: str) -> None:
    await migrate(database)
    await execute(database, "INSERT INTO schema_migrations VALUES ('9999_future', 'x')")
    with pytest.raises(MigrationError, match="9999_future"):
        await migrate(database)


async def test_a_step_that_fails_leaves_nothing_and_is_tried_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = migrations()
    bad = Migration("9000_bad", "CREATE TABLE half (a int); SELECT 1 / 0;")
    monkeypatch.setattr("sluice.migrations.migrations", lambda: [*good, bad])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(database)
    assert await applied(database) == ALL
    mended = Migration("9000_bad", "CREATE TABLE half (a int);")
    monkeypatch.setattr("sluice.migrations.migrations", lambda: [*good, mended])
    assert await migrate(database) == ["9000_bad"]


def test_only_what_is_missing_is_pending_in_order() -> None:
    steps = [Migration(f"000{n}", f"SELECT {n}") for n in range(4)]
    done = {step.version: step.checksum for step in (steps[1], steps[0])}
    assert pending(steps, done) == steps[2:]
    assert pending(steps, {}) == steps
