"""Who may do what where, on values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.tenancy.roles import (
    INSTALLATION,
    OF_ROLE,
    PERMISSIONS,
    Administrator,
    Permission,
    Place,
    Role,
    may_grant,
    verdict,
)

HOME, HOME_TEAM = Place("o1"), Place("o1", "t1")
PLACES = [INSTALLATION, HOME, HOME_TEAM, Place("o1", "t2"), Place("o2"), Place("o2", "t3")]

places = st.sampled_from(PLACES)
permissions = st.sampled_from(sorted(PERMISSIONS))


@st.composite
def administrators(draw: st.DrawFn) -> Administrator:
    place = draw(places)
    return Administrator(
        actor="token:1",
        name="one",
        role=draw(st.sampled_from(get_args(Role))),
        organisation_id=place.organisation_id,
        team_id=place.team_id,
        scopes=draw(st.none() | st.frozensets(permissions)),
    )


def one(role: Role, place: Place = INSTALLATION, scopes: Any = None) -> Administrator:
    return Administrator("token:1", "one", role, place.organisation_id, place.team_id, scopes)


@pytest.mark.parametrize("permission", sorted(PERMISSIONS))
@pytest.mark.parametrize("role", get_args(Role))
def test_what_each_role_may(role: Role, permission: Permission) -> None:
    expected = {
        "owner": True,
        "auditor": permission.endswith(":read"),
        "team_admin": permission
        in (
            *("teams:read", "keys:read", "keys:write", "usage:read", "audit:read"),
            "routing:read",
        ),
    }
    assert (verdict(one(role), permission, HOME_TEAM) == "allowed") == expected[role]


@pytest.mark.parametrize(
    ("confinement", "covered"),
    [
        (INSTALLATION, PLACES),
        (HOME, [HOME, HOME_TEAM, Place("o1", "t2")]),
        (HOME_TEAM, [HOME_TEAM]),
    ],
)
def test_what_lies_within(confinement: Place, covered: list[Place]) -> None:
    assert [place for place in PLACES if one("owner", confinement).covers(place)] == covered


@given(administrators(), permissions, places)
def test_what_is_forbidden_does_not_depend_on_the_place(
    administrator: Administrator, permission: Permission, place: Place
) -> None:
    forbidden = verdict(administrator, permission, place) == "forbidden"
    assert forbidden == (permission not in administrator.permissions)
    assert administrator.permissions <= OF_ROLE[administrator.role]


@given(administrators(), administrators(), permissions, places)
def test_nobody_gives_more_than_they_have(
    giver: Administrator, given_: Administrator, permission: Permission, place: Place
) -> None:
    if may_grant(giver, given_) and verdict(given_, permission, place) == "allowed":
        assert verdict(giver, permission, place) == "allowed"


@given(administrators())
def test_everybody_may_give_what_they_are(administrator: Administrator) -> None:
    assert may_grant(administrator, administrator)
    assert may_grant(one("owner"), administrator)


def test_nobody_gives_more_time_than_they_have() -> None:
    soon, later = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    giver = replace(one("owner"), valid_until=soon)
    assert may_grant(giver, giver)
    assert may_grant(one("owner"), giver)
    assert not may_grant(giver, one("owner"))
    assert not may_grant(giver, replace(giver, valid_until=later))
