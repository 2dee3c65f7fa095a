"""Instants as whole microseconds since 1970 UTC: exact, quick to compare, and cut rather than rounded."""

import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

# The pinned copy, not that of the machine: all parts take the same day for the same instant.
zoneinfo.reset_tzpath(())

YEARS: Final = range(2000, 2200)
"""Of days and instants that somebody names: others are mistyped, and near an end of the calendar no zone can be reckoned with."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d", re.ASCII)
_RFC3339: Final = re.compile(rf"({_SECOND.pattern})(?:\.(\d{{1,12}}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
# What a fraction of so many digits is multiplied by; digits beyond the sixth are cut.
_SCALES: Final = (0, 100_000, 10_000, 1_000, 100, 10, 1, 1, 1, 1, 1, 1, 1)
_NO_RFC3339: Final = "is not an RFC 3339 time with an offset"
_QUARTER_HOUR: Final = 15 * 60 * 1_000_000


def micros(at: datetime) -> int:
    """Return an aware datetime as microseconds since 1970 UTC, exactly."""
    return (at - _EPOCH) // _MICROSECOND


_FIRST: Final = micros(datetime(YEARS.start, 1, 1, tzinfo=UTC))
_END: Final = micros(datetime(YEARS.stop, 1, 1, tzinfo=UTC))


def is_within_years(instant: int) -> bool:
    """Return whether an instant is in `YEARS`, in UTC."""
    return _FIRST <= instant < _END


def from_micros(instant: int) -> datetime:
    """Return an instant as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant)


def parse_rfc3339(text: str) -> int:
    """Return the instant of an RFC 3339 text, cut to microseconds; raise ValueError for anything else.

    A fraction of nanoseconds is cut, since rounding would move the last instant of a month into the next one.
    """
    # Nearly all senders write UTC with a Z; events that arrive together share their seconds.
    rest = text[19:]
    if rest == "Z":
        return _whole_second(text[:19], "+00:00")
    if rest[-1:] == "Z" and rest[:1] == ".":
        fraction = rest[1:-1]
        if fraction.isdecimal() and fraction.isascii() and len(fraction) <= 12:
            return _whole_second(text[:19], "+00:00") + int(fraction[:6]) * _SCALES[len(fraction)]
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(_NO_RFC3339)
    second, fraction, offset = match.groups()
    whole = _whole_second(second, "+00:00" if offset in "Zz" else offset)
    return whole + int(fraction[:6]) * _SCALES[len(fraction)] if fraction else whole


@lru_cache(maxsize=65_536)
def _whole_second(second: str, offset: str) -> int:
    if _SECOND.fullmatch(second) is None:
        raise ValueError(_NO_RFC3339)
    return micros(datetime.fromisoformat(f"{second[:10]}T{second[11:]}{offset}"))


def postgres_text(instant: int) -> str:
    """Return an instant as Postgres prints it in UTC: 2026-01-15 10:00:00.25+00, trailing zeros cut."""
    seconds, fraction = divmod(instant, 1_000_000)
    if fraction:
        return f"{_second_text(seconds)}.{fraction:06d}".rstrip("0") + "+00"
    return _second_text(seconds) + "+00"


@lru_cache(maxsize=65_536)
def _second_text(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def local_date_at(zone: str, instant: int) -> date:
    """Return the day of an instant in a zone. Every zone's offset since 2020 is a multiple of a quarter hour."""
    return _local_date_of_quarter(zone, instant // _QUARTER_HOUR)


@lru_cache(maxsize=65_536)
def _local_date_of_quarter(zone: str, quarter: int) -> date:
    return from_micros(quarter * _QUARTER_HOUR).astimezone(_zone(zone)).date()


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def local_midnight(zone: str, day: date) -> int:
    """Return the first instant of a local day as microseconds: the gap of a clock change is skipped, the first of two taken."""
    naive = datetime(day.year, day.month, day.day)  # noqa: DTZ001  the zone is added in the next line
    return micros(naive.replace(tzinfo=_zone(zone), fold=0).astimezone(UTC))


def month_of(day: date) -> date:
    """Return the first day of a day's month."""
    return day.replace(day=1)


@lru_cache(maxsize=1024)
def month_after(month: date, count: int = 1) -> date:
    """Return the first day of the month that is `count` months later."""
    years, index = divmod(month.year * 12 + month.month - 1 + count, 12)
    return date(years, index + 1, 1)
