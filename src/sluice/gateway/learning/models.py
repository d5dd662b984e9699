"""Models that score requests, as versions in Postgres: made by training or uploaded, promoted one
at a time an alias, rolled back."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.learning.scorer_sync import ModelChange
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.gateway.tenancy.transactions import Connection, change
from sluice.router.complexity.model import InvalidModel
from sluice.router.complexity.scorer import Scorer

State = Literal["candidate", "active", "retired"]
Origin = Literal["training", "upload"]

#: Models that are kept of an alias; older ones that are not active go.
KEPT = 20

_COLUMNS = (
    "id, alias, version, state, origin, sha256, octet_length(file) AS bytes, report, created_at,"
    " promoted_at, revision"
)

_INSERT = f"""
INSERT INTO router_models (id, alias, version, state, origin, file, sha256, report)
SELECT $1, $2, coalesce(max(version), 0) + 1, 'candidate', $3, $4, $5, $6
FROM router_models WHERE alias = $2
RETURNING {_COLUMNS}
"""

_NOW = "promoted_at = clock_timestamp()"

_PRUNE = """
DELETE FROM router_models WHERE alias = $1 AND state <> 'active' AND version <= (
    SELECT max(version) - $2 FROM router_models WHERE alias = $1)
"""


class RouterModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that scores the requests of an alias.

    Attributes:
        alias: whose requests.
        version: counts the alias's models, from 1.
        state: `candidate`: not used yet; `active`: in use; `retired`: was in use.
        origin: `training` of this installation, or `upload`.
        sha256: of the file, in hex.
        bytes: the file's size.
        report: what training measured.
        promoted_at: when it was last promoted; None: it never was, or was withdrawn.
        revision: grows with every change; the ETag.
    """

    id: UUID
    alias: str
    version: int
    state: State
    origin: Origin
    sha256: str
    bytes: int
    report: dict[str, Any]
    created_at: datetime
    promoted_at: datetime | None
    revision: int

    @property
    def place(self) -> Place:
        """Models are the installation's."""
        return INSTALLATION


class RouterModels:
    """Reads and changes models."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create(
        self, alias: str, file: bytes, origin: Origin, report: dict[str, Any], by: By
    ) -> RouterModel:
        """Keep a model as a candidate; models that are long out of use go.

        Raises:
            Conflict: it is no model that this release can read.
        """
        try:
            Scorer.of_model(file)
        except InvalidModel as error:
            raise Conflict(f"the file is no model: {error}", "file") from None
        async with change(self._pool) as connection:
            [row] = await connection.fetch(
                _INSERT,
                uuid_utils.compat.uuid7(),
                alias,
                origin,
                file,
                hashlib.sha256(file).hexdigest(),
                msgspec.json.encode(report).decode(),
            )
            made = _model(row)
            await record(connection, by, "router_model", "create", None, made)
            await connection.execute(_PRUNE, alias, KEPT)
        return made

    async def find(self, alias: str, version: int) -> RouterModel:
        """A model by its version.

        Raises:
            Missing: there is none.
        """
        return await _find(self._pool, alias, version)

    async def active(self, alias: str) -> RouterModel | None:
        """The model in use; None: the rule is."""
        return await _active(self._pool, alias)

    async def file(self, model: RouterModel) -> bytes:
        """A model's file.

        Raises:
            Missing: it has gone.
        """
        found: bytes | None = await self._pool.fetchval(
            "SELECT file FROM router_models WHERE id = $1", model.id
        )
        if found is None:
            raise Missing("the model has gone")
        return found

    async def page(self, alias: str | None, turn: Turn) -> Page[RouterModel]:
        """Models, oldest first: of one alias, or of all."""
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM router_models WHERE ($1::text IS NULL OR alias = $1)"
            " AND ($2::uuid IS NULL OR id > $2) ORDER BY id LIMIT $3",
            alias,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _model)

    async def promote(self, alias: str, version: int, by: By) -> RouterModel:
        """Take a model into use; the one that was is retired, in the same moment.

        Raises:
            Missing: there is no such version.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, alias, version)
            if before.state == "active":
                return before
            present = await _active(connection, alias)
            if present is not None:
                await _turn(connection, present, "retired", "retire", by)
            return await _turn(connection, before, "active", "promote", by, _NOW)

    async def roll_back(self, alias: str, by: By) -> RouterModel | None:
        """Withdraw the model in use. What was in use before it is again; without one the rule is.

        Returns:
            The model that is in use now; None: the rule.

        Raises:
            Missing: the rule is in use already.
        """
        async with change(self._pool) as connection:
            left = await _active(connection, alias)
            if left is None:
                raise Missing(f"no model of `{alias}` is in use")
            await _turn(connection, left, "retired", "roll_back", by, "promoted_at = NULL")
            row = await connection.fetchrow(
                f"SELECT {_COLUMNS} FROM router_models WHERE alias = $1 AND state = 'retired'"
                " AND promoted_at IS NOT NULL ORDER BY promoted_at DESC LIMIT 1",
                alias,
            )
            if row is None:
                return None
            return await _turn(connection, _model(row), "active", "promote", by)


async def changed_models(pool: asyncpg.Pool, since: int) -> list[ModelChange]:
    """Models that changed after a revision. Revisions become visible in order, so that "newer
    than n" misses nothing."""
    rows = await pool.fetch(
        "SELECT alias, version, revision, CASE WHEN state = 'active' THEN file END AS file"
        " FROM router_models WHERE revision > $1 ORDER BY revision",
        since,
    )
    return [ModelChange(**row) for row in rows]


async def _find(reader: asyncpg.Pool | Connection, alias: str, version: int) -> RouterModel:
    row = await reader.fetchrow(
        f"SELECT {_COLUMNS} FROM router_models WHERE alias = $1 AND version = $2", alias, version
    )
    if row is None:
        raise Missing(f"`{alias}` has no model of version {version}")
    return _model(row)


async def _active(reader: asyncpg.Pool | Connection, alias: str) -> RouterModel | None:
    row = await reader.fetchrow(
        f"SELECT {_COLUMNS} FROM router_models WHERE alias = $1 AND state = 'active'", alias
    )
    return None if row is None else _model(row)


async def _turn(
    connection: Connection,
    before: RouterModel,
    state: State,
    verb: str,
    by: By,
    and_set: str = "promoted_at = promoted_at",
) -> RouterModel:
    [row] = await connection.fetch(
        f"UPDATE router_models SET state = $2, {and_set} WHERE id = $1 RETURNING {_COLUMNS}",
        before.id,
        state,
    )
    after = _model(row)
    await record(connection, by, "router_model", verb, before, after)
    return after


def _model(row: asyncpg.Record) -> RouterModel:
    values: dict[str, Any] = dict(row.items())
    values["report"] = msgspec.json.decode(values["report"])
    return RouterModel(**values)
