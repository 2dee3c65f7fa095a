"""Month ends at random: usage, corrections, closes, invoices, voids, credit notes, grants and agreements in any order.

After each act what must always be true is: nothing is below zero, `verify` finds nothing, and each document bills what its rows
were charged, converted and discounted, to the last digit.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Final

import pytest

from billing.agreement_files import Agreements, apply_agreements
from billing.agreements import Item
from billing.credit_notes import Credited, credit_commercially, credit_usage
from billing.documents import Document
from billing.errors import IssueRefused
from billing.issuing import Outcome, issue_month
from billing.months import read_items
from billing.rounding import minor_unit, round_money
from billing.store import read_documents
from billing.voiding import void_invoice
from ledger import closing
from ledger.corrections import Counts, Difference, Request, Reverse, Wanted, correct
from ledger.database import Connection
from ledger.errors import ActRefused
from ledger.exchange import ExchangeRate
from ledger.price_store import save_exchange_rates
from ledger.registry import change_tenant
from ledger.times import parse_rfc3339
from quotas.errors import GrantRefused
from quotas.granting import NewGrant, create_grant, revoke_grant
from tallystick.verify import verify
from tests.billing.support import APRIL, CUSTOMER, ISSUER, JANE, JANUARY, LATER, MARCH, close, discount, fee, tax
from tests.factories import make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.soak import seeds

MONTHS: Final = [date(2026, month, 1) for month in range(1, 6)]
ACTS: Final = {
    "post": 5, "correct": 8, "close": 3, "issue": 8, "void": 2, "open": 1, "credit_usage": 5, "credit_commercially": 4,
    "grant": 2, "revoke": 1, "agree": 1, "move": 1,
}  # fmt: skip
_EVENTS: Final = 8
_STEPS: Final = 40
_NOW: Final = parse_rfc3339(LATER)


@pytest.mark.parametrize("seed", seeds(41))
async def test_what_is_always_true_is_so_after_every_act(
    database: Database, months_template: str, operator: Connection, writer: Connection, seed: int
) -> None:
    ledger = Ledger(database)
    try:
        walk = _Walk(ledger, operator, writer, random.Random(seed))
        await walk.begin()
        for _ in range(_EVENTS):
            await walk.post()
        for month in MONTHS[:2]:
            await close(operator, month)
            await issue_month(operator, "t-alpha", month, JANE)
        for _ in range(_STEPS):
            (act,) = walk.chance.choices([*ACTS], [*ACTS.values()])
            try:
                await getattr(walk, act)()
            except IssueRefused:
                raise
            except (ActRefused, GrantRefused):
                pass
            await walk.check()
        parked = False
        for month in MONTHS:
            with suppress(ActRefused):
                await close(operator, month)
            for outcome in await issue_month(operator, "t-alpha", month, JANE):
                walk.check_outcome(outcome)
                parked |= outcome.result == "parked"
        await walk.check()
        if not parked:
            await walk.check_items()
    finally:
        ledger.close()


class _Walk:
    """A tenant to whom things happen by chance."""

    def __init__(self, ledger: Ledger, operator: Connection, writer: Connection, chance: random.Random) -> None:
        self.ledger, self.operator, self.writer, self.chance = ledger, operator, writer, chance
        self.count = 0
        self.currency: str | None = None

    async def begin(self) -> None:
        """Agree who pays, in which zone and currency, under which terms; perhaps both change in March."""
        chance, ledger = self.chance, self.ledger
        ledger.add_tenant(
            zone=chance.choice(["UTC", "Pacific/Kiritimati", "Asia/Kathmandu", "America/Denver"])
        ).add_source()
        await ledger.add_price(input="1.00", output="3.00")
        await ledger.add_price("m-other", input="0.037", output="0.11")
        await save_exchange_rates(self.operator, _rates(), actor="jane")
        ledger._raised("prices")
        self.currency = chance.choice([None, None, "USD", "EUR", "JPY", "KWD"])
        own = self.currency or "USD"
        items = [
            discount("d1", percent=Decimal(chance.choice(["7.5", "33.333", "100"])), feature=chance.choice([None, "chat"]),
                     ends_on=chance.choice([None, MARCH])),
            discount("d2", percent=Decimal(12)),
            discount("d3", amount=Decimal(2), currency=own),
            Item(item_id="least", tenant_id="t-alpha", kind="minimum", description="Minimum", currency=own, amount=Decimal(8),
                 starts_on=JANUARY, ends_on=chance.choice([None, APRIL]), feature=chance.choice([None, "search"])),
            fee("f1", "9", currency=own, tax_category=chance.choice([None, "low"]), period=chance.choice(["month", "quarter"]),
                timing=chance.choice(["advance", "arrears"]), starts_on=date(2026, 1, chance.choice([1, 13]))),
        ]  # fmt: skip
        agreed = Agreements(
            [ISSUER],
            [tax("0"), tax("0.07", "low"), tax("0.19", "full")],
            [replace(CUSTOMER, invoice_currency=self.currency, tax_category=chance.choice(["none", "full"]))],
            [item for item in items if chance.random() < 0.5],
        )
        await apply_agreements(self.operator, "jane", agreed)
        if chance.random() < 0.5:
            await change_tenant(self.operator, "jane", "t-alpha", MARCH, charge_currency="EUR", time_zone="Asia/Tokyo")
            ledger._raised("parties")

    # --- Acts -----------------------------------------------------------------------------------------------------------

    async def post(self) -> None:
        chance = self.chance
        self.count += 1
        at = chance.choice(["01T00:30:00Z", "10T00:00:00Z", "28T23:30:00Z", "01T11:00:00Z"])
        model = chance.choice(["m-sub", "m-sub", "m-other"])
        event = make_event(
            f"e{self.count}", time=f"{chance.choice(MONTHS):%Y-%m}-{at}", model=model, requested_model=model,
            feature=chance.choice(["chat", "search"]),
            usage={"prompt_tokens": chance.choice([5_000, 1_000_000, chance.randrange(1, 9_000_000)]),
                   "completion_tokens": chance.choice([0, 777])},
        )  # fmt: skip
        posted = await self.ledger.post(event, received_at=LATER)
        assert not [each for each in posted.results if each.outcome == "dead_letter"], posted.results

    async def correct(self) -> None:
        await self._correct([f"req-e{number}" for number in range(1, self.count + 1)])

    async def _correct(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        request = Request("t-alpha", self.chance.choice(request_ids))
        change = self.chance.choice(
            [
                Reverse(request),
                Reverse(request),
                Counts(request, {"uncached_input_tokens": self.chance.randrange(4_000_000)}),
                Difference(request, charge=Decimal(self.chance.choice(["-0.3", "0.217", "-1.005", "2"]))),
            ]
        )
        await correct(self.writer, Wanted(change), actor="jane", reason="a mistake")

    def _months(self, state: str) -> list[date]:
        rows = self.ledger.rows(
            "select posting_period from ledger.periods where state = %s and posting_period = any(%s) order by 1",
            state, MONTHS,
        )  # fmt: skip
        return [month for (month,) in rows]

    async def close(self) -> None:
        if opened := self._months("open"):
            await close(self.operator, opened[0] if self.chance.random() < 0.8 else self.chance.choice(opened))

    async def issue(self) -> None:
        if closed := self._months("closed"):
            month = closed[-1] if self.chance.random() < 0.5 else self.chance.choice(closed)
            for outcome in await issue_month(self.operator, "t-alpha", month, JANE):
                self.check_outcome(outcome)

    def check_outcome(self, outcome: Outcome) -> None:
        """What is parked waits for something that only a person can decide."""
        known = ("is owed back beyond what live invoices billed", "of the usage, and invoices of t-alpha are in")
        for reason in outcome.reasons:
            assert any(words in reason for words in known), outcome

    async def _invoice(self) -> Document | None:
        live = self.ledger.rows("select document_id from billing.live_documents where kind = 'invoice' order by number")
        if not live:
            return None
        (found,) = await read_documents(self.operator, [self.chance.choice(live)[0]])
        return found

    async def void(self) -> None:
        if invoice := await self._invoice():
            await void_invoice(self.operator, "jane", invoice.number or "", reason="a mistake")

    async def open(self) -> None:
        if closed := self._months("closed"):
            month = self.chance.choice(closed)
            await closing.reopen_period(self.operator, "jane", "t-alpha", month, reason="a mistake")

    async def credit_usage(self) -> None:
        if invoice := await self._invoice():
            rows = self.ledger.rows(
                "select request_id from ledger.entries where posting_period = %s group by 1 having sum(charge_amount) > 0"
                " order by 1",
                invoice.posting_period,
            )
            request_ids = [self.chance.choice(rows)[0]] if rows else []
            with suppress(ActRefused):
                await self._correct(request_ids)
            wanted = self.chance.choice([request_ids, None])
            await credit_usage(self.operator, "jane", invoice.number or "", reason="a mistake", request_ids=wanted)

    async def credit_commercially(self) -> None:
        if invoice := await self._invoice():
            unit = minor_unit(invoice.currency)
            lines = {
                line.line_no: self.chance.choice([None, unit * self.chance.randrange(1, 200)])
                for line in self.chance.sample(list(invoice.lines), min(len(invoice.lines), 2))
            }
            given = self.chance.choice([{"lines": lines}, {"amount": unit * self.chance.randrange(1, 300)}])
            done = await credit_commercially(self.operator, "jane", invoice.number or "", reason="An apology", **given)  # type: ignore[arg-type]
            assert isinstance(done, Credited)

    async def grant(self) -> None:
        self.count += 1
        given = NewGrant(
            tenant_id="t-alpha",
            amount=Decimal(self.chance.choice(["3", "10.005", "40"])),
            currency=self.currency if self.currency in ("USD", "EUR") else "USD",
            effective_at=parse_rfc3339(self.chance.choice(["2025-12-01T00:00:00Z", "2026-02-10T00:00:00Z"])),
            expires_at=self.chance.choice([None, parse_rfc3339("2026-03-10T00:00:00Z")]),
            priority=self.chance.choice([1, 2]),
            feature=self.chance.choice([None, "chat"]),
        )
        await create_grant(self.operator, "jane", given, key=f"grant-{self.count}", now=_NOW)

    async def revoke(self) -> None:
        if grants := self.ledger.rows("select grant_id from quotas.grants order by 1"):
            self.count += 1
            await revoke_grant(
                self.operator, "jane", self.chance.choice(grants)[0], key=f"revoke-{self.count}", now=_NOW
            )

    async def agree(self) -> None:
        self.count += 1
        less = discount(f"n{self.count}", percent=Decimal(5), starts_on=self.chance.choice(MONTHS))
        await apply_agreements(self.operator, "jane", Agreements(items=[less]))

    async def move(self) -> None:
        moved = replace(
            CUSTOMER, effective_from=self.chance.choice(MONTHS[1:]), tax_category=self.chance.choice(["none", "full", "low"]),
            invoice_currency=self.chance.choice([None, "USD", "EUR", self.currency]),
        )  # fmt: skip
        await apply_agreements(self.operator, "jane", Agreements(customers=[moved]))

    # --- What is always true --------------------------------------------------------------------------------------------

    async def check(self) -> None:
        ids = [row[0] for row in self.ledger.rows("select document_id from billing.documents")]
        live = [each for each in await read_documents(self.operator, ids) if each.state == "issued"]
        invoices = [each for each in live if each.kind == "invoice"]
        for each in live:
            assert min((each.amount_due, *(taxed.base for taxed in each.taxes))) >= 0, each
        for each in invoices:
            notes = [note for note in live if note.corrects_document_id == each.document_id]
            assert sum(note.total for note in notes) <= each.total
            assert each.credit_total <= round_money(_after_discounts(each), each.currency), each
        on_invoices = sum(line.exact_amount for each in invoices for line in each.lines if line.kind == "owed_back")
        assert on_invoices == sum(each.exact_subtotal for each in live if each.basis == "owed_back")
        left = self.ledger.rows("select sum(amount) from quotas.grant_movements group by grant_id")
        assert all(amount >= 0 for (amount,) in left)
        items = sorted(await read_items(self.operator, ["t-alpha"]), key=lambda item: item.item_id)
        percents = {item.item_id: item for item in items if item.percent is not None}
        wanted = self._wanted(live, list(percents.values()))
        for each in live:
            found = sum(line.exact_amount for line in each.lines if line.kind == "usage" or line.item_id in percents)
            # No digit of an amount is beyond this place.
            assert abs(found - wanted.get(each.document_id or "", Decimal(0))) < Decimal("1e-15"), each
        proof = verify(self.ledger.database.url_for("tallystick_operator"))
        assert [each.text for each in proof.failures] == []

    async def check_items(self) -> None:
        """Once all is issued, an amount off and a minimum are of all usage of a month, whatever documents bill it."""
        ids = [
            row[0]
            for row in self.ledger.rows(
                "select document_id from billing.live_documents where currency = %s", self.currency or "USD"
            )
        ]
        live = [each for each in await read_documents(self.operator, ids) if each.basis in ("period", "usage")]
        invoiced = {each.posting_period for each in live if each.kind == "invoice"}
        items = {item.item_id: item for item in await read_items(self.operator, ["t-alpha"])}
        lines = [
            (line, line.exact_amount if each.kind == "invoice" else -line.exact_amount)
            for each in live
            for line in each.lines
        ]
        off, least = items.get("d3"), items.get("least")
        for month in MONTHS:
            left = Decimal(0)
            for line, amount in lines:
                if (
                    line.kind == "usage"
                    and line.service_start == month
                    and (least is None or least.feature in (None, line.feature))
                ):
                    for item in items.values():
                        if item.percent is not None and item.counts_in(month) and item.feature in (None, line.feature):
                            amount *= 1 - item.percent * Decimal("0.01")
                    left += amount
            found = {name: sum(amount for line, amount in lines if (line.item_id, line.service_start) == (name, month))
                     for name in ("d3", "least")}  # fmt: skip
            if off is not None and (least is None or least.feature is None):
                taken = max(min(left, Decimal(2)), Decimal(0))
                assert abs(found["d3"] + taken) < Decimal("1e-15"), month
                left -= taken
            if (
                least is not None
                and (off is None or least.feature is None)
                and least.counts_in(month)
                and month in invoiced
            ):
                assert abs(found["least"] - max(8 - left, Decimal(0))) < Decimal("1e-15"), month

    def _wanted(self, live: Sequence[Document], percents: Sequence[Item]) -> Mapping[str, Decimal]:
        """Return what the rows of each live document were charged, converted as its lines say, less discounts in percent."""
        rates = {
            (each.document_id, line.charged_currency, line.service_start): line.exchange_rate
            for each in live
            for line in each.lines
            if line.exchange_rate is not None
        }
        found: dict[str, Decimal] = {}
        for period, service_month, feature, currency, amount, noted in self.ledger.rows(
            "select e.posting_period, least(date_trunc('month', e.local_date::timestamp)::date, e.posting_period), e.feature,"
            " e.charge_currency::text, e.charge_amount, c.document_id from ledger.entries as e"
            " left join billing.credited_entries as c using (posting_period, entry_id) where e.kind <> 'evidence'"
        ):
            of = [each for each in live if each.document_id == noted] or [
                each for each in live if noted is None and each.kind == "invoice" and each.posting_period == period
            ]
            # Of the invoices of a month that in the currency of the charge, or the one in another for all of them.
            for each in [one for one in of if one.currency == currency] or of:
                rate = (
                    Decimal(1) if each.currency == currency else rates.get((each.document_id, currency, service_month))
                )
                if rate is None:
                    # What comes to nothing in a month has no line.
                    continue
                owed = -amount * rate if noted else amount * rate
                for item in percents:
                    if item.counts_in(service_month) and item.feature in (None, feature):
                        owed *= 1 - item.percent * Decimal("0.01")  # type: ignore[operator]
                key = each.document_id or ""
                found[key] = found.get(key, Decimal(0)) + owed
        return found


def _after_discounts(invoice: Document) -> Decimal:
    by_month: dict[date, Decimal] = {}
    for line in invoice.lines:
        if line.kind in ("usage", "discount"):
            by_month[line.service_start] = by_month.get(line.service_start, Decimal(0)) + line.exact_amount
    return sum((max(amount, Decimal(0)) for amount in by_month.values()), Decimal(0))


def _rates() -> list[ExchangeRate]:
    return [
        ExchangeRate(
            from_currency=pair[:3], to_currency=pair[3:], rate=Decimal(rate) * factor, effective_at=parse_rfc3339(at),
            source_address="https://rates.example", checked_on=JANUARY,
        )
        for pair, rate in {
            "USDEUR": "0.913", "EURUSD": "1.0953", "USDJPY": "151.37", "EURJPY": "162.1", "USDKWD": "0.30715", "EURKWD": "0.3331",
        }.items()
        for at, factor in (("2020-01-01T00:00:00Z", Decimal(1)), ("2026-02-15T00:00:00Z", Decimal("1.01")))
    ]  # fmt: skip
