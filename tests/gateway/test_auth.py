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

from sluice.gateway.auth import KeyRing, KeySync, TokenRing, credential_of
from sluice.gateway.secrets import key_hash
from sluice.gateway.tenancy.changes import Changes, KeyChange, TokenChange
from sluice.gateway.tenancy.first_keys import FirstKeys
from sluice.gateway.tenancy.limits import NO_LIMITS, Limits
from sluice.migrations import migrate
from tests.harness.polling import eventually_async
from tests.harness.tenants import BY, Tenants, members

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

    def test_work_of_a_rotated_key_is_its_successors(self) -> None:
        one, two, three = UUID(int=11), UUID(int=12), UUID(int=13)
        ended = {"valid_until": moment(NOW - 1)}
        first = change("one", key_id=one, replaced_by=two, **ended)
        second = change("two", key_id=two, replaced_by=three, **ended)
        third = change("three", key_id=three)
        for known, holder in (
            ((change("one", key_id=one, replaced_by=two), third), one),  # both are valid yet
            ((first, second, third), three),
            ((first, change("two", key_id=two, **ended)), None),
            ((first,), None),
        ):
            principal = ring(*known).holder(str(one))
            assert (None if principal is None else principal.key_id) == (holder and str(holder))
        assert ring(first, second, third).authenticate("one") is None

    def test_revisions_never_go_back(self) -> None:
        assert ring(change(revision=9), change("b", revision=3)).revision == 9


def token_change(token: str = "token", **more: Any) -> TokenChange:
    values: dict[str, Any] = {
        "revision": 1,
        "hash": key_hash(token),
        "token_id": UUID(int=9),
        "name": "deploys",
        "role": "owner",
        "organisation_id": None,
        "team_id": None,
        "scopes": None,
        "valid_until": None,
    }
    return TokenChange(**{**values, **more})


def token_ring(*changes: TokenChange, environment: str | None = None) -> TokenRing:
    own = None if environment is None else key_hash(environment)
    tokens = TokenRing(own, clock=lambda: NOW)
    tokens.apply(changes)
    return tokens


class TestTokenRing:
    def test_a_known_token_is_its_administrator(self) -> None:
        change = token_change(
            role="auditor", organisation_id=UUID(int=3), scopes=["teams:read", "audit:read"]
        )
        administrator = token_ring(change).authenticate("token")
        assert administrator is not None
        assert administrator.actor == f"token:{UUID(int=9)}"
        assert (administrator.role, administrator.name) == ("auditor", "deploys")
        assert (administrator.organisation_id, administrator.team_id) == (str(UUID(int=3)), None)
        assert administrator.permissions == {"teams:read", "audit:read"}

    @pytest.mark.parametrize("credential", [None, "", "Token", "token ", "\xff"])
    def test_any_other_is_nobody(self, credential: str | None) -> None:
        assert token_ring(token_change()).authenticate(credential) is None

    @pytest.mark.parametrize(("ahead", "valid"), [(0.001, True), (0, False), (-1, False)])
    def test_a_token_ends_when_it_was_said_to(self, ahead: float, valid: bool) -> None:
        tokens = token_ring(token_change(valid_until=moment(NOW + ahead)))
        assert (tokens.authenticate("token") is not None) == valid

    def test_the_processs_own_key_is_an_owner_of_the_installation(self) -> None:
        administrator = token_ring(environment="mine").authenticate("mine")
        assert administrator is not None
        assert (administrator.actor, administrator.role) == ("environment", "owner")
        assert (administrator.organisation_id, administrator.team_id) == (None, None)
        assert token_ring().authenticate("mine") is None

    def test_a_later_change_takes_the_place_of_an_earlier(self) -> None:
        tokens = token_ring(token_change(), token_change(revision=4, valid_until=moment(NOW - 1)))
        assert tokens.authenticate("token") is None
        assert tokens.revision == 4


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=8) as connections:
        yield connections


@asynccontextmanager
async def syncing(
    pool: asyncpg.Pool, poll_seconds: float = 0.05, tokens: TokenRing | None = None
) -> AsyncIterator[tuple[KeyRing, KeySync]]:
    keys = KeyRing()
    sync = KeySync(keys, tokens or TokenRing(), Changes(pool), lambda seconds: None, poll_seconds)
    await sync.start()
    try:
        yield keys, sync
    finally:
        await sync.stop()


class TestKeySync:
    async def test_a_revoked_key_is_refused_within_a_second(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        record, key = await tenants.key(team)
        async with syncing(pool, poll_seconds=0.25) as (keys, _):
            assert keys.authenticate(key) is not None
            revoked_at = time.monotonic()
            await tenants.revoke(record.id)

            async def refused() -> bool:
                return keys.authenticate(key) is None

            await eventually_async(refused)
            assert time.monotonic() - revoked_at < 1

    async def test_a_revocation_ahead_waits_for_its_time(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        record, old = await tenants.key(team)
        new = await tenants.rotate(record.id, timedelta(hours=1))
        async with syncing(pool) as (keys, _):
            assert keys.authenticate(new) is not None
            principal = keys.authenticate(old)
            assert principal is not None
            assert principal.valid_until is not None
            assert 3500 < principal.valid_until - time.time() < 3700

    async def test_work_goes_on_with_the_key_of_a_rotation(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        record, old = await tenants.key(await tenants.team())
        async with syncing(pool) as (keys, _):
            new = await tenants.rotate(record.id, timedelta(0))

            async def known() -> bool:
                return keys.authenticate(new) is not None and keys.authenticate(old) is None

            await eventually_async(known)
            successor = keys.authenticate(new)
            assert successor is not None
            assert keys.holder(str(record.id)) == successor
            await tenants.revoke(UUID(successor.key_id))

            async def refused() -> bool:
                return keys.holder(str(record.id)) is None

            await eventually_async(refused)

    async def test_the_earlier_of_expiry_and_revocation_counts(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        soon = datetime.now(UTC) + timedelta(minutes=1)
        record, key = await tenants.key(team, expires_at=soon)
        await tenants.rotate(record.id, timedelta(hours=1))
        async with syncing(pool) as (keys, _):
            principal = keys.authenticate(key)
            assert principal is not None
            assert principal.valid_until == pytest.approx(soon.timestamp(), abs=0.001)

    async def test_a_change_of_the_team_reaches_its_keys(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team(default_max_tokens=5)
        _, key = await tenants.key(team)
        async with syncing(pool) as (keys, _):
            await pool.execute("UPDATE teams SET limits = '{\"default_max_tokens\": 6}'")

            async def changed() -> bool:
                principal = keys.authenticate(key)
                assert principal is not None
                return principal.policy.default_max_tokens == 6

            await eventually_async(changed)

    async def test_no_change_of_concurrent_writers_is_missed(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        made: list[str] = []

        async def writer() -> None:
            for _ in range(20):
                record, key = await tenants.key(team)
                made.append(key)
                if len(made) % 3 == 0:
                    await tenants.revoke(record.id)

        async with syncing(pool, poll_seconds=0.001) as (keys, _):
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
        tenants = Tenants(pool)
        team = await tenants.team()
        async with pool.acquire() as slow:
            open_transaction = slow.transaction()
            await open_transaction.start()
            await slow.execute("UPDATE teams SET limits = '{\"default_max_tokens\": 1}'")
            quick = asyncio.create_task(tenants.key(team))
            done, _ = await asyncio.wait([quick], timeout=0.2)
            assert not done
            await open_transaction.commit()
        await quick
        revisions = [change.revision for change in await Changes(pool).keys(0)]
        assert revisions == [await pool.fetchval("SELECT max(revision) FROM api_keys")]

    async def test_tokens_of_the_database_are_known_until_they_are_revoked(
        self, pool: asyncpg.Pool
    ) -> None:
        tenants, tokens = Tenants(pool), TokenRing()
        first = await FirstKeys(pool).admin_token()
        assert await FirstKeys(pool).admin_token() is None
        record, token = await tenants.token()
        async with syncing(pool, tokens=tokens):
            assert tokens.authenticate(first) is not None
            assert tokens.authenticate(token) is not None
            await tenants.tokens.revoke(record.id, None, BY)

            async def refused() -> bool:
                return tokens.authenticate(token) is None

            await eventually_async(refused, 1)
            assert tokens.authenticate(first) is not None

    async def test_what_is_archived_takes_its_keys_and_tokens_with_it(
        self, pool: asyncpg.Pool
    ) -> None:
        tenants, tokens = Tenants(pool), TokenRing()
        team = await tenants.team()
        _, key = await tenants.key(team)
        _, token = await tenants.token(team.place, role="team_admin", team="team")
        async with syncing(pool, tokens=tokens) as (keys, _):
            assert keys.authenticate(key) is not None
            assert tokens.authenticate(token) is not None
            await tenants.teams.archive(team.id, None, BY)

            async def refused() -> bool:
                return keys.authenticate(key) is None and tokens.authenticate(token) is None

            await eventually_async(refused, 1)

    async def test_limits_of_an_organisation_reach_its_keys(self, pool: asyncpg.Pool) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        _, key = await tenants.key(team)
        async with syncing(pool) as (keys, _):
            changes = members(allowed_models=["a*"], time_zone="Europe/Berlin")
            await tenants.organisations.update(team.organisation_id, changes, None, BY)

            async def changed() -> bool:
                principal = keys.authenticate(key)
                assert principal is not None
                scope = principal.policy.scopes[0]
                return scope.time_zone == "Europe/Berlin" and not principal.policy.allows_model("b")

            await eventually_async(changed, 1)

    async def test_an_end_by_the_databases_clock_is_an_end_for_every_clock(
        self, pool: asyncpg.Pool
    ) -> None:
        tenants = Tenants(pool)
        record, key = await tenants.key(await tenants.team())
        behind = KeyRing(clock=lambda: time.time() - 3600)
        await tenants.revoke(record.id)
        behind.apply(await Changes(pool).keys(0))
        assert behind.authenticate(key) is None

    async def test_while_the_database_is_away_known_keys_work_and_age(
        self, pool: asyncpg.Pool
    ) -> None:
        tenants = Tenants(pool)
        team = await tenants.team()
        _, key = await tenants.key(team)
        async with syncing(pool, poll_seconds=0.01) as (keys, sync):
            await pool.execute("ALTER TABLE teams RENAME TO away")

            async def stale() -> bool:
                return sync.staleness > 0.2

            await eventually_async(stale)
            assert keys.authenticate(key) is not None
            await pool.execute("ALTER TABLE away RENAME TO teams")

            async def fresh() -> bool:
                return sync.staleness < 0.1

            await eventually_async(fresh)
