"""A ledger of a stated size to measure on: parties, prices, budgets, and keys of earlier events."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from ingest.replay import _uuid7
from migrations.run import migrate
from tallystick.addresses import libpq_url
from tallystick.embedded import SOCKET_PORT, EmbeddedPostgres, PostgresAddress
from tests.factories import GATEWAY, NODE
from tests.support.databases import Database
from tests.support.ledger import Ledger

TENANTS = 200
PACK = 100
SHARED_BUFFERS = "2GB"


class World:
    """A migrated database with tenants, prices and a budget for each tenant, and a source of fresh events."""

    def __init__(self, ledger: Ledger, server: EmbeddedPostgres) -> None:
        self.ledger = ledger
        self.server = server
        self.writer_url = ledger.database.url_for("tallystick_writer")
        self._number = 0
        self.reserved: list[tuple[str, str]] = []

    def packs(
        self, events: int, *, second_percent: int = 0, is_reserved: bool = False, pack: int = PACK, hours_ago: int = 0
    ) -> list[bytes]:
        """Return messages with new events: gateway reports of small calls, after so many of a hundred the node's as well.

        With `is_reserved` each call names a reservation, of which `reserved` lists those of these messages. The calls are of the
        last minute, or of that minute `hours_ago`.
        """
        self.reserved = []
        now = datetime.now(UTC) - timedelta(hours=hours_ago)
        found: list[str] = []
        while len(found) < events:
            number = self._number
            self._number += 1
            digest = sha256(f"bench/{number}".encode()).digest()
            micros = int(now.timestamp() * 1_000_000) - 60_000_000 + number % 60_000_000
            event_id, request_id = _uuid7(micros, digest[:10]), _uuid7(micros, digest[10:20])
            event = {
                "specversion": "1.0",
                "type": "llm.usage.v1",
                "source": GATEWAY,
                "id": event_id,
                "time": datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat().replace("+00:00", "Z"),
                "data": {
                    "tenant_id": f"t-{int.from_bytes(digest[20:23], 'big') % TENANTS:04d}",
                    "user_hash": f"u-{digest[23] % 50}",
                    "feature": ("chat", "search", "code", "support")[digest[24] % 4],
                    "language": ("en", "de", "ja", "es")[digest[25] % 4],
                    "route": "default",
                    "lane": "interactive",
                    "trace_id": digest[26:].hex(),
                    "request_id": request_id,
                    "provider": "openai",
                    "requested_model": "m-sub",
                    "model": "m-sub",
                    "status": "ok",
                    "latency_ms": 100 + digest[26] * 10,
                    "ttft_ms": 50 + digest[27],
                    "flavour": "openai.chat",
                    "usage": {
                        "prompt_tokens": 1000 + digest[28],
                        "completion_tokens": 100 + digest[29],
                        "total_tokens": 1100 + digest[28] + digest[29],
                        "prompt_tokens_details": {"cached_tokens": 512},
                    },
                },
            }
            if is_reserved:
                event["data"]["reservation_id"] = f"r-{number}"  # type: ignore[index]
            found.append(json.dumps(event, separators=(",", ":")))
            if is_reserved:
                self.reserved.append((event["data"]["tenant_id"], f"r-{number}"))  # type: ignore[index]
            if number % 100 < second_percent and len(found) < events:
                node = {**event, "source": NODE, "id": _uuid7(micros, digest[12:22])}
                node["data"] = {**event["data"], "node_id": "gpu-7", "provider": "openai"}  # type: ignore[dict-item]
                found.append(json.dumps(node, separators=(",", ":")))
        if pack == 1:
            return [text.encode() for text in found]
        return [("[" + ",".join(found[at : at + pack]) + "]").encode() for at in range(0, len(found), pack)]


def _months() -> tuple[date, int]:
    today = datetime.now(UTC).date()
    return date(today.year - (today.month == 1), (today.month - 2) % 12 + 1, 1), 4


def preload(ledger: Ledger, keys: int) -> float:
    """Fill the tables of keys as a ledger of so many events would have them: half events, half requests... and time it."""
    started = time.monotonic()
    connection = ledger.superuser
    # Keys of UUIDv7 identities lie in the order of time: a millisecond each, from three years ago on.
    key = "(lpad(to_hex(1700000000000 + n), 12, '0') || substr(md5(n::text || %s), 1, 20))::uuid"
    for table, columns, values, salt in (
        ("event_keys", "key, content_hash, hash_version, batch_id", f"{key}, md5(n::text)::uuid, 1, 0", "e"),
        (
            "requests",
            "key, rank, posting_period, entry_id, entry_count, occurred_at, best_event_key",
            f"{key}, '{{0,1,1,1,20,0}}', '2025-01-01', n, 1, to_timestamp(1700000000 + n / 1000.0), md5(n::text)::uuid",
            "r",
        ),
    ):
        for first in range(1, keys + 1, 5_000_000):
            last = min(first + 4_999_999, keys)
            connection.execute(
                f"insert into ledger.{table} ({columns}) select {values} from generate_series(%s::bigint, %s::bigint) as n",
                [salt, first, last],
            )
    connection.execute("vacuum analyze ledger.event_keys")
    connection.execute("vacuum analyze ledger.requests")
    connection.execute("checkpoint")
    return time.monotonic() - started


async def _add_parties(ledger: Ledger) -> None:
    """Add the senders, tenants and prices that the events name, with a budget for each tenant."""
    first, months = _months()
    for number in range(TENANTS):
        ledger.add_tenant(f"t-{number:04d}", first_period=first, months=months)
    ledger.add_source().add_node()
    await ledger.add_price(input="2.00", cached="0.50", output="8.00")
    ledger.superuser.execute(
        "insert into quotas.budgets (budget_id, tenant_id, unit, currency, window_kind, first_window, limit_amount)"
        " select 'month-' || tenant_id, tenant_id, 'charge', 'USD', 'month', '0001-01-01', 1000000 from ledger.tenants"
        " where tenant_id ~ '^t-[0-9]{4}$'"
    )


async def given_database() -> Database | None:
    """Return the database that DATABASE= names, with what events name; None where it is not set.

    It is one that `tallystick generate` filled, behind a socket; what a benchmark posts stays in it.
    """
    url = os.environ.get("DATABASE")
    if not url:
        return None
    parts = conninfo_to_dict(libpq_url(url))
    database = Database(
        PostgresAddress(Path(str(parts["host"])), int(parts.get("port") or SOCKET_PORT)), str(parts["dbname"])
    )
    ledger = Ledger(database)
    if not ledger.value("select exists (select from ledger.tenants where tenant_id = 't-0000')"):
        await _add_parties(ledger)
    ledger.close()
    return database


@asynccontextmanager
async def world(keys: int) -> AsyncIterator[World]:
    """Make a world on this machine's disk, with fsync on, and take it away afterwards."""
    with (
        _folder() as home,
        EmbeddedPostgres(home, parameters={"shared_buffers": SHARED_BUFFERS, "max_wal_size": "16GB"}) as server,
    ):
        migrate(server.url)
        ledger = Ledger(Database(server.address, "tallystick"))
        await _add_parties(ledger)
        if keys:
            seconds = preload(ledger, keys)
            print(f"    {keys:,} event keys and as many request keys preloaded in {seconds:.0f} s", flush=True)
        try:
            yield World(ledger, server)
        finally:
            ledger.close()


def _folder() -> "Iterator[Path]":
    return tempfile.TemporaryDirectory(prefix="tallystick-bench-", ignore_cleanup_errors=True)  # type: ignore[return-value]


__all__ = ["PACK", "SHARED_BUFFERS", "TENANTS", "World", "given_database", "shutil", "world"]
