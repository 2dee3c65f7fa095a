"""What a batch is made with: parties, calendar and prices as of one version each, and the ids that go with them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ledger.database import Connection
from ledger.model_names import NameRule, NameRules
from ledger.parties import Calendar, Model, Parties, Period, Source, Tenant, TenantVersion
from ledger.price_book import PriceBook, RateSet
from ledger.price_store import ensure_rate_sets, load_price_book
from ledger.times import micros

SUBJECTS_KEPT_MAX: Final = 500_000
"""More than one batch can name, so that asking twice is enough."""


@dataclass(frozen=True, slots=True)
class Books:
    """A consistent reading of parties, calendar and prices; `post` refuses a batch made with an older one."""

    parties: Parties
    calendar: Calendar
    prices: PriceBook
    rate_set_ids: dict[str, int] = field(default_factory=dict)
    """Content hash of a rate set to its id. Rate sets never change, so this only grows."""
    subject_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """(tenant, the sender's hash of its user) to the id that entries hold."""

    @property
    def versions(self) -> tuple[int, int, int]:
        """(calendar, parties, prices)."""
        return self.calendar.version, self.parties.version, self.prices.version


async def load_books(connection: Connection) -> Books:
    """Read all parties, periods and cards in one snapshot."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        cursor = await connection.execute("select calendar, parties, prices from ledger.versions")
        row = await cursor.fetchone()
        if row is None:
            raise LookupError("ledger.versions is empty: run `tallystick migrate`")
        calendar_version, parties_version, _ = row
        return Books(
            parties=await _load_parties(connection, parties_version),
            calendar=await _load_calendar(connection, calendar_version),
            prices=await load_price_book(connection),
        )


def _instant(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


async def load_tenants(connection: Connection, tenant_ids: Collection[str] | None = None) -> dict[str, Tenant]:
    """Read all tenants, or some, with their versions."""
    values = {"ids": None if tenant_ids is None else list(tenant_ids)}
    chosen = "where %(ids)s::text[] is null or tenant_id = any(%(ids)s)"
    cursor = await connection.execute(
        "select tenant_id, effective_at, entity_id, time_zone, charge_currency, status, first_day"
        f" from ledger.tenant_versions {chosen} order by tenant_id, effective_at",
        values,
    )
    versions: dict[str, list[TenantVersion]] = {}
    for tenant_id, effective_at, entity_id, zone, currency, status, first_day in await cursor.fetchall():
        versions.setdefault(tenant_id, []).append(
            TenantVersion(micros(effective_at), entity_id, zone, currency, status, first_day)
        )
    cursor = await connection.execute(
        f"select tenant_id, starts_at, ends_at, merged_into, merged_at, unmerged_at from ledger.tenants {chosen}",
        values,
    )
    tenants = {}
    for tenant_id, starts_at, ends_at, merged_into, merged_at, unmerged_at in await cursor.fetchall():
        if tenant_id in versions:
            tenants[tenant_id] = Tenant(
                tenant_id,
                micros(starts_at),
                tuple(versions[tenant_id]),
                _instant(ends_at),
                merged_into,
                _instant(merged_at),
                _instant(unmerged_at),
            )
    return tenants


async def _load_parties(connection: Connection, version: int) -> Parties:
    tenants = await load_tenants(connection)
    spoken_for: dict[str, set[str]] = {}
    async for source, tenant_id in await connection.execute("select source, tenant_id from ledger.source_tenants"):
        spoken_for.setdefault(source, set()).add(tenant_id)
    sources = {}
    async for source, kind, rank, speaks_for_all in await connection.execute(
        "select source, kind, rank, speaks_for_all from ledger.sources where ended_at is null"
    ):
        sources[source] = Source(source, kind, rank, speaks_for_all, frozenset(spoken_for.get(source, ())))
    models: dict[tuple[str, str], Model] = {}
    async for provider, model, input_max, output_max in await connection.execute(
        "select provider, model, input_tokens_max, output_tokens_max from ledger.models"
    ):
        models[provider, model] = Model(provider, model, input_max, output_max)
    async for provider, alias, model in await connection.execute(
        "select provider, alias, model from ledger.model_aliases"
    ):
        # A canonical id wins over an alias of the same spelling.
        models.setdefault((provider, alias), models[provider, model])
    cursor = await connection.execute(
        "select provider_account, tenant_id from ledger.provider_accounts where tenant_id is not null"
    )
    own_accounts: dict[str, str] = dict(await cursor.fetchall())
    return Parties(version, tenants, sources, models, await load_name_rules(connection), own_accounts)


async def load_name_rules(connection: Connection) -> dict[str, NameRules]:
    """Read by provider, in order, what may stand around the name of a model."""
    rules: dict[str, NameRules] = {}
    async for provider, kind, text in await connection.execute(
        "select provider, kind, text from ledger.model_name_rules order by provider, place"
    ):
        rules[provider] = (*rules.get(provider, ()), NameRule(kind, text))
    return rules


async def _load_calendar(connection: Connection, version: int) -> Calendar:
    periods: dict[str, list[Period]] = {}
    async for tenant_id, period, starts_at, ends_at, grace_until, state in await connection.execute(
        "select tenant_id, posting_period, starts_at, ends_at, grace_until, state from ledger.periods"
        " order by tenant_id, posting_period"
    ):
        periods.setdefault(tenant_id, []).append(
            Period(period, micros(starts_at), micros(ends_at), micros(grace_until), state == "closed")
        )
    cursor = await connection.execute("select posting_period from ledger.retired_months")
    retired = frozenset(row[0] for row in await cursor.fetchall())
    return Calendar(version, {tenant_id: tuple(listed) for tenant_id, listed in periods.items()}, retired)


async def ensure_ids(
    connection: Connection,
    books: Books,
    rate_sets: Mapping[str, RateSet],
    subjects: Iterable[tuple[str, str]],
) -> None:
    """Give ids to rate sets and subjects that have none yet, in a transaction of its own, and remember them.

    What was remembered may be forgotten to keep the memory in bounds: ask again until nothing is missing.
    """
    if rate_sets:
        books.rate_set_ids.update(await ensure_rate_sets(connection, list(rate_sets.values())))
    # In one order everywhere, so that two writers who add the same subjects never wait in a ring.
    wanted = sorted(subjects)
    if wanted:
        # Users come from outside and without end.
        if len(books.subject_ids) >= SUBJECTS_KEPT_MAX:
            books.subject_ids.clear()
        tenants, hashes = [tenant for tenant, _ in wanted], [user_hash for _, user_hash in wanted]
        async with connection.transaction():
            await connection.execute(
                "insert into ledger.subjects (tenant_id, user_hash) select * from unnest(%s::text[], %s::text[])"
                " on conflict (tenant_id, user_hash) do nothing",
                [tenants, hashes],
            )
            cursor = await connection.execute(
                "select s.tenant_id, s.user_hash, s.subject_id::text from ledger.subjects as s"
                " join unnest(%s::text[], %s::text[]) as w (tenant_id, user_hash) using (tenant_id, user_hash)",
                [tenants, hashes],
            )
            async for tenant_id, user_hash, subject_id in cursor:
                books.subject_ids[tenant_id, user_hash] = subject_id
