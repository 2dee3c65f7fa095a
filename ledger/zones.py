"""Two copies of the time zone database, Python's and Postgres's, held against each other.

An entry takes its local day from Python's, an ask its window from Postgres's. Where governments change a zone, the
copy that is older puts the same instant into another day, so such a zone is refused, and `tallystick verify` names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from psycopg import sql

OFFSETS: Final = sql.SQL("""
select at, extract(epoch from (at at time zone {zone}) - (at at time zone 'UTC'))::integer
from
    generate_series(
        date_trunc('hour', now(), 'UTC') - interval '2 days',
        date_trunc('hour', now(), 'UTC') + interval '400 days',
        interval '1 hour'
    ) as at
order by at
""")
"""(instant, seconds east of UTC as Postgres has it): each hour from two days ago until each clock change of a year is seen."""


@dataclass(frozen=True, slots=True)
class ZoneDifference:
    """The first instant of a zone at which the two copies disagree."""

    zone: str
    at: datetime
    python_seconds: int
    """Seconds east of UTC."""
    postgres_seconds: int

    def __str__(self) -> str:
        return (
            f"time zone {self.zone} at {self.at:%Y-%m-%d %H:%M} UTC is {_offset(self.python_seconds)} for Python and"
            f" {_offset(self.postgres_seconds)} for Postgres; update the older copy of the time zone database:"
            " the package tzdata, or the one that Postgres reads"
        )


def difference(zone: str, offsets: Iterable[tuple[Any, ...]]) -> ZoneDifference | None:
    """Return where Python's copy first disagrees with the rows of OFFSETS; None where they agree."""
    ours = ZoneInfo(zone)
    for at, seconds in offsets:
        offset = at.astimezone(ours).utcoffset()
        assert offset is not None
        if offset.total_seconds() != seconds:
            return ZoneDifference(zone, at, int(offset.total_seconds()), seconds)
    return None


def _offset(seconds: int) -> str:
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"UTC{'-' if seconds < 0 else '+'}{hours:02d}:{minutes:02d}"
