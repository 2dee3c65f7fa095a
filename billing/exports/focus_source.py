"""Where the usage rows of a FOCUS file come from: the mart of charges, less what credit notes took, with list prices."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from psycopg.rows import DictRow, dict_row

from billing.documents import Document
from billing.errors import ExportRefused
from billing.exports.focus import UsageCharge
from ledger.database import Connection
from ledger.meters import OPERATIONS
from ledger.money import EXACT
from ledger.price_book import PriceBook, RateSet, Selectors
from ledger.price_store import load_price_book
from ledger.times import local_midnight

_STATEMENT: Final = (Path(__file__).parent / "sql" / "focus_charges.sql").read_text(encoding="utf-8")
_MINUTE: Final = 60_000_000


async def read_charges(connection: Connection, document: Document) -> list[UsageCharge]:
    """Return what the usage of a document came to by meter, day and price, in a fixed order.

    Shape: rows of fct_focus_charges of the document's tenant, month and currency; of a credit note, the entries that it took.
    Errors: ExportRefused where the mart has not been made.
    """
    cursor = await connection.execute("select to_regclass('marts.fct_focus_charges') is not null")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        raise ExportRefused("marts.fct_focus_charges is not there yet: run `tallystick rollup`")
    async with connection.cursor(row_factory=dict_row) as rows:
        await rows.execute(
            _STATEMENT.encode(),
            {
                "tenant_id": document.tenant_id,
                "posting_period": document.posting_period,
                "currencies": sorted(
                    {document.currency} | {line.charged_currency for line in document.lines if line.charged_currency}
                ),
                "document_id": document.document_id,
                "is_credit_note": document.kind == "credit_note",
            },
        )
        found = await rows.fetchall()
    # Only a tenant with prices of its own pays something else than the list.
    book = await load_price_book(connection) if any(each["is_own_price"] for each in found) else None
    return [_charge(each, document, book) for each in found]


def _charge(row: DictRow, document: Document, book: PriceBook | None) -> UsageCharge:
    listed = list_unit_price(row, document, book) if book is not None and row["is_own_price"] else None
    return UsageCharge(
        local_date=row["local_date"],
        charge_class=row["charge_class"],
        feature=row["feature"],
        language=row["language"],
        provider=row["provider"],
        model=row["model"],
        route=row["route"],
        lane=row["lane"],
        region=row["region"],
        service_tier=row["service_tier"],
        meter=row["sku_meter"],
        rate_set_id=row["rate_set_id"],
        quantity=Decimal(row["quantity"]),
        cost=row["cost"],
        unit_price=row["price"],
        per=row["per"],
        currency=row["currency"],
        list_unit_price=listed,
        selectors=row["selectors"],
    )


def list_unit_price(row: Mapping[str, Any], document: Document, book: PriceBook) -> Decimal | None:
    """Return what the plan, which is for everybody, asks for the meter in the row's `per`, or None where it has no price.

    The plan's card is that of the start of the day, with the tier and region that were reported, and the band and hour of the
    price that was charged. What a billing rule freed is free on the list too.
    """
    chosen = row["selectors"] or {}
    if "billing_rule" in chosen and row["sku_meter"] != OPERATIONS:
        return None
    day: date = row["local_date"]
    found = book.rate_set(
        "charge",
        Selectors(
            provider=row["provider"] or None,
            model=row["model"] or None,
            occurred_at=_hour_of(chosen, local_midnight(document.time_zone, day)),
            currency=row["currency"],
            service_tier=row["service_tier"] or None,
            region=row["region"] or None,
            input_tokens=_length_of(chosen),
        ),
    )
    if not isinstance(found, RateSet):
        return None
    of_meter = book.fee(found) if row["sku_meter"] == OPERATIONS else found
    rate = None if of_meter is None else of_meter.rates.get(row["sku_meter"])
    if rate is None:
        return None
    # Both are powers of ten, so the price for another number of units is exact.
    return EXACT.divide(EXACT.multiply(rate.price, Decimal(row["per"])), Decimal(rate.per))


def _hour_of(chosen: Mapping[str, str], midnight: int) -> int:
    """Return an instant of the day at which the hours of the price hold, or the day's start."""
    if "hours" not in chosen:
        return midnight
    hour, minute = chosen["hours"].split("-")[0].split(":")
    wanted = int(hour) * 60 + int(minute)
    now = midnight // _MINUTE % (24 * 60)
    return midnight + (wanted - now) % (24 * 60) * _MINUTE


def _length_of(chosen: Mapping[str, str]) -> int:
    """Return an input that is in the band of the price."""
    band = chosen.get("band", "")
    if not band:
        return 0
    return int(band.lstrip(">=")) + (not band.startswith(">="))
