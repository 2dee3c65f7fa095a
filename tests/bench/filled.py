"""A ledger of millions of entries to read: some posted as everything is, the others copies of those, batch by batch.

Copies have what a reader of the ledger meets: partitions, batches with numbers in a feed, digests that name the months, rows in
ranges of the key, more buckets of time. They have no chain and no keys, so this is for rollups and queries, not for `verify`.
"""

import time

from ingest.intake import Intake
from ledger import feeds
from ledger.database import connect
from tests.bench.bench_post import post_all
from tests.bench.world import World
from tests.support.databases import Database
from tests.support.ledger import Ledger

POSTED = 200_000
_AT_ONCE = 50_000


async def post_events(made: World, database: Database, packs: list[bytes], feed: str = "file:bench") -> None:
    """Post messages to a database through the ledger's own door."""
    url = database.url_for("tallystick_writer")
    connection = await connect(url)
    held = await feeds.claim(connection, "file", feed)
    await connection.close()
    intake = await Intake.open(url, held, patience=10)
    try:
        await post_all(intake, packs)
    finally:
        await intake.close()


async def post_entries(made: World, entries: int = POSTED) -> None:
    """Fill a world by posting usage of an hour ago; half of the requests are reported twice."""
    for at in range(0, entries, _AT_ONCE):
        packs = made.packs(min(_AT_ONCE, entries - at), second_percent=50, hours_ago=1)
        await post_events(made, made.ledger.database, packs)
    made.ledger.superuser.execute("vacuum analyze")


def copy_entries(ledger: Ledger, entries: int) -> float:
    """Copy what is there until there are so many entries, each copy some hours earlier; return the seconds it took."""
    started = time.monotonic()
    connection = ledger.superuser
    columns = [
        name
        for (name,) in ledger.rows(
            "select attname::text from pg_attribute where attrelid = 'ledger.entries'::regclass and attnum > 0"
            " and not attisdropped order by attnum"
        )
    ]
    changed = {
        "entry_id": "(e.batch_id + {step}) * 65536 + e.entry_id % 65536",
        "batch_id": "e.batch_id + {step}",
        "event_key": "md5(e.event_key::text || {step})::uuid",
        "request_key": "md5(e.request_key::text || {step})::uuid",
        "corrects_entry_id": "e.corrects_entry_id + {step} * 65536::bigint",
        "occurred_at": "e.occurred_at - make_interval(hours => {number})",
        "local_date": "((e.occurred_at - make_interval(hours => {number})) at time zone 'UTC')::date",
    }
    posted = ledger.value("select count(*) from ledger.entries")
    last = ledger.value("select max(batch_id) from ledger.batches")
    batches = ledger.value("select count(*) from ledger.batches")
    connection.execute("set session_replication_role = replica")
    connection.execute(
        "create temp table posted_batches as select *, row_number() over (order by batch_id) as place from ledger.batches"
    )
    connection.execute(
        "insert into ledger.feeds select (jsonb_populate_record(f, jsonb_build_object("
        "'feed_id', (select max(feed_id) + 1 from ledger.feeds), 'name', 'file:copied', 'last_number', 0))).*"
        " from ledger.feeds as f order by feed_id limit 1"
    )
    feed = ledger.value("select max(feed_id) from ledger.feeds")
    for number in range(1, -(-(entries - posted) // posted) + 1):
        step = number * last
        share = min(1.0, (entries - posted * number) / posted)
        upto = ledger.value("select batch_id from posted_batches where place = %s", max(1, round(batches * share)))
        connection.execute(
            "insert into ledger.batches select (jsonb_populate_record(b, jsonb_build_object("
            "'batch_id', p.batch_id + %(step)s, 'feed_id', %(feed)s, 'number', %(first)s + p.place))).*"
            " from posted_batches as p join ledger.batches as b on b.batch_id = p.batch_id where p.batch_id <= %(upto)s",
            {"step": step, "feed": feed, "first": (number - 1) * batches, "upto": upto},
        )
        connection.execute(
            "insert into ledger.batch_digests select (jsonb_populate_record(d, jsonb_build_object("
            "'batch_id', d.batch_id + %(step)s))).* from ledger.batch_digests as d where d.batch_id <= %(upto)s",
            {"step": step, "upto": upto},
        )
        values = ", ".join(changed.get(name, f"e.{name}").format(step=step, number=number) for name in columns)
        connection.execute(
            f"insert into ledger.entries ({', '.join(columns)}) select {values} from ledger.entries as e"
            f" where e.batch_id <= {upto}".encode()
        )
        connection.execute(
            "update ledger.feeds set last_number = (select max(number) from ledger.batches where feed_id = %s) where feed_id = %s",
            [feed, feed],
        )
    connection.execute("set session_replication_role = default")
    connection.execute("select setval('ledger.batches_batch_id_seq', (select max(batch_id) from ledger.batches))")
    connection.execute(
        "select setval(pg_get_serial_sequence('ledger.feeds', 'feed_id'), (select max(feed_id) from ledger.feeds))"
    )
    connection.execute("drop table posted_batches")
    connection.execute("vacuum analyze ledger.entries")
    connection.execute("vacuum analyze ledger.batches")
    connection.execute("vacuum analyze ledger.batch_digests")
    connection.execute("checkpoint")
    return time.monotonic() - started
