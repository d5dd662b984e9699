"""What gateways must know of keys and tokens that changed: read by every process, several times a
second. Revisions become visible in order, so that "newer than n" misses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from sluice.gateway.tenancy.limits import Limits
from sluice.gateway.tenancy.roles import Permission, Role


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that changed, or whose team or organisation did.

    Attributes:
        valid_until: from when on it is refused, for whichever reason; None: no end.
        replaced_by: the key that a rotation put in its place.
    """

    revision: int
    hash: bytes
    key_id: UUID
    key_name: str
    key_limits: Limits
    team_id: UUID
    team_name: str
    team_limits: Limits
    organisation_id: UUID
    organisation_name: str
    organisation_limits: Limits
    time_zone: str
    valid_until: datetime | None
    replaced_by: UUID | None = None


@dataclass(frozen=True, slots=True)
class TokenChange:
    """An admin token that changed, or whose team or organisation did.

    Attributes:
        valid_until: as a key's.
    """

    revision: int
    hash: bytes
    token_id: UUID
    name: str
    role: Role
    organisation_id: UUID | None
    team_id: UUID | None
    scopes: list[Permission] | None
    valid_until: datetime | None


# An end that has come by the database's clock has come for every process, whatever its clock says.
_KEYS = """
WITH changed AS (
    SELECT k.id FROM api_keys k WHERE k.revision > $1
    UNION
    SELECT k.id FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE t.revision > $1
    UNION
    SELECT k.id FROM api_keys k JOIN teams t ON t.id = k.team_id
        JOIN organisations o ON o.id = t.organisation_id WHERE o.revision > $1
)
SELECT greatest(k.revision, t.revision, o.revision) AS revision, k.hash, k.id AS key_id,
    k.name AS key_name, k.limits AS key_limits, t.id AS team_id, t.name AS team_name,
    t.limits AS team_limits, o.id AS organisation_id, o.name AS organisation_name,
    o.limits AS organisation_limits, o.time_zone, k.replaced_by,
    CASE WHEN valid.until <= now() THEN to_timestamp(0) ELSE valid.until END AS valid_until
FROM changed JOIN api_keys k USING (id) JOIN teams t ON t.id = k.team_id
    JOIN organisations o ON o.id = t.organisation_id
    CROSS JOIN LATERAL (
        SELECT least(k.expires_at, k.revoked_at, t.archived_at, o.archived_at) AS until
    ) valid
"""

_TOKENS = """
WITH changed AS (
    SELECT a.id FROM admin_tokens a WHERE a.revision > $1
    UNION
    SELECT a.id FROM admin_tokens a JOIN teams t ON t.id = a.team_id WHERE t.revision > $1
    UNION
    SELECT a.id FROM admin_tokens a JOIN organisations o ON o.id = a.organisation_id
        WHERE o.revision > $1
)
SELECT greatest(a.revision, t.revision, o.revision) AS revision, a.hash, a.id AS token_id, a.name,
    a.role, a.organisation_id, a.team_id, a.scopes,
    CASE WHEN valid.until <= now() THEN to_timestamp(0) ELSE valid.until END AS valid_until
FROM changed JOIN admin_tokens a USING (id) LEFT JOIN teams t ON t.id = a.team_id
    LEFT JOIN organisations o ON o.id = a.organisation_id
    CROSS JOIN LATERAL (
        SELECT least(a.expires_at, a.revoked_at, t.archived_at, o.archived_at) AS until
    ) valid
"""


class Changes:
    """Reads what changed."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def keys(self, since: int) -> list[KeyChange]:
        """Keys that changed after a revision."""
        return [_key(row) for row in await self._pool.fetch(_KEYS, since)]

    async def tokens(self, since: int) -> list[TokenChange]:
        """Tokens that changed after a revision."""
        return [TokenChange(**row) for row in await self._pool.fetch(_TOKENS, since)]


def _key(row: asyncpg.Record) -> KeyChange:
    values: dict[str, Any] = dict(row)
    for name in ("organisation_limits", "team_limits", "key_limits"):
        values[name] = msgspec.json.decode(values[name], type=Limits)
    return KeyChange(**values)
