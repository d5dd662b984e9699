"""A routing document as it is kept."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.router.auto.documents import RoutingDocument

#: The id, the version and the revision of what the configuration says.
CONFIGURED = UUID(int=0)


class RoutingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for an alias, of all teams or of one.

    Attributes:
        id: nil for what the configuration says.
        team_id: whose requests; None: those of all teams that have none of their own.
        version: grows by 1 with every change; 0 is the configuration's.
        document: None: it was removed, or is not readable.
        changed_at: None for the configuration's.
        revision: grows with every change; the ETag.
        unreadable: what is wrong with a document that this release can't read, as one of a later
            release's. Whoever gets it holds to what was there before.
    """

    id: UUID
    alias: str
    team_id: UUID | None
    organisation_id: UUID | None
    version: int
    document: RoutingDocument | None
    changed_at: datetime | None
    revision: int
    unreadable: str | None = None

    @property
    def place(self) -> Place:
        """Where it is: its team's, or the installation's."""
        if self.team_id is None:
            return INSTALLATION
        return Place(str(self.organisation_id), str(self.team_id))


class RoutingVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version that is or was in force.

    Attributes:
        document: None: there was none, or it is not readable.
        actor: who made it, as the audit log names them.
        unreadable: see `RoutingRecord`.
    """

    version: int
    document: RoutingDocument | None
    created_at: datetime
    actor: str
    unreadable: str | None = None


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
