"""A month's invoices of all tenants, against one plain SQL aggregation of the same rows on the same server.

The baseline sums the month's entries by tenant, feature, provider, model and currency, reads the result and does nothing with
it. The candidate issues: it folds, holds the lines against entries and seals, numbers, writes and notes the acts. Each run
issues the same month anew, once its invoices are voided outside of the clock.
"""

import asyncio
import gc
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

from billing.agreement_files import Agreements, apply_agreements
from billing.issuing import Terms, issue_all
from ledger.closing import close_periods, seal_pending
from ledger.database import connect
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import SHARED_BUFFERS, World, world
from tests.billing.support import CUSTOMER, ISSUER, tax
from tests.support.ledger import Ledger

_FEATURES = ("chat", "search", "agents")
_MODELS = ("m-sub", "m-large")
_COLUMNS = (
    "entry_id, posting_period, batch_id, event_key, entry_no, kind, occurred_at, recorded_at, local_date, tenant_id,"
    " sent_tenant_id, source, provider, model, feature, language, status, basis, revision, is_final, reservation_open,"
    " request_count, uncached_input_tokens, cache_read_tokens, visible_output_tokens, input_tokens, output_tokens,"
    " cost_amount, cost_currency, cost_rate_set_id, charge_amount, charge_currency, charge_rate_set_id, usage_flags,"
    " unpriced_meters"
)
_BASELINE = (
    "select tenant_id, feature, provider, model, charge_currency, sum(charge_amount), sum(uncached_input_tokens),"
    " sum(visible_output_tokens), count(*) from ledger.entries where posting_period = %s group by 1, 2, 3, 4, 5"
)


async def run() -> list[Comparison]:
    entries, tenants = size("ENTRIES", 1_000_000), size("TENANTS", 1000)
    async with world(0) as made:
        month = await _fill(made, entries, tenants)
        print(f"    {entries:,} entries of {tenants:,} tenants; shared_buffers {SHARED_BUFFERS}", flush=True)
        url = made.ledger.database.url_for("tallystick_operator")
        total = made.ledger.value("select sum(charge_amount) from ledger.entries where posting_period = %s", month)

        async def baseline() -> float:
            async with await connect(url) as connection:
                started = time.perf_counter()
                cursor = await connection.execute(_BASELINE, [month])
                rows = await cursor.fetchall()
                seconds = time.perf_counter() - started
            assert sum((row[5] for row in rows), Decimal(0)) == total
            return entries / seconds

        async def candidate() -> float:
            async with await connect(url) as connection, await connect(url) as second:
                started = time.perf_counter()
                issued = 0
                async for outcomes, _, _ in issue_all(connection, month, Terms("bench"), second=second):
                    issued += sum(outcome.result == "issued" for outcome in outcomes)
                seconds = time.perf_counter() - started
            assert issued == tenants
            await asyncio.to_thread(_void, made.ledger, total)
            return entries / seconds

        # As the command does; for both sides.
        gc.freeze()
        return [await compare("invoices of a month", "entries", baseline, candidate, target=1 / 3)]


def _void(ledger: Ledger, total: Decimal) -> None:
    assert ledger.value("select sum(exact_subtotal) from billing.live_documents") == total
    ledger.superuser.execute(
        "insert into billing.voids (document_id, tenant_id, posting_period, currency, revision, reason, actor)"
        " select d.document_id, d.tenant_id, d.posting_period, d.currency, d.revision, 'again', 'bench'"
        " from billing.documents as d where not exists (select from billing.voids as v where v.document_id = d.document_id)"
    )
    ledger.superuser.execute("vacuum analyze billing.documents, billing.document_lines, billing.voids")


async def _fill(made: World, entries: int, tenants: int) -> date:
    """Make last month of so many tenants, its entries copied past the writer: what is measured reads them."""
    ledger = made.ledger
    today = datetime.now(UTC).date()
    month = date(today.year - (today.month == 1), (today.month - 2) % 12 + 1, 1)
    have = ledger.value("select count(*) from ledger.tenants")
    for number in range(have, tenants):
        ledger.add_tenant(f"t-{number:04d}", first_period=month, months=4)
    await ledger.add_price("m-large", input="3.00", cached="0.75", output="12.00")
    # One event each, so that their rate sets are there.
    events = [made_event(model, month) for model in _MODELS]
    await ledger.post(*events, received_at=datetime.now(UTC).isoformat())
    superuser = ledger.superuser
    superuser.execute("alter table ledger.entries disable trigger z_move")
    superuser.execute("alter table ledger.entries disable trigger a_guard")
    superuser.execute(
        f"""
        insert into ledger.entries ({_COLUMNS})
        select
            1000 * 65536::bigint + n, %(month)s, 1000, gen_random_uuid(), 0, 'usage',
            %(month)s::timestamptz + make_interval(secs => n %% 2500000), clock_timestamp(), %(month)s::date + (n %% 28),
            't-' || lpad((n %% %(tenants)s)::text, 4, '0'), 't-' || lpad((n %% %(tenants)s)::text, 4, '0'), 'bench', e.provider,
            e.model, (%(features)s::text[])[1 + n %% 3], 'en', 'ok', 'reported', 0, true, false, 1,
            100 + n %% 900, n %% 50, 10 + n %% 90, 100 + n %% 900 + n %% 50, 10 + n %% 90, null, null, null,
            r.input * (100 + n %% 900) + r.cached * (n %% 50) + r.output * (10 + n %% 90), e.charge_currency, e.charge_rate_set_id,
            '{{}}', '{{}}'
        from generate_series(1, %(entries)s - 2) as n
        join (
            select distinct on (model) model, provider, charge_currency, charge_rate_set_id, row_number() over (order by model) - 1 as place
            from ledger.entries where posting_period = %(month)s
        ) as e on e.place = n / 7 %% 2
        join (
            select
                rate_set_id,
                max(price / per) filter (where meter = 'uncached_input_tokens') as input,
                max(price / per) filter (where meter = 'cache_read_tokens') as cached,
                max(price / per) filter (where meter = 'visible_output_tokens') as output
            from ledger.rates group by 1
        ) as r on r.rate_set_id = e.charge_rate_set_id
        """.encode(),
        {"month": month, "tenants": tenants, "features": list(_FEATURES), "entries": entries},
    )
    superuser.execute("alter table ledger.entries enable trigger z_move")
    superuser.execute("alter table ledger.entries enable trigger a_guard")
    superuser.execute("vacuum analyze")
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        customers = [replace(CUSTOMER, tenant_id=f"t-{number:04d}") for number in range(tenants)]
        await apply_agreements(connection, "bench", Agreements([ISSUER], [tax("0.19")], customers))
        await close_periods(connection, "bench", month)
        await seal_pending(connection, month=month)
    superuser.execute("vacuum analyze")
    return month


def made_event(model: str, month: date) -> dict[str, object]:
    from tests.factories import make_event

    return make_event(
        f"rates-{model}", time=f"{month}T00:00:00Z", tenant_id="t-0000", model=model, requested_model=model
    )
