"""Keys in memory, and how fast they follow the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sluice.gateway.auth import KeyRing, KeySync, credential_of
from sluice.gateway.secrets import key_hash
from sluice.gateway.tenancy.limits import NO_LIMITS, Limits
from sluice.gateway.tenancy.registry import KeyChange, Tenancy
from sluice.migrations import migrate
from tests.harness.polling import eventually_async

NOW = 1_000_000.0


def change(key: str = "key", **more: Any) -> KeyChange:
    values: dict[str, Any] = {
        "revision": 1,
        "hash": key_hash(key),
        "key_id": UUID(int=2),
        "key_name": "key",
        "key_limits": NO_LIMITS,
        "team_id": UUID(int=1),
        "team_name": "team",
        "team_limits": NO_LIMITS,
        "organisation_id": UUID(int=3),
        "organisation_name": "org",
        "organisation_limits": NO_LIMITS,
        "time_zone": "UTC",
        "valid_until": None,
    }
    return KeyChange(**{**values, **more})


def ring(*changes: KeyChange, at: float = NOW) -> KeyRing:
    keys = KeyRing(clock=lambda: at)
    keys.apply(changes)
    return keys


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class TestBearer:
    @pytest.mark.parametrize(
        "value", [b"Bearer key", b"bearer key", b"BEARER key", b"Bearer   key", b"Bearer key  "]
    )
    def test_the_scheme_has_any_case(self, value: bytes) -> None:
        assert credential_of([(b"x", b"y"), (b"authorization", value)]) == "key"

    @pytest.mark.parametrize(
        "value", [b"", b"key", b"Bearer", b"Bearer ", b"Basic key", b"Bearerkey"]
    )
    def test_anything_else_is_no_credential(self, value: bytes) -> None:
        assert credential_of([(b"authorization", value)]) is None

    def test_without_the_header_there_is_none(self) -> None:
        assert credential_of([(b"x-api-key", b"key")]) == "key"

    def test_bytes_beyond_ascii_are_just_a_wrong_key(self) -> None:
        credential = credential_of([(b"authorization", b"Bearer \xff\x00")])
        assert credential is not None
        assert ring(change()).authenticate(credential) is None


class TestKeyRing:
    def test_a_known_key_is_its_team(self) -> None:
        principal = ring(change(team_limits=Limits(default_max_tokens=9))).authenticate("key")
        assert principal is not None
        assert (principal.team_id, principal.team_name) == (str(UUID(int=1)), "team")
        assert principal.policy.default_max_tokens == 9

    @pytest.mark.parametrize(
        "key", [None, "", "Key", "key ", "ke", "\ud800".encode("utf-8", "replace").decode()]
    )
    def test_any_other_is_nobody(self, key: str | None) -> None:
        assert ring(change()).authenticate(key) is None

    @pytest.mark.parametrize(
        ("ahead", "valid"), [(0.001, True), (0, False), (-1, False), (3600, True)]
    )
    def test_a_key_ends_when_it_was_said_to(self, ahead: float, valid: bool) -> None:
        keys = ring(change(valid_until=moment(NOW + ahead)))
        assert (keys.authenticate("key") is not None) == valid

    def test_a_later_change_takes_the_place_of_an_earlier(self) -> None:
        keys = ring(change(), change(revision=4, valid_until=moment(NOW - 1)))
        assert keys.authenticate("key") is None
        assert len(keys) == 1
        assert keys.revision == 4

    def test_revisions_never_go_back(self) -> None:
        assert ring(change(revision=9), change("b", revision=3)).revision == 9

    def test_admin_keys_open_the_admin_api_and_nothing_else(self) -> None:
        keys = ring(change())
        keys.admit_admins([key_hash("admin")])
        assert keys.is_admin("admin")
        assert not any(keys.is_admin(key) for key in (None, "", "key", "admin "))
        assert keys.authenticate("admin") is None


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=8) as connections:
        yield connections


@asynccontextmanager
async def syncing(
    tenancy: Tenancy, poll_seconds: float = 0.05
) -> AsyncIterator[tuple[KeyRing, KeySync]]:
    keys = KeyRing()
    sync = KeySync(keys, tenancy, lambda seconds: None, poll_seconds)
    await sync.start()
    try:
        yield keys, sync
    finally:
        await sync.stop()


class TestKeySync:
    async def test_a_revoked_key_is_refused_within_a_second(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        record, key = await tenancy.create_key(team.id)
        async with syncing(tenancy, poll_seconds=0.25) as (keys, _):
            assert keys.authenticate(key) is not None
            revoked_at = time.monotonic()
            await tenancy.revoke_key(record.id)

            async def refused() -> bool:
                return keys.authenticate(key) is None

            await eventually_async(refused)
            assert time.monotonic() - revoked_at < 1

    async def test_a_revocation_ahead_waits_for_its_time(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        record, old = await tenancy.create_key(team.id)
        _, new = await tenancy.rotate_key(record.id, timedelta(hours=1))
        async with syncing(tenancy) as (keys, _):
            assert keys.authenticate(new) is not None
            principal = keys.authenticate(old)
            assert principal is not None
            assert principal.valid_until is not None
            assert 3500 < principal.valid_until - time.time() < 3700

    async def test_the_earlier_of_expiry_and_revocation_counts(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        soon = datetime.now(UTC) + timedelta(minutes=1)
        record, key = await tenancy.create_key(team.id, expires_at=soon)
        await tenancy.revoke_key(record.id, timedelta(hours=1))
        async with syncing(tenancy) as (keys, _):
            principal = keys.authenticate(key)
            assert principal is not None
            assert principal.valid_until == pytest.approx(soon.timestamp(), abs=0.001)

    async def test_a_change_of_the_team_reaches_its_keys(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team", Limits(default_max_tokens=5))
        _, key = await tenancy.create_key(team.id)
        async with syncing(tenancy) as (keys, _):
            await pool.execute("UPDATE teams SET limits = '{\"default_max_tokens\": 6}'")

            async def changed() -> bool:
                principal = keys.authenticate(key)
                assert principal is not None
                return principal.policy.default_max_tokens == 6

            await eventually_async(changed)

    async def test_no_change_of_concurrent_writers_is_missed(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        made: list[str] = []

        async def writer() -> None:
            for _ in range(20):
                record, key = await tenancy.create_key(team.id)
                made.append(key)
                if len(made) % 3 == 0:
                    await tenancy.revoke_key(record.id)

        async with syncing(tenancy, poll_seconds=0.001) as (keys, _):
            await asyncio.gather(*(writer() for _ in range(6)))
            highest: int = await pool.fetchval("SELECT max(revision) FROM api_keys")

            async def caught_up() -> bool:
                return keys.revision == highest

            await eventually_async(caught_up)
            valid = await pool.fetch("SELECT hash FROM api_keys WHERE revoked_at IS NULL")
            ours = {key_hash(key) for key in made if keys.authenticate(key) is not None}
            assert len(keys) == 120
            assert ours == {row["hash"] for row in valid}

    async def test_a_revision_is_invisible_until_those_before_it_are_there(
        self, pool: asyncpg.Pool
    ) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        async with pool.acquire() as slow:
            open_transaction = slow.transaction()
            await open_transaction.start()
            await slow.execute("UPDATE teams SET limits = '{\"default_max_tokens\": 1}'")
            quick = asyncio.create_task(tenancy.create_key(team.id))
            done, _ = await asyncio.wait([quick], timeout=0.2)
            assert not done
            await open_transaction.commit()
        await quick
        revisions = [change.revision for change in await tenancy.changes(0)]
        assert revisions == [await pool.fetchval("SELECT max(revision) FROM api_keys")]

    async def test_admin_keys_of_the_database_are_admitted(self, pool: asyncpg.Pool) -> None:
        tenancy = Tenancy(pool)
        key = await tenancy.first_admin_key()
        async with syncing(tenancy) as (keys, _):
            assert keys.is_admin(key)

    async def test_while_the_database_is_away_known_keys_work_and_age(
        self, pool: asyncpg.Pool
    ) -> None:
        tenancy = Tenancy(pool)
        team = await tenancy.create_team("team")
        _, key = await tenancy.create_key(team.id)
        async with syncing(tenancy, poll_seconds=0.01) as (keys, sync):
            await pool.execute("ALTER TABLE teams RENAME TO away")

            async def stale() -> bool:
                return sync.staleness > 0.2

            await eventually_async(stale)
            assert keys.authenticate(key) is not None
            await pool.execute("ALTER TABLE away RENAME TO teams")

            async def fresh() -> bool:
                return sync.staleness < 0.1

            await eventually_async(fresh)
