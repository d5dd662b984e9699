"""A routing document as it is kept."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.router.auto.documents import RoutingDocument

#: The id, the version and the revision of what the configuration says.
CONFIGURED = UUID(int=0)


class RoutingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for an alias, of all teams or of one.

    Attributes:
        id: nil for what the configuration says.
        team_id: whose requests; None: those of all teams that have none of their own.
        version: grows by 1 with every change; 0 is the configuration's.
        document: None: it was removed.
        changed_at: None for the configuration's.
        revision: grows with every change; the ETag.
    """

    id: UUID
    alias: str
    team_id: UUID | None
    organisation_id: UUID | None
    version: int
    document: RoutingDocument | None
    changed_at: datetime | None
    revision: int

    @property
    def place(self) -> Place:
        """Where it is: its team's, or the installation's."""
        if self.team_id is None:
            return INSTALLATION
        return Place(str(self.organisation_id), str(self.team_id))


class UnreadableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A document that this release can't read, as one of a later release's.

    Attributes:
        revision: as in `RoutingRecord`.
        reason: what is wrong with it.
    """

    alias: str
    revision: int
    reason: str


class RoutingVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is or was in force.

    Attributes:
        document: None: there was none.
        actor: who made it, as the audit log names them.
    """

    version: int
    document: RoutingDocument | None
    created_at: datetime
    actor: str


def of_configuration(alias: str, document: RoutingDocument) -> RoutingRecord:
    """What the configuration says, as a record."""
    return RoutingRecord(
        id=CONFIGURED,
        alias=alias,
        team_id=None,
        organisation_id=None,
        version=0,
        document=document,
        changed_at=None,
        revision=0,
    )
