"""A ledger to try things on: parties, periods and prices by short calls, events posted by the road that everybody uses."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Self
from zoneinfo import ZoneInfo

import psycopg

from ingest.intake import Intake, Message
from ingest.usage_events import Speaker
from ledger import feeds
from ledger.database import connect
from ledger.entries import COLUMNS
from ledger.failpoints import Action
from ledger.periods import month_of
from ledger.posting import Posted
from ledger.price_book import Body, Card
from ledger.price_store import insert_cards
from ledger.times import from_micros, local_midnight, micros, parse_rfc3339
from tests.factories import GATEWAY, NODE, event_bytes
from tests.ledger.prices import make_card, per_million
from tests.support.databases import Database

RECEIVED = "2026-01-15T10:01:00Z"


Failpoint = Callable[[str, Action], None]
"""Sets what happens at a named place of the code, until the test ends."""


class Ledger:
    """A migrated database of the test's own, with a feed to post to. Amounts come back as Decimal, times in UTC."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.superuser = psycopg.connect(database.url, autocommit=True)
        self.superuser.execute("set timezone = 'UTC'")
        self._intake: Intake | None = None

    def close(self) -> None:
        self.superuser.close()

    # --- Parties -----------------------------------------------------------------------------------------------------

    def add_tenant(
        self,
        tenant_id: str = "t-alpha",
        *,
        zone: str = "UTC",
        currency: str = "USD",
        first_period: date = date(2025, 12, 1),
        months: int = 18,
    ) -> Self:
        """Add a tenant with open periods; grace is long, so that old events of a test find their own month."""
        self.superuser.execute("insert into ledger.entities values ('entity-1', 'Entity One') on conflict do nothing")
        starts_at = from_micros(local_midnight(zone, first_period))
        self.superuser.execute(
            "insert into ledger.tenants (tenant_id, starts_at) values (%s, %s)", [tenant_id, starts_at]
        )
        self.superuser.execute(
            "insert into ledger.tenant_versions (tenant_id, effective_at, entity_id, time_zone, charge_currency)"
            " values (%s, %s, 'entity-1', %s, %s)",
            [tenant_id, starts_at, zone, currency],
        )
        month = first_period
        for _ in range(months):
            following = date(month.year + month.month // 12, month.month % 12 + 1, 1)
            self.superuser.execute(
                "insert into ledger.periods (tenant_id, posting_period, starts_at, ends_at, grace_until)"
                " values (%s, %s, %s, %s, '2100-01-01')",
                [
                    tenant_id, month, from_micros(local_midnight(zone, month)),
                    from_micros(local_midnight(zone, following)),
                ],
            )  # fmt: skip
            month = following
        self.superuser.execute(
            "select ledger.make_partitions(posting_period) from ledger.periods where tenant_id = %s"
            " and to_regclass('ledger.entries_' || to_char(posting_period, 'YYYY_MM')) is null",
            [tenant_id],
        )
        return self._raised("parties", "calendar")

    def close_period(self, tenant_id: str, period: date) -> Self:
        self.superuser.execute(
            "update ledger.periods set state = 'closed' where tenant_id = %s and posting_period = %s",
            [tenant_id, period],
        )
        return self._raised("calendar")

    def add_source(
        self, source: str = GATEWAY, *, kind: str = "gateway", rank: int = 20, tenants: Iterable[str] | None = None
    ) -> Self:
        """Add a sender; without `tenants` it speaks for all."""
        self.superuser.execute(
            "insert into ledger.sources (source, kind, rank, speaks_for_all) values (%s, %s, %s, %s)",
            [source, kind, rank, tenants is None],
        )
        for tenant_id in tenants or ():
            self.superuser.execute("insert into ledger.source_tenants values (%s, %s)", [source, tenant_id])
        return self._raised("parties")

    def add_node(self, source: str = NODE, *, rank: int = 10) -> Self:
        return self.add_source(source, kind="node", rank=rank)

    def add_model(
        self,
        model: str = "m-sub",
        *,
        provider: str = "openai",
        aliases: Sequence[str] = (),
        input_tokens_max: int | None = None,
        output_tokens_max: int | None = None,
    ) -> Self:
        self.superuser.execute(
            "insert into ledger.models (provider, model, input_tokens_max, output_tokens_max) values (%s, %s, %s, %s)",
            [provider, model, input_tokens_max, output_tokens_max],
        )
        for alias in aliases:
            self.superuser.execute(
                "insert into ledger.model_aliases values (%s, %s, %s, 'test')", [provider, alias, model]
            )
        return self._raised("parties")

    def _raised(self, *versions: str) -> Self:
        for name in versions:
            self.superuser.execute(f"update ledger.versions set {name} = {name} + 1")
        return self

    # --- Prices ------------------------------------------------------------------------------------------------------

    async def add_card(self, card: Card) -> Self:
        connection = await connect(self.database.url)
        try:
            await insert_cards(connection, [card])
        finally:
            await connection.close()
        return self._raised("prices")

    async def add_price(
        self, model: str = "m-sub", *, provider: str = "openai", markup: str | None = "1", **rates: str
    ) -> Self:
        """Add a model with its cost per million tokens, and, once for all, a charge book of cost with a markup."""
        known = self.value("select count(*) from ledger.models where provider = %s and model = %s", provider, model)
        if not known:
            self.add_model(model, provider=provider)
        await self.add_card(
            make_card(per_million(**rates), model=model, provider=provider, effective_at="2020-01-01T00:00:00Z")
        )
        has_markup = self.value("select count(*) from ledger.cards where book = 'charge' and provider = %s", provider)
        if markup is not None and not has_markup:
            await self.add_card(
                make_card(
                    book="charge",
                    model=None,
                    provider=provider,
                    effective_at="2020-01-01T00:00:00Z",
                    markup=Decimal(markup),
                )
            )
        return self

    # --- Posting -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def intake(
        self, feed: str = "file:test", *, kind: feeds.FeedKind = "file", url: str | None = None
    ) -> AsyncIterator[Intake]:
        """Claim a feed as the writer does, and post to it by the road that everybody uses."""
        connection = await connect(self.database.url_for("tallystick_writer"))
        try:
            held = await feeds.claim(connection, kind, feed)
        finally:
            await connection.close()
        intake = await Intake.open(url or self.database.url_for("tallystick_writer"), held, patience=5)
        try:
            yield intake
        finally:
            await intake.close()

    def message(self, *events: dict[str, Any], received_at: str = RECEIVED, position: int | None = None) -> Message:
        """Events as one message."""
        return Message(event_bytes(*events), parse_rfc3339(received_at), "test", position)

    async def post(
        self,
        *events: dict[str, Any],
        received_at: str = RECEIVED,
        speaker: Speaker | None = None,
        feed: str = "file:test",
    ) -> Posted:
        """Post events as one message; a single one stands alone."""
        return await self.post_bytes(event_bytes(*events), received_at=received_at, speaker=speaker, feed=feed)

    async def post_bytes(
        self,
        *bodies: bytes,
        received_at: str = RECEIVED,
        speaker: Speaker | None = None,
        origin: str = "test",
        feed: str = "file:test",
    ) -> Posted:
        """Post messages as one batch."""
        received = parse_rfc3339(received_at)
        async with self.intake(feed) as intake:
            reading = await intake.read([Message(body, received, origin, speaker=speaker) for body in bodies])
            return await intake.post(reading)

    # --- Reading -----------------------------------------------------------------------------------------------------

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.superuser.execute(statement, values).fetchall()

    def value(self, statement: str, *values: Any) -> Any:
        row = self.superuser.execute(statement, values).fetchone()
        assert row is not None
        return row[0]

    def total(self, book: str = "charge") -> Decimal:
        """The sum of a book's amounts, over all entries."""
        return Decimal(self.value(f"select coalesce(sum({book}_amount), 0) from ledger.entries"))

    def requests(self, *columns: str, book: str = "charge") -> dict[Any, tuple[int, Decimal | None]]:
        """Fold the ledger by text columns: (requests, amount) by their values, without what folds to nothing.

        The amount is None where a request of the group is unpriced.
        """
        listed = ", ".join(columns)
        rows = self.rows(
            f"select {listed}, sum(request_count), coalesce(sum({book}_amount), 0),"
            f" coalesce(sum(request_count) filter (where {book}_amount is null), 0)"
            f" from ledger.entries group by {listed}"
        )
        return {
            row[0] if len(columns) == 1 else row[:-3]: (row[-3], None if row[-1] else row[-2])
            for row in rows
            if row[-3] or row[-2] or row[-1]
        }

    def budgets_that_differ(self) -> list[tuple[Any, ...]]:
        """Windows that are not what the ledger folds to: (budget, group, window, posted, folded)."""
        return self.rows(
            "select budget_id, group_key, window_start, w.posted, f.posted"
            " from quotas.windows as w"
            " full join (select f.* from quotas.budgets as b, quotas.fold_windows(b.budget_id) as f) as f"
            " using (budget_id, group_key, window_start)"
            " where coalesce(w.posted, 0) <> coalesce(f.posted, 0)"
            " or coalesce(w.unpriced_count, 0) <> coalesce(f.unpriced_count, 0)"
        )

    def printed(self, batch_id: int | None = None) -> dict[tuple[int, date], bytes]:
        """The entries as Postgres prints them, by batch and period, in entry_id order."""
        found: dict[tuple[int, date], bytes] = {}
        pairs = self.rows("select distinct batch_id, posting_period from ledger.entries order by 1, 2")
        for batch, period in pairs:
            if batch_id in (None, batch):
                statement = (
                    f"copy (select {', '.join(COLUMNS)} from ledger.entries where batch_id = {batch}"
                    f" and posting_period = '{period}' order by entry_id) to stdout"
                )
                with self.superuser.cursor().copy(statement) as copy:
                    found[batch, period] = b"".join(bytes(data) for data in copy)
        return found

    def outcomes(self, posted: Posted) -> list[str]:
        return [result.outcome for result in posted.results]


def now() -> int:
    """The machine's clock, in UTC microseconds."""
    return micros(datetime.now(UTC))


def this_month(time_zone: str = "UTC") -> date:
    """The month of now where a tenant lives: at its turn, which may come while the suite runs, not everywhere the same."""
    return month_of(datetime.now(ZoneInfo(time_zone)).date())


__all__ = ["RECEIVED", "Body", "Failpoint", "Ledger", "now", "this_month"]


@contextmanager
def writer_away(ledger: Ledger) -> Iterator[None]:
    """Let the writer neither in nor stay."""
    ledger.superuser.execute("alter role tallystick_writer nologin")
    ledger.superuser.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'tallystick_writer' and datname = %s",
        [ledger.database.name],
    )
    try:
        yield
    finally:
        ledger.superuser.execute("alter role tallystick_writer login")
