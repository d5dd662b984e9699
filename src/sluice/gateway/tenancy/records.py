"""How things of tenancy are kept and shown: limits flattened, changes merged.

In the database limits are one column. To callers they are members of the thing that they limit.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from sluice.gateway.tenancy.limits import Limits

T = TypeVar("T", bound=msgspec.Struct)

#: Names of organisations and teams, which stand for their ids in paths.
Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$(?!\n)")]

#: Other names, for people.
Label = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$(?!\n)")]

#: Members of a body, undecoded: decimals stay exact.
Members = Mapping[str, msgspec.Raw]

_NULL = b"null"


class Limited(Limits, frozen=True, kw_only=True, forbid_unknown_fields=False, omit_defaults=False):
    """The record of something that has limits.

    Attributes:
        revision: grows with every change; the ETag.
    """

    id: UUID
    name: str
    created_at: datetime
    revision: int


def as_uuid(text: str) -> UUID | None:
    """The id that a text is, if it is one."""
    try:
        return UUID(text)
    except ValueError:
        return None


def check_slug(name: str) -> None:
    """Names and ids stand in the same places of paths, so no name may look like an id.

    Raises:
        ValueError: it does.
    """
    if as_uuid(name) is not None:
        raise ValueError("`name` must not be a UUID")


def check_time_zone(name: str) -> None:
    """Raises:
    ValueError: it is no time zone of the IANA database.
    """
    if name not in _time_zones():
        raise ValueError("`time_zone` must be a name of the IANA database, as Europe/Berlin")


@cache
def _time_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - {"Factory", "localtime"})


def in_utc(time: datetime | None, param: str = "expires_at") -> datetime | None:
    """A time of a caller's; without an offset it is UTC.

    Raises:
        ValueError: in UTC it is none that there is.
    """
    if time is None or time.tzinfo is None:
        return time and time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"`{param}` is out of range") from None


def flattened(row: asyncpg.Record) -> dict[str, Any]:
    """A row's columns, with the limits among them."""
    values: dict[str, Any] = dict(row.items())
    limits = msgspec.json.decode(values.pop("limits"), type=Limits)
    return {**values, **{name: getattr(limits, name) for name in Limits.__struct_fields__}}


def limits_column(fields: Limits) -> str:
    """The column of something whose members are limits among others."""
    limits = Limits(**{name: getattr(fields, name) for name in Limits.__struct_fields__})
    return msgspec.json.encode(limits).decode()


def merged(kind: type[T], current: msgspec.Struct, changes: Members) -> T:
    """What a thing is to be after a JSON merge patch (RFC 7396): absent members stay, null ones
    go, others are replaced.

    Args:
        kind: the members that may be changed.
        current: the thing now, which has these members.
        changes: the patch.

    Raises:
        msgspec.ValidationError: the result can't be.
    """
    known = kind.__struct_fields__
    now = {name: msgspec.Raw(msgspec.json.encode(getattr(current, name))) for name in known}
    kept = {
        name: value
        for name, value in {**now, **changes}.items()
        if not (name in known and bytes(value) == _NULL)
    }
    return msgspec.json.decode(msgspec.json.encode(kept), type=kind)
