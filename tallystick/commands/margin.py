"""`tallystick margin`: what tenants were charged against what it cost, by month."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tallystick.commands.common import (
    CommandError,
    Format,
    FormatOption,
    MonthArgument,
    month,
    need_tenant,
    show,
    with_connection,
)
from tallystick.roles import ANALYST

if TYPE_CHECKING:
    from ledger.database import Connection

_DIMENSIONS: Final = ("tenant", "feature", "provider", "model")


@dataclass(frozen=True, slots=True)
class Margin:
    """Charge against cost of a month, for one tenant, feature and model, in one currency each; amounts are unrounded."""

    tenant_id: str | None
    """None where rows are not cut by it; so are the other three."""
    feature: str | None
    provider: str | None
    model: str | None
    charge_currency: str
    charge_amount: Decimal
    cost_currency: str
    cost_amount: Decimal
    """By `cost_basis`."""
    cost_basis: Literal["standard", "actual", "part actual", "idle"]
    """standard: the price that entries name. actual: the share of the nodes' bills. idle: of nodes, which nobody is charged for.
    part actual: of some requests the one, of the others the other."""
    standard_amount: Decimal
    margin_amount: Decimal | None
    """Charge less cost; None where they are in more than one currency, or one of them is not known at all."""
    request_count: int
    cost_unpriced_count: int
    """Requests whose standard cost is not known and in no amount; so are the next two."""
    charge_unpriced_count: int
    usage_missing_count: int
    unrated_hour_count: int
    """Hours of nodes that have no rate: their cost is in no amount."""


_MARGIN: Final = (Path(__file__).parent.parent / "margin.sql").read_text()
_OF_TENANT: Final = "(%(tenant)s::text is null or tenant_id = %(tenant)s)"
_BY_DAYS: Final = f"""
    select *
    from marts.fct_cost_daily
    where local_date >= %(month)s and local_date < %(month)s + interval '1 month' and {_OF_TENANT}
"""
# As the invoice folds it: the marts' months are those of usage. What a credit note took stands on no invoice, and is of the
# month that the note corrects.
_BY_BILLING: Final = f"""
    select
        tenant_id,
        coalesce(feature, '') as feature,
        coalesce(provider, '') as provider,
        coalesce(model, '') as model,
        coalesce(charge_currency, '') as charge_currency,
        coalesce(cost_currency, '') as cost_currency,
        coalesce(charge_amount, 0) as charge_amount,
        coalesce(cost_amount, 0) as cost_amount,
        request_count,
        case when cost_amount is null then request_count else 0 end as cost_unpriced_count,
        case when charge_amount is null then request_count else 0 end as charge_unpriced_count,
        case when 'usage_missing' = any (usage_flags) then request_count else 0 end as usage_missing_count
    from (
        select *
        from ledger.entries as e
        where
            e.posting_period = %(month)s
            and not exists (
                select
                from billing.credited_entries as c
                where c.posting_period = e.posting_period and c.entry_id = e.entry_id
            )
        union all
        select e.*
        from billing.documents as d
        join billing.credited_entries as c on c.document_id = d.document_id
        join ledger.entries as e on e.posting_period = c.posting_period and e.entry_id = c.entry_id
        where d.posting_period = %(month)s and d.kind = 'credit_note'
    ) as billed
    where kind <> 'evidence' and {_OF_TENANT}
"""


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("margin")(margin)


def margin(
    of_month: MonthArgument,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")] = None,
    by: Annotated[
        str, typer.Option("--by", help="What rows are cut by: any of tenant, feature, provider, model.")
    ] = "tenant,feature,model",
    billed: Annotated[
        bool, typer.Option("--billed", help="By month of billing, as its invoices; costs are standard prices.")
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """Show what a month was charged against what it cost, by the local days on which it was used.

    With `--billed` by what the month's documents bill: charges are the sum of their usage lines, late usage of earlier months in
    it, less what credit notes for usage gave back.
    Self-hosted models cost their share of the nodes' bills where nodes report (`actual`), the standard price of the
    price book elsewhere; idle nodes are rows of their own, on who owns them. Currencies are never added, and what is not known is
    counted beside: requests without cost, charge or usage, hours of nodes without a rate.
    """
    wanted = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in _DIMENSIONS]
    if unknown:
        raise CommandError(f"--by: {unknown[0]!r} is none of {', '.join(_DIMENSIONS)}")
    first = month(of_month)
    columns = {"tenant": "tenant_id", "feature": "feature", "provider": "provider", "model": "model"}
    kept = [column for name, column in columns.items() if name in wanted]
    statement = _MARGIN.format(
        usage=(_BY_BILLING if billed else _BY_DAYS).strip(),
        dimensions=", ".join(kept) or "null",
        groups="".join(f"{column}, " for column in kept),
        chosen=", ".join(column if column in kept else "null" for column in columns.values()),
    )

    async def read(connection: "Connection") -> list[Margin]:
        await need_tenant(connection, tenant)
        cursor = await connection.execute("select to_regclass('marts.fct_gpu_allocation_hourly') is not null")
        row = await cursor.fetchone()
        if row is None or not row[0]:
            raise CommandError("the marts are not there yet: run `tallystick rollup`")
        if billed:
            cursor = await connection.execute(
                "select from ledger.retired_months where posting_period = %s and not is_readable", [first]
            )
            if await cursor.fetchone() is not None:
                raise CommandError(f"the rows of {first:%Y-%m} have left the ledger: `tallystick retention restore`")
        parameters = {"month": first, "tenant": tenant, "billed": billed}
        cursor = await connection.execute(statement.encode(), parameters)
        return [Margin(*found) for found in await cursor.fetchall()]

    found = with_connection(read, role=ANALYST)
    show(
        found,
        format,
        {
            **{name: (lambda column: lambda each: getattr(each, column))(columns[name]) for name in wanted},
            "charge": lambda each: f"{each.charge_amount:,f} {each.charge_currency}".strip(),
            "cost": lambda each: f"{each.cost_amount:,f} {each.cost_currency}".strip(),
            "basis": lambda each: each.cost_basis,
            "margin": lambda each: _shown(each),
            "requests": lambda each: each.request_count,
            "no cost": lambda each: each.cost_unpriced_count,
            "no charge": lambda each: each.charge_unpriced_count,
            "no usage": lambda each: each.usage_missing_count,
            "no rate": lambda each: each.unrated_hour_count,
        },
        empty=f"nothing was {'billed' if billed else 'used'} in {first:%Y-%m}",
    )


def _shown(each: Margin) -> str:
    if each.margin_amount is None:
        return "not known"
    share = f" ({each.margin_amount / each.charge_amount:.1%})" if each.charge_amount > 0 else ""
    return f"{each.margin_amount:,f} {each.charge_currency or each.cost_currency}".strip() + share
