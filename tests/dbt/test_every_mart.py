"""What holds for every mart that adds: piecemeal is whole, and local days partition the month in every zone."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ledger.database import connect
from ledger.repricing import Scope, reprice
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import holds, set_up, usage
from tests.factories import NODE, make_event
from tests.ledger.prices import make_card, per_million

OWN = {
    "fct_conversation_cost": "request_count",
    "fct_tag_cost_daily": "request_count",
    "fct_latency_daily": "case when metric = 'end_to_end' then request_count else 0 end",
    "fct_tokens_by_minute": "request_count",
    "fct_meters_daily": "case when meter = 'requests' and not is_avoided then quantity else 0 end",
    "fct_cost_daily": "request_count",
}
"""Marts by local day, and what in each counts a request once."""
OTHERS = ("fct_tag_overlap_daily", "fct_cancelled_daily", "fct_conversations_daily")
MARTS = (*OWN, *OTHERS, "dim_tenants")

ZONES = (
    "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Pacific/Chatham", "America/St_Johns",
    "Africa/Casablanca", "Europe/Berlin", "Pacific/Kiritimati", "Etc/GMT+12",
)  # fmt: skip


def contents(marts: Marts) -> dict[str, list[Any]]:
    """All rows of the marts that add, those of which nothing is left put aside, since a rebuild never makes them."""
    found = {}
    for name in (*OWN, *OTHERS):
        numbers = [
            row[0]
            for row in marts.ledger.rows(
                "select attname::text from pg_attribute where attrelid = %s::regclass and attnum > 0"
                " and atttypid in ('bigint'::regtype, 'numeric'::regtype) and attname not like '%%rate_set_id'",
                f"marts.{name}",
            )
        ]
        some = " or ".join(f"{number} <> 0" for number in numbers)
        found[name] = sorted(marts.ledger.rows(f"select * from marts.{name} where {some}"), key=repr)
        assert found[name], name
    return found


def chance_events(seed: int, count: int) -> list[dict[str, Any]]:
    """Calls of all kinds, each reported up to three times by gateway and node, in any order; some are withdrawn."""
    chance = random.Random(seed)
    events = []
    for number in range(count):
        shared: dict[str, Any] = {
            "request_id": f"r-{number}",
            "time": f"2026-01-{14 + number % 3}T{number % 24:02d}:{chance.randrange(60):02d}:00Z",
            "model": chance.choice(["m-1", "m-2", "m-nobody-knows"]),
            "requested_model": chance.choice(["m-1", "m-2"]),
        }
        said: dict[str, Any] = {
            **shared,
            "language": chance.choice(["en", "de", "zh-Hans", ...]),
            "conversation_id": chance.choice(["c-1", "c-2", ...]),
            "tags": chance.choice([{"a": "1", "b": "", "c": "x"}, {"a": "1"}, ...]),
            "status": chance.choice(["ok", "ok", "cancelled"]),
            "attempt_kind": chance.choice(["first", "retry", ...]),
            "delivered_output_tokens": chance.choice([3, ...]),
        }
        size = chance.randrange(1, 2000)
        if chance.random() < 0.1:
            events.append(make_event(f"h-{number}", cache_result="exact_hit", usage=usage(size, 7), **said))
            continue
        events.append(make_event(f"g-{number}", latency_ms=chance.randrange(50, 9000), usage=usage(size, 7), **said))
        if chance.random() < 0.6:
            final = chance.random() < 0.5
            events.append(
                make_event(
                    f"n-{number}", source=NODE, latency_ms=chance.randrange(50, 9000), decode_ms=40, final=final,
                    usage=usage(size - 1, 7), **{**shared, "feature": ..., "language": ...},
                )
            )  # fmt: skip
        if chance.random() < 0.3:
            events.append(
                make_event(
                    f"g2-{number}", revision=1, latency_ms=chance.randrange(50, 9000), usage=usage(size, 9), **said
                )
            )
        if chance.random() < 0.1:
            events.append(make_event(f"v-{number}", revision=2, **{**said, "status": "void", "usage": ...}))
    chance.shuffle(events)
    return events


@pytest.mark.soak
@pytest.mark.parametrize("seed", [3])
async def test_piecemeal_is_whole_in_every_mart(marts: Marts, seed: int) -> None:
    """Reports that replace each other, voids and a repricing, over two feeds, a run now and then: a rebuild says the same."""
    await set_up(marts, "m-1", "m-2")
    events = chance_events(seed, 60)
    for start in range(0, len(events), 12):
        feed = "file:one" if start % 24 else "file:two"
        await marts.ledger.post(*events[start : start + 12], received_at="2026-12-31T00:00:00Z", feed=feed)
        if start % 36 == 0:
            marts.roll_up(*MARTS)
    dearer = make_card(per_million(input="3.00", output="9.00"), model="m-1", effective_at="2026-01-15T00:00:00Z")
    await marts.ledger.add_card(dearer)
    async with (
        await connect(marts.ledger.database.url_for("tallystick_operator")) as operator,
        await connect(marts.ledger.database.url_for("tallystick_writer")) as writer,
    ):
        assert (await reprice(operator, writer, Scope(), actor="ann", reason="misread")).entries
    marts.roll_up(*MARTS, tests=True)
    piecemeal = contents(marts)
    marts.rebuild()
    assert contents(marts) == piecemeal
    marts.roll_up(tests=True)
    assert contents(marts) == piecemeal
    assert holds(marts)


async def test_local_days_partition_the_month_in_every_zone(marts: Marts) -> None:
    """One request in each half hour of the days around clock changes and of a month's ends: the days of each mart are those
    of the zone, each request in one of them."""
    await set_up(marts)
    for zone in ZONES:
        marts.ledger.add_tenant(zone, zone=zone)
    instants = [
        datetime(2026, month, day, tzinfo=UTC) + timedelta(minutes=minutes, seconds=-1)
        for month, day in ((3, 1), (3, 29), (4, 5), (10, 4))
        for minutes in range(0, 24 * 60, 30)
    ]
    for zone in ZONES:
        await marts.post(
            *(
                make_event(
                    f"{zone}-{instant:%m-%dT%H:%M}",
                    tenant_id=zone,
                    time=f"{instant:%Y-%m-%dT%H:%M:%SZ}",
                    usage=usage(1),
                )
                for instant in instants
            )
        )
    marts.roll_up(*MARTS)
    for zone in ZONES:
        days = Counter(instant.astimezone(ZoneInfo(zone)).date() for instant in instants)
        for mart, counted in OWN.items():
            found = dict(
                marts.ledger.rows(
                    f"select local_date, sum({counted}) from marts.{mart} where tenant_id = %s group by 1", zone
                )
            )
            assert found == days, (zone, mart)


async def test_every_mart_tells_its_grain_and_columns_where_people_look(marts: Marts) -> None:
    """`\\d+` of a table or view says what a row is and what each column is."""
    marts.roll_up()
    silent = marts.ledger.rows(
        "select c.relname, a.attname from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0"
        " and not a.attisdropped where c.relnamespace = 'marts'::regnamespace and c.relkind in ('r', 'v')"
        " and c.relname not in ('watermarks', 'run_batches', 'loaded_seeds') and col_description(c.oid, a.attnum) is null"
    )
    assert silent == []
    (without,) = marts.ledger.rows(
        "select count(*) from pg_class as c where c.relnamespace = 'marts'::regnamespace and c.relkind in ('r', 'v')"
        " and coalesce(obj_description(c.oid), '') !~ '^(One row per|Of the login)'"
    )
    assert without == (0,)
