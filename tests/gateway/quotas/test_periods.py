"""Calendar periods: time zones, summer time, month ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.quotas.periods import span_of
from sluice.gateway.tenancy.limits import Period


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("period", "zone", "at", "starts", "ends"),
    [
        ("day", "UTC", "2026-02-28T23:59:59", "2026-02-28T00:00", "2026-03-01T00:00"),
        ("month", "UTC", "2026-01-31T12:00", "2026-01-01T00:00", "2026-02-01T00:00"),
        ("month", "UTC", "2028-02-29T12:00", "2028-02-01T00:00", "2028-03-01T00:00"),
        ("month", "UTC", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        # a week begins on Monday, and crosses the year
        ("week", "UTC", "2027-01-01T00:00", "2026-12-28T00:00", "2027-01-04T00:00"),
        # summer time: a day of 23 hours and one of 25
        ("day", "Europe/Berlin", "2026-03-29T10:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("day", "Europe/Berlin", "2026-10-25T10:00", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("week", "America/New_York", "2026-03-08T12:00", "2026-03-02T05:00", "2026-03-09T04:00"),
        ("month", "Asia/Kolkata", "2026-04-30T18:29", "2026-03-31T18:30", "2026-04-30T18:30"),
        ("month", "Asia/Kolkata", "2026-04-30T18:30", "2026-04-30T18:30", "2026-05-31T18:30"),
        # midnight does not exist: the day begins when the clocks go forward
        ("day", "Africa/Cairo", "2026-04-24T05:00", "2026-04-23T22:00", "2026-04-24T21:00"),
        # midnight comes twice
        ("day", "America/Havana", "2026-11-01T04:30", "2026-11-01T04:00", "2026-11-02T05:00"),
        # another day altogether
        ("day", "Pacific/Kiritimati", "2026-06-01T10:00", "2026-06-01T10:00", "2026-06-02T10:00"),
    ],
)
def test_periods(period: Period, zone: str, at: str, starts: str, ends: str) -> None:
    span = span_of(period, zone, utc(at))
    assert (span.starts_at, span.ends_at) == (utc(starts), utc(ends))


ZONES = sorted(available_timezones())


@given(
    period=st.sampled_from(["day", "week", "month"]),
    zone=st.sampled_from(ZONES),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),
)
def test_every_moment_lies_in_its_period_and_periods_meet(
    period: Period, zone: str, at: datetime
) -> None:
    span = span_of(period, zone, at)
    assert span.starts_at <= at < span.ends_at
    assert span_of(period, zone, span.starts_at) == span
    assert span_of(period, zone, span.ends_at - timedelta(microseconds=1)) == span
    assert span_of(period, zone, span.ends_at).starts_at == span.ends_at


@given(
    zone=st.sampled_from(ZONES),
    at=st.datetimes(datetime(2026, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
)
def test_every_midnight_is_on_a_quarter_of_an_hour(zone: str, at: datetime) -> None:
    """The ledger keeps what was spent by quarters."""
    start = span_of("day", zone, at).starts_at
    assert (start.minute % 15, start.second, start.microsecond) == (0, 0, 0)
