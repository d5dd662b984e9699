"""Calendar periods in a time zone. Pure: values in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from sluice.gateway.tenancy.limits import Period


@dataclass(frozen=True, slots=True)
class Span:
    """A period of the calendar: `[starts_at, ends_at)`, in UTC."""

    starts_at: datetime
    ends_at: datetime


def span_of(period: Period, time_zone: str, at: datetime) -> Span:
    """The period that a moment lies in.

    A day begins at the first instant that the zone's clocks show its date: a day that loses its
    midnight to summer time begins when the clocks go forward, one that has two at the first of
    them. Weeks begin on Monday (ISO 8601).
    """
    zone = ZoneInfo(time_zone)
    first = _first_day(period, at.astimezone(zone).date())
    while True:
        following = _following(period, first)
        span = Span(_begin(first, zone), _begin(following, zone))
        if at < span.ends_at:
            return span
        first = following  # clocks went back over midnight: the new day has begun already


def _first_day(period: Period, day: date) -> date:
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _following(period: Period, first: date) -> date:
    if period == "month":
        return (first.replace(day=28) + timedelta(days=4)).replace(day=1)
    return first + timedelta(days=7 if period == "week" else 1)


def _begin(day: date, zone: ZoneInfo) -> datetime:
    # in a gap, the offset from before it gives the very instant of the change
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
