"""The cookbook: each question's time and its plan, slowest first, at a database that somebody filled (`tallystick generate`).

`make bench NAME=cookbook DATABASE=postgresql://...` reads only. Each is run once to warm up and PAIRS times under `explain
analyze`; the median is printed with the number of entries, so that figures of two databases are not confused. TENANT and DAY
name what the narrow questions ask for; left out, the tenant with the newest entry and its day.
"""

import json
import os
import statistics
import sys
from typing import Any

import psycopg

from tallystick.addresses import libpq_url
from tallystick.cookbook import questions, statement
from tests.bench.harness import Comparison, size

# The narrow ones are asked for one tenant, as people do.
_NARROW = ("trace-a-cent",)


async def run() -> list[Comparison]:
    url = os.environ.get("DATABASE")
    if not url:
        sys.exit("DATABASE=postgresql://... names the database to ask; `tallystick generate` fills one")
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        connection.execute("set search_path = ledger, quotas, marts, public")
        connection.execute("set default_transaction_read_only = on")
        found = connection.execute(
            "select (select sum(entry_count)::bigint from ledger.batches), e.tenant_id, e.local_date::text"
            " from (select tenant_id, local_date from ledger.entries order by posting_period desc, entry_id desc limit 1) as e"
        ).fetchone()
        if found is None:
            sys.exit("there are no entries in this database")
        entries, tenant, day = found
        narrow = {"tenant": os.environ.get("TENANT", tenant), "day": os.environ.get("DAY", day)}
        timed = []
        for each in questions():
            given = {name: value for name, value in narrow.items() if each.name in _NARROW}
            timed.append((*_timed(connection, statement(each.name, given)), each.name))
    print(f"    {entries:,} entries, medians of {size('PAIRS', 3)} after one", flush=True)
    for milliseconds, rows, plan, name in sorted(timed, reverse=True):
        print(f"    {milliseconds:10,.1f} ms  {rows:6,} rows  {name:36} {plan}", flush=True)
    return []


def _timed(connection: psycopg.Connection[Any], text: str) -> tuple[float, int, str]:
    """Return the median time, the rows, and the plan in a line: its top, and what it reads by."""
    explain = f"explain (analyze, timing off, format json) {text}".encode()
    plans = []
    for _ in range(size("PAIRS", 3) + 1):
        row = connection.execute(explain).fetchone()
        assert row is not None
        plans.append(row[0][0] if isinstance(row[0], list) else json.loads(row[0])[0])
    times = [plan["Planning Time"] + plan["Execution Time"] for plan in plans[1:]]
    top = plans[-1]["Plan"]
    reads = sorted({_read_by(node) for node in _nodes(top) if "Scan" in node["Node Type"] and "Relation Name" in node})
    return statistics.median(times), int(top["Actual Rows"]), f"{top['Node Type']}: {', '.join(reads)}"


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for each in node.get("Plans", ()) for below in _nodes(each))]


def _read_by(node: dict[str, Any]) -> str:
    # A partition is named for its month: all of them are one table.
    table = node["Relation Name"]
    table = "entries" if table.startswith("entries_") else table
    return f"{node['Node Type'].lower()} of {table}"
