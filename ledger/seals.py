"""The seal of a closed month: what it came to, by local day and the dimensions of the marts, under one digest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.database import Connection
from ledger.money import EXACT
from ledger.tables import SEAL_DIMENSIONS, SEAL_MEASURES

DIGEST_VERSION: Final = 1
COLUMNS: Final = (
    "local_date",
    *(name for name, _ in SEAL_DIMENSIONS),
    *(name for name, _ in SEAL_MEASURES),
)
"""Of a line, in the order of the canonical text."""

Line = Sequence[Any]
"""The values of COLUMNS."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


# --- The canonical text -----------------------------------------------------------------------------------------------


def canonical_line(line: Line) -> str:
    r"""Return a line as text: values between tabs, `\N` for null, decimals without an exponent or trailing zeros."""
    return "\t".join([_text(value) for value in line])


def _text(value: Any) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, Decimal):
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value).translate(_ESCAPES)


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Return lines in the order of their texts' bytes, which no database's collation decides."""
    return sorted(lines, key=lambda line: canonical_line(line).encode())


def seal_digest(tenant_id: str, month: date, lines: Iterable[Line]) -> bytes:
    """Return the SHA-256 over version, tenant, month and lines in their order.

    Two closes that found the same have the same digest.
    """
    digest = sha256(f"tallystick seal {DIGEST_VERSION}\n{_text(tenant_id)}\t{month}\n".encode())
    for line in lines:
        digest.update(f"{canonical_line(line)}\n".encode())
    return digest.digest()


def sums_by_currency(lines: Iterable[Line], book: str) -> dict[str, Decimal]:
    """Return the amounts of a book by currency, in the shortest digits; what has no currency is unpriced and has none."""
    currency, amount = COLUMNS.index(f"{book}_currency"), COLUMNS.index(f"{book}_amount")
    sums: dict[str, Decimal] = {}
    for line in lines:
        if line[currency] is not None:
            sums[line[currency]] = EXACT.add(sums.get(line[currency], Decimal(0)), line[amount])
    return {code: Decimal(_text(sums[code])) for code in sorted(sums)}


def total(lines: Iterable[Line], measure: str) -> int:
    """Return the sum of a count."""
    place = COLUMNS.index(measure)
    return sum(line[place] for line in lines)


def head_of(lines: Sequence[Line]) -> tuple[int, int, int, dict[str, str], dict[str, str]]:
    """Return what a seal says of its lines: (lines, rows, requests, costs by currency, charges by currency)."""
    rows = total(lines, "entry_count") + total(lines, "evidence_count")
    return len(lines), rows, total(lines, "request_count"), _sums(lines, "cost"), _sums(lines, "charge")


def _sums(lines: Sequence[Line], book: str) -> dict[str, str]:
    return {currency: f"{amount:f}" for currency, amount in sums_by_currency(lines, book).items()}


# --- In the database --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealRecord:
    """What a close of a tenant's month found."""

    tenant_id: str
    posting_period: date
    close_number: int
    is_superseded: bool
    """The month was opened again since, or closed once more."""
    sealed_at: datetime
    line_count: int
    row_count: int
    request_count: int
    cost_sums: dict[str, str]
    charge_sums: dict[str, str]
    cost_unpriced_count: int
    charge_unpriced_count: int
    usage_missing_count: int
    digest: str


async def period_lines(connection: Connection, tenant_id: str, month: date) -> list[Line]:
    """Fold the ledger's rows of a tenant's month, in canonical order."""
    cursor = await connection.execute(
        f"select {', '.join(COLUMNS)} from ledger.period_totals(%s, %s)", [tenant_id, month]
    )
    return in_order(await cursor.fetchall())


async def seal_period(connection: Connection, tenant_id: str, month: date) -> SealRecord | None:
    """Seal a closed month in a transaction of its own; None where it is open or sealed already.

    The period's row is locked meanwhile, so that nobody opens the month between the fold and the seal.
    """
    async with connection.transaction():
        cursor = await connection.execute(
            "select close_number from ledger.periods where tenant_id = %s and posting_period = %s and state = 'closed'"
            " for no key update",
            [tenant_id, month],
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        number = row[0]
        # A second statement, after the lock: it sees what another sealer has committed meanwhile.
        cursor = await connection.execute(
            "select from ledger.seals where tenant_id = %s and posting_period = %s and close_number = %s",
            [tenant_id, month, number],
        )
        if await cursor.fetchone() is not None:
            return None
        lines = await period_lines(connection, tenant_id, month)
        await _insert(connection, tenant_id, month, number, lines)
    (made,) = await list_seals(connection, tenant_id=tenant_id, month=month, close_number=number)
    return made


async def _insert(connection: Connection, tenant_id: str, month: date, number: int, lines: Sequence[Line]) -> None:
    line_count, row_count, request_count, cost_sums, charge_sums = head_of(lines)
    await connection.execute(
        "insert into ledger.seals (tenant_id, posting_period, close_number, line_count, row_count, request_count, cost_sums,"
        " charge_sums, cost_unpriced_count, charge_unpriced_count, usage_missing_count, digest, digest_version)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            tenant_id, month, number, line_count, row_count, request_count, Jsonb(cost_sums), Jsonb(charge_sums),
            total(lines, "cost_unpriced_count"), total(lines, "charge_unpriced_count"),
            total(lines, "usage_missing_count"), seal_digest(tenant_id, month, lines), DIGEST_VERSION,
        ],
    )  # fmt: skip
    named = "tenant_id, posting_period, close_number, line_number, " + ", ".join(COLUMNS)
    async with connection.cursor().copy(f"copy ledger.seal_lines ({named}) from stdin") as copy:
        for place, line in enumerate(lines, 1):
            await copy.write_row([tenant_id, month, number, place, *line])


async def list_seals(
    connection: Connection,
    *,
    tenant_id: str | None = None,
    month: date | None = None,
    close_number: int | None = None,
) -> list[SealRecord]:
    """List seals by tenant, month and close, superseded ones included."""
    async with connection.cursor(row_factory=class_row(SealRecord)) as cursor:
        await cursor.execute(
            """
            select
                s.tenant_id, s.posting_period, s.close_number,
                s.close_number < p.close_number or p.state = 'open' as is_superseded,
                s.sealed_at, s.line_count, s.row_count, s.request_count, s.cost_sums, s.charge_sums,
                s.cost_unpriced_count, s.charge_unpriced_count, s.usage_missing_count, encode(s.digest, 'hex') as digest
            from ledger.seals as s
            join ledger.periods as p using (tenant_id, posting_period)
            where
                (%(tenant_id)s::text is null or s.tenant_id = %(tenant_id)s)
                and (%(month)s::date is null or s.posting_period = %(month)s)
                and (%(close_number)s::integer is null or s.close_number = %(close_number)s)
            order by s.tenant_id, s.posting_period, s.close_number
            """,
            {"tenant_id": tenant_id, "month": month, "close_number": close_number},
        )
        return await cursor.fetchall()
