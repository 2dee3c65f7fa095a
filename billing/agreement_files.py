"""Who issues, who pays and what is agreed, as YAML for people who review it; `tallystick billing apply` brings it about.

How a file looks stands in agreements.md, which a test reads. What is left out of a file stays as it is; every scalar is read as
text, so that an amount is the digits that stand there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar

from billing.agreements import Bound, Customer, Issuer, Item, TaxRate, fee_part, in_force, items_beside
from billing.errors import AgreementRefused, DocumentNotPrintable
from billing.exports.words import languages, words_of
from billing.months import (
    lock_tenants,
    read_bounds,
    read_customers,
    read_issuers,
    read_items,
    read_tax_rates,
)
from billing.rounding import cut_money
from ledger.contracts import read_yaml
from ledger.database import Connection, record_act
from ledger.errors import Unknown
from ledger.money import CURRENCIES, parse_amount
from ledger.times import month_after, month_of

Agreement = Issuer | Customer | TaxRate | Item | Bound
Value = TypeVar("Value")
_NAME_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Agreements:
    """What a file says, each in its order."""

    issuers: Sequence[Issuer] = ()
    tax_rates: Sequence[TaxRate] = ()
    customers: Sequence[Customer] = ()
    items: Sequence[Item] = ()
    bounds: Sequence[Bound] = ()

    @property
    def all(self) -> list[Agreement]:
        return [*self.issuers, *self.tax_rates, *self.customers, *self.items, *self.bounds]


# --- Reading a file ---------------------------------------------------------------------------------------------------


class _Place:
    """A mapping of the file, whose fields are taken one by one; what is not taken is unknown."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise AgreementRefused(f"{where} is not a mapping of fields")
        self.where = where
        self._rest: dict[Any, Any] = dict(value)

    def refuse(self, field: str, rule: str) -> NoReturn:
        raise AgreementRefused(f"{self.where}: {field} {rule}")

    def text(self, field: str) -> str:
        found = self.maybe(field)
        if found is None:
            self.refuse(field, "is missing")
        return found

    def maybe(self, field: str) -> str | None:
        if field not in self._rest:
            return None
        value = self._rest.pop(field)
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > _NAME_MAX:
            self.refuse(field, f"is no printable text of 1 to {_NAME_MAX} characters")
        return value

    def lines(self, field: str) -> tuple[str, ...]:
        value = self._rest.pop(field, None)
        if not isinstance(value, list) or not value or not all(isinstance(x, str) and x.isprintable() for x in value):
            self.refuse(field, "is no list of printable lines")
        return tuple(value)

    def read(self, field: str, how: Callable[[str], Value], what: str) -> Value:
        text = self.text(field)
        try:
            return how(text)
        except (ValueError, KeyError):
            self.refuse(field, f"is {text!r}, which is no {what}")

    def maybe_read(self, field: str, how: Callable[[str], Value], what: str) -> Value | None:
        return self.read(field, how, what) if field in self._rest else None

    def one_of(self, field: str, *known: str) -> Any:
        text = self.text(field)
        if text not in known:
            self.refuse(field, f"is {text!r}; it is one of {', '.join(known)}")
        return text

    def done(self) -> None:
        for field in self._rest:
            self.refuse(repr(field), "is unknown")


def _day(text: str) -> date:
    return date.fromisoformat(text)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError
    return int(text)


def _currency(text: str) -> str:
    if text not in CURRENCIES:
        raise ValueError
    return text


def _language(text: str) -> str:
    """Take a tag that documents are printed in: what is issued keeps its language, so a mistake would be found too late."""
    try:
        words_of(text)
    except DocumentNotPrintable:
        raise ValueError from None
    return text


def _country(text: str) -> str:
    if not (len(text) == 2 and text.isascii() and text.isalpha() and text.isupper()):
        raise ValueError
    return text


def load_agreements(path: Path) -> Agreements:
    """Read a file. Raises AgreementRefused naming file, place and field for what is wrong first."""
    where = path.name
    try:
        document = read_yaml(path)
    except ValueError as error:
        raise AgreementRefused(f"{where} {error}") from None
    if not isinstance(document, dict) or not document:
        raise AgreementRefused(f"{where} is not a mapping of {', '.join(_PARTS)}")
    for name in document:
        if name not in _PARTS:
            raise AgreementRefused(f"{where} has the unknown part {name!r}; there are {', '.join(_PARTS)}")
    found: dict[str, list[Any]] = {}
    for name, (field, read) in _PARTS.items():
        listed = document.get(name, [])
        if not isinstance(listed, list):
            raise AgreementRefused(f"{where}: {name} is not a list")
        for number, each in enumerate(listed, 1):
            place = _Place(f"{where}: {name} no. {number}", each)
            found.setdefault(field, []).append(read(place))
            place.done()
    made = Agreements(**found)
    keys = [key_of(each) for each in made.all]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise AgreementRefused(f"{where} names {' '.join(str(part) for part in twice)} twice")
    return made


def _issuer(place: _Place) -> Issuer:
    made = Issuer(
        entity_id=place.text("entity"),
        effective_from=place.read("from", _day, "date such as 2026-12-31"),
        name=place.text("name"),
        address=place.lines("address"),
        country=place.read("country", _country, "country code such as DE"),
        tax_id=place.maybe("tax_id"),
        email=place.maybe("email"),
        invoice_prefix=place.text("invoice_prefix"),
        credit_note_prefix=place.text("credit_note_prefix"),
        payment_days=place.read("payment_days", _whole, "whole number of days"),
    )
    if made.invoice_prefix == made.credit_note_prefix:
        place.refuse("credit_note_prefix", "is that of invoices: a number must say what it is")
    if made.payment_days > 365:
        place.refuse("payment_days", "is more than a year")
    return made


def _tax_rate(place: _Place) -> TaxRate:
    made = TaxRate(
        entity_id=place.text("entity"),
        category=place.text("category"),
        effective_from=place.read("from", _day, "date such as 2026-12-31"),
        rate=place.read("rate", parse_amount, "decimal number"),
        label=place.text("label"),
    )
    if not 0 <= made.rate < 1:
        place.refuse("rate", f"is {made.rate}; it is a share, 0.2 for twenty percent")
    return made


def _customer(place: _Place) -> Customer:
    return Customer(
        tenant_id=place.text("tenant"),
        effective_from=place.read("from", _day, "date such as 2026-12-31"),
        name=place.text("name"),
        address=place.lines("address"),
        country=place.read("country", _country, "country code such as DE"),
        tax_id=place.maybe("tax_id"),
        email=place.maybe("email"),
        tax_category=place.text("tax_category"),
        language=place.read("language", _language, f"language of documents, which are {', '.join(languages())}"),
        invoice_currency=place.maybe_read("invoice_currency", _currency, "code of ISO 4217"),
    )


def _item(place: _Place) -> Item:
    made = Item(
        item_id=place.text("id"),
        tenant_id=place.text("tenant"),
        kind=place.one_of("kind", "fee", "minimum", "discount"),
        description=place.text("description"),
        currency=place.maybe_read("currency", _currency, "code of ISO 4217"),
        amount=place.maybe_read("amount", parse_amount, "decimal number"),
        percent=place.maybe_read("percent", parse_amount, "decimal number"),
        period=place.maybe_read("period", _fee_period, "month, quarter or year"),
        timing=place.maybe_read("timing", _timing, "advance or arrears"),
        feature=place.maybe("feature"),
        model=place.maybe("model"),
        tax_category=place.maybe("tax_category"),
        starts_on=place.read("from", _day, "date such as 2026-12-31"),
        ends_on=place.maybe_read("until", _day, "date such as 2026-12-31"),
    )
    _check_item(place, made)
    return made


def _fee_period(text: str) -> Any:
    return {"month": "month", "quarter": "quarter", "year": "year"}[text]


def _timing(text: str) -> Any:
    return {"advance": "advance", "arrears": "arrears"}[text]


def _check_item(place: _Place, item: Item) -> None:
    is_fee = item.kind == "fee"
    for field, value in (("period", item.period), ("timing", item.timing)):
        if is_fee != (value is not None):
            place.refuse(field, "is missing" if is_fee else "is of fees alone")
    if (item.amount is None) == (item.percent is None):
        place.refuse("amount", "or percent: an item has one of the two")
    if item.percent is not None and item.kind != "discount":
        place.refuse("percent", "is of discounts alone")
    if item.percent is not None and not 0 < item.percent <= 100:
        place.refuse("percent", f"is {item.percent}; it is above 0 and at most 100")
    if (item.amount is None) != (item.currency is None):
        place.refuse("currency", "stands beside an amount, and only there")
    if item.amount is not None and item.currency is not None:
        if item.amount <= 0:
            place.refuse("amount", f"is {item.amount}; it is above zero")
        if item.amount != cut_money(item.amount, item.currency):
            place.refuse("amount", f"has more places than {item.currency}")
    if is_fee and (item.feature is not None or item.model is not None):
        place.refuse("feature", "or model is of minimums and discounts alone")
    if not is_fee and item.tax_category is not None:
        place.refuse("tax_category", "is of fees alone: minimums and discounts are taxed as the usage is")
    if item.ends_on is not None and item.ends_on < item.starts_on:
        place.refuse("until", "is before it starts")
    if not is_fee and (item.starts_on.day != 1 or (item.ends_on is not None and item.ends_on.day != 1)):
        place.refuse("from", "and until of what is no fee are first days of months")


def _bound(place: _Place) -> Bound:
    made = Bound(
        currency=place.read("currency", _currency, "code of ISO 4217"),
        total_max=place.maybe_read("total_max", parse_amount, "decimal number"),
        change_max=place.maybe_read("change_max", parse_amount, "decimal number"),
        change_from=place.maybe_read("change_from", parse_amount, "decimal number") or Decimal(0),
        lines_max=place.maybe_read("lines_max", _whole, "whole number"),
    )
    if made.total_max is not None and made.total_max < 0:
        place.refuse("total_max", "is below zero")
    if made.change_max is not None and made.change_max < 1:
        place.refuse("change_max", "is below one: how many times the last total may be reached")
    if made.lines_max == 0:
        place.refuse("lines_max", "is zero")
    return made


_PARTS: Final[Mapping[str, tuple[str, Callable[[_Place], Any]]]] = {
    "issuers": ("issuers", _issuer),
    "taxes": ("tax_rates", _tax_rate),
    "customers": ("customers", _customer),
    "items": ("items", _item),
    "bounds": ("bounds", _bound),
}


def key_of(each: Agreement) -> tuple[Any, ...]:
    """Return what an agreement is known by: a second one of the same key changes it."""
    if isinstance(each, Issuer):
        return ("issuer", each.entity_id, each.effective_from)
    if isinstance(each, Customer):
        return ("customer", each.tenant_id, each.effective_from)
    if isinstance(each, TaxRate):
        return ("tax rate", each.entity_id, each.category, each.effective_from)
    if isinstance(each, Item):
        return ("item", each.item_id)
    return ("bound", each.currency)


# --- Bringing it about ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one agreement of a file."""

    name: str
    outcome: Literal["added", "changed", "unchanged"]
    now: Mapping[str, Any]
    before: Mapping[str, Any] | None


async def apply_agreements(
    connection: Connection, actor: str, wanted: Agreements, *, reason: str | None = None, dry_run: bool = False
) -> list[Change]:
    """Bring what is agreed to what a file says, all or none; applying it again changes nothing.

    Raises Unknown for an entity or a tenant that is not there, and AgreementRefused where an item, or the tax category or
    currency of a customer, would change what an invoice that counts has billed, where an item is in another currency than
    the tenant's invoices, or where an issuer's prefix was that of the other kind of document.
    """
    async with connection.transaction(force_rollback=dry_run):
        tenants = {each.tenant_id for each in wanted.items} | {each.tenant_id for each in wanted.customers}
        await lock_tenants(connection, sorted(tenants))
        await _check_parties(connection, wanted)
        kept: list[Agreement] = [*await read_issuers(connection), *await read_tax_rates(connection)]
        kept += [*await read_customers(connection), *await read_items(connection), *await read_bounds(connection)]
        # In the order of recording: of several under one key the last counts.
        known = {key_of(each): each for each in kept}
        changes = []
        for wish in wanted.all:
            before = known.get(key_of(wish))
            name = " ".join(str(part) for part in key_of(wish))
            if before == wish:
                changes.append(Change(name, "unchanged", asdict(wish), asdict(before)))
                continue
            if isinstance(wish, Item):
                await _check_billed(connection, wish, before if isinstance(before, Item) else None)
            if isinstance(wish, Customer):
                await _check_terms(connection, wish, [each for each in kept if isinstance(each, Customer)])
            await _insert(connection, actor, wish)
            outcome: Literal["added", "changed"] = "added" if before is None else "changed"
            changes.append(Change(name, outcome, asdict(wish), None if before is None else asdict(before)))
        await _check_currencies(connection, sorted(tenants))
        await _check_prefixes(connection, {each.entity_id for each in wanted.issuers})
        moved = [change.name for change in changes if change.outcome != "unchanged"]
        if moved:
            await record_act(connection, actor, "billing.apply", {"changed": moved}, reason)
    return changes


async def _check_parties(connection: Connection, wanted: Agreements) -> None:
    entities = {each.entity_id for each in wanted.issuers} | {each.entity_id for each in wanted.tax_rates}
    tenants = {each.tenant_id for each in wanted.customers} | {each.tenant_id for each in wanted.items}
    for what, statement, names in (
        ("entity", "select entity_id from ledger.entities where entity_id = any(%s)", entities),
        ("tenant", "select tenant_id from ledger.tenants where tenant_id = any(%s)", tenants),
    ):
        cursor = await connection.execute(statement.encode(), [sorted(names)])
        missing = names - {row[0] for row in await cursor.fetchall()}
        if missing:
            raise Unknown(what, min(missing))


async def _check_prefixes(connection: Connection, entity_ids: Collection[str]) -> None:
    """Refuse a prefix of an entity's invoices and of its credit notes: both are counted from 1, and a number names one document."""
    standing = {(each.entity_id, each.effective_from): each for each in await read_issuers(connection)}
    used = {
        *((each.entity_id, "invoice", each.invoice_prefix) for each in standing.values()),
        *((each.entity_id, "credit_note", each.credit_note_prefix) for each in standing.values()),
    }
    cursor = await connection.execute(
        "select distinct entity_id, kind, left(number, -greatest(6, length(number_value::text))) from billing.documents"
        " where entity_id = any(%s)",
        [sorted(entity_ids)],
    )
    used.update(await cursor.fetchall())
    for entity_id, kind, prefix in sorted(used):
        if kind == "invoice" and entity_id in entity_ids and (entity_id, "credit_note", prefix) in used:
            raise AgreementRefused(
                f"issuer {entity_id}: prefix {prefix!r} is that of invoices and of credit notes, now or on another day:"
                " a number must say what it is"
            )


async def _check_billed(connection: Connection, wish: Item, before: Item | None) -> None:
    """Refuse an item that would change what was billed: what an invoice says stays, and so do the terms it was made by."""
    if before is not None and (before.tenant_id, before.kind) != (wish.tenant_id, wish.kind):
        raise AgreementRefused(
            f"item {wish.item_id} is a {before.kind} of {before.tenant_id}: give this one another id"
        )
    for month, *_ in await _invoiced(connection, wish.tenant_id):
        if _effect(wish, month) != _effect(before, month):
            raise AgreementRefused(
                f"item {wish.item_id}: {month:%Y-%m} of {wish.tenant_id} is invoiced, and it would have been billed otherwise;"
                " let it begin, or the change, after that, or void the invoice"
            )


async def _check_terms(connection: Connection, wish: Customer, kept: Sequence[Customer]) -> None:
    """Refuse a customer under whose tax category or currency an invoice that counts would have been another one."""
    own = [each for each in kept if each.tenant_id == wish.tenant_id]
    for month, numbers, issued_on in await _invoiced(connection, wish.tenant_id):
        last_day = month_after(month) - timedelta(days=1)
        # Where none was in force then, the invoice took that of its own day.
        before = in_force(own, last_day) or in_force(own, issued_on)
        after = in_force([*own, wish], last_day)
        if before is None or after is None:
            continue
        for what in ("tax_category", "invoice_currency"):
            old, new = (getattr(each, what) or "that of the charge" for each in (before, after))
            if old != new:
                raise AgreementRefused(
                    f"customer {wish.tenant_id} from {wish.effective_from}: {month:%Y-%m} is invoiced as {numbers} with"
                    f" {what} {old}, and this says {new}; let it begin after that month, or void the invoice"
                )


_LAST_DAY: Final = date(9000, 1, 1)
"""Of looking ahead: months after the calendar's end have no dates."""


async def _check_currencies(connection: Connection, tenant_ids: Sequence[str]) -> None:
    """Refuse an item that no invoice would have a line for, since they are all in a currency that the customer has chosen."""
    items, customers = await read_items(connection, tenant_ids), await read_customers(connection, tenant_ids)
    for tenant_id in tenant_ids:
        own = [each for each in customers if each.tenant_id == tenant_id]
        its_items = [each for each in items if each.tenant_id == tenant_id and each.currency is not None]
        if not own or not its_items:
            continue
        invoiced = {month for month, *_ in await _invoiced(connection, tenant_id)}
        month = month_of(min(each.starts_on for each in its_items))
        # A year after the last change every fee has come up once more, and all stays as it is.
        last = max(*(each.starts_on for each in its_items), *(each.effective_from for each in own))
        end = month_after(month_of(min(last, _LAST_DAY)), 13)
        while month < end:
            terms = in_force(own, month_after(month) - timedelta(days=1))
            if month not in invoiced and terms is not None and terms.invoice_currency is not None:
                for item in items_beside(its_items, month, terms.invoice_currency):
                    raise AgreementRefused(
                        f"item {item.item_id}: currency is {item.currency}, and {month:%Y-%m} of {tenant_id} is invoiced in"
                        f" {terms.invoice_currency}; agree it in that one, or let it end before"
                    )
            month = month_after(month)


async def _invoiced(connection: Connection, tenant_id: str) -> list[tuple[date, str, date]]:
    """Return the months of a tenant that invoices count for, with their numbers and the first day of issue (the tenant's)."""
    cursor = await connection.execute(
        "select d.posting_period, string_agg(d.number, ', ' order by d.number_value),"
        " min((d.issued_at at time zone d.time_zone)::date) from billing.documents as d"
        " where d.tenant_id = %s and d.kind = 'invoice'"
        " and not exists (select from billing.voids as v where v.document_id = d.document_id) group by 1 order by 1",
        [tenant_id],
    )
    return await cursor.fetchall()


def _effect(item: Item | None, month: date) -> Any:
    if item is None:
        return None
    what = (item.currency, item.amount, item.percent, item.feature, item.model, item.tax_category)
    if item.kind == "fee":
        part = fee_part(item, month)
        return None if part is None else (part, what)
    return what if item.counts_in(month) else None


_TABLES: Final[Mapping[type, str]] = {
    Issuer: "issuers", Customer: "customers", TaxRate: "tax_rates", Item: "items", Bound: "bounds",
}  # fmt: skip


async def _insert(connection: Connection, actor: str, wish: Agreement) -> None:
    names = [each.name for each in fields(wish)]
    values = [getattr(wish, name) for name in names]
    await connection.execute(
        f"insert into billing.{_TABLES[type(wish)]} ({', '.join(names)}, actor)"
        f" values ({', '.join(['%s'] * (len(names) + 1))})".encode(),
        [*(list(value) if isinstance(value, tuple) else value for value in values), actor],
    )
