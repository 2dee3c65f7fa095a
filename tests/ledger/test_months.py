"""A month is read at the cost of a month, however old the ledger is."""

import re
from datetime import date
from decimal import Decimal

from ledger.periods import month_after
from tests.support.ledger import Ledger

FIRST = date(2026, 1, 1)
ASKED = date(2026, 3, 1)
TENANTS = 50
LINES_A_MONTH = 5_000
"""A fortieth of the case's 200,000."""

FILL = """
insert into ledger.entries (
    entry_id, posting_period, batch_id, event_key, entry_no, kind, occurred_at, recorded_at, local_date, tenant_id,
    sent_tenant_id, source, language, status, basis, feature, revision, is_final, reservation_open, request_count,
    uncached_input_tokens, input_tokens, output_tokens, cost_amount, cost_currency, charge_amount, charge_currency,
    usage_flags, unpriced_meters
)
select
    n, %(month)s, 1, gen_random_uuid(), 0, 'usage', %(month)s::date + (n %% 28) * interval '1 day', now(),
    %(month)s::date + (n %% 28)::integer, 't-' || n %% %(tenants)s, 't-' || n %% %(tenants)s, 'gateway://eu-1', 'en', 'ok',
    'reported', 'chat', 0, true, false, 1, 1, 1, 0, 0.001, 'USD', 0.001, 'USD', '{}', '{}'
from generate_series(%(first)s::bigint, %(first)s::bigint + %(lines)s - 1) as n
"""
INVOICE = """
select charge_currency, sum(charge_amount), count(*)
from ledger.entries
where posting_period = '2026-03-01' and tenant_id = 't-7'
group by charge_currency
"""
DASHBOARD = """
select feature, charge_currency, sum(charge_amount), sum(request_count)
from ledger.entries
where posting_period = '2026-03-01'
group by feature, charge_currency
"""


def fill(ledger: Ledger, first: date, months: int) -> None:
    for number in range(months):
        month = month_after(first, number)
        values = {"month": month, "tenants": TENANTS, "first": month.toordinal() * 100_000, "lines": LINES_A_MONTH}
        ledger.superuser.execute(FILL, values)
    ledger.superuser.execute("vacuum analyze ledger.entries")


def cost_of(ledger: Ledger, question: str) -> tuple[set[str], int]:
    """The partitions that a question touches, and how many pages it reads."""
    plan = "\n".join(line for (line,) in ledger.rows(f"explain (analyze, buffers, costs off, timing off) {question}"))
    pages = re.search(r"Buffers: shared hit=(\d+)(?: read=(\d+))?", plan)
    assert pages is not None, plan
    return set(re.findall(r" on (entries_\d{4}_\d\d)", plan)), int(pages[1]) + int(pages[2] or 0)


async def test_b121_reading_one_month_costs_one_month_however_old_the_ledger(ledger: Ledger) -> None:
    """5,000 / 50 = 100 lines of a tenant x 0.001 = 0.1; the dashboard 5,000 x 0.001 = 5. After 24 months as after 12."""
    for number in range(TENANTS):
        ledger.add_tenant(f"t-{number}", first_period=FIRST, months=24)
    fill(ledger, FIRST, 12)
    costs = {question: cost_of(ledger, question) for question in (INVOICE, DASHBOARD)}
    fill(ledger, month_after(FIRST, 12), 12)
    for question, (partitions, pages) in costs.items():
        assert partitions == {"entries_2026_03"}
        after, pages_after = cost_of(ledger, question)
        assert after == {"entries_2026_03"}
        assert pages_after <= pages * 1.5
    assert ledger.rows(INVOICE) == [("USD", Decimal("0.1"), 100)]
    assert ledger.rows(DASHBOARD) == [("chat", "USD", Decimal(5), 5_000)]
