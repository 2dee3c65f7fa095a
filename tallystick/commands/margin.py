"""`tallystick margin`: what tenants were charged against what it cost, by month."""

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tallystick.commands.common import CommandError, Format, FormatOption, MonthArgument, month, show, with_connection
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
    """standard: the price that entries name. actual: the share of the nodes' bills. idle: of nodes, which nobody is charged for."""
    standard_amount: Decimal
    margin_amount: Decimal | None
    """Charge less cost; None where they are in two currencies."""
    request_count: int
    incomplete_count: int
    """Requests of which cost, charge or usage is not known: what they come to is in no amount."""


# Standard and actual never meet in one amount of two currencies: nodes that are paid in another one stay at their standard
# cost. A UTC hour of a node belongs to the month in which it begins in the zone of its tenant.
_MARGIN: Final = """
with charged as (
    select
        tenant_id, feature, provider, model, charge_currency, cost_currency,
        sum(charge_amount) as charge_amount,
        sum(cost_amount) as standard_amount,
        sum(request_count)::bigint as request_count,
        sum(greatest(cost_unpriced_count, charge_unpriced_count, usage_missing_count))::bigint as incomplete_count
    from marts.fct_cost_daily
    where local_date >= %(month)s and local_date < %(month)s + interval '1 month'
        and (%(tenant)s::text is null or tenant_id = %(tenant)s)
    group by 1, 2, 3, 4, 5, 6
),
node_hours as (
    select
        a.kind, a.tenant_id, a.feature, a.provider, a.model, a.currency,
        sum(a.node_amount) as node_amount,
        sum(a.standard_amount) as standard_amount
    from marts.fct_gpu_allocation_hourly as a
    join marts.dim_tenants as t on t.tenant_id = a.tenant_id
    where a.starts_at >= %(month)s::timestamp - interval '1 day'
        and a.starts_at < %(month)s::timestamp + interval '1 month 1 day'
        and date_trunc('month', a.starts_at at time zone t.time_zone)::date = %(month)s
        and (%(tenant)s::text is null or a.tenant_id = %(tenant)s)
        and a.node_amount is not null
        and (a.kind = 'idle' or a.kind = 'request' and a.standard_currency in (a.currency, ''))
    group by 1, 2, 3, 4, 5, 6
),
-- Usage of one cost in two charge currencies cannot say whose the node was: the first takes it all.
placed as (
    select
        *,
        row_number() over (
            partition by tenant_id, feature, provider, model, cost_currency order by charge_amount desc, charge_currency
        ) as place
    from charged
),
parts as (
    select
        c.tenant_id, c.feature, c.provider, c.model, c.charge_currency, c.charge_amount, c.cost_currency,
        c.standard_amount,
        c.standard_amount - coalesce(n.standard_amount, 0) + coalesce(n.node_amount, 0) as cost_amount,
        case
            when n.tenant_id is null then 'standard'
            when n.standard_amount = c.standard_amount then 'actual'
            else 'part actual'
        end as cost_basis,
        c.request_count,
        c.incomplete_count
    from placed as c
    left join node_hours as n
        on n.kind = 'request' and n.tenant_id = c.tenant_id and n.feature = c.feature and n.provider = c.provider
        and n.model = c.model and n.currency = c.cost_currency and c.place = 1
    union all
    select tenant_id, feature, provider, model, '', 0, currency, 0, node_amount, 'idle', 0, 0
    from node_hours
    where kind = 'idle'
)
select
    {dimensions},
    charge_currency,
    trim_scale(sum(charge_amount)) as charge_amount,
    cost_currency,
    trim_scale(sum(cost_amount)) as cost_amount,
    case
        when count(distinct cost_basis) = 1 then min(cost_basis)
        else 'part actual'
    end as cost_basis,
    trim_scale(sum(standard_amount)) as standard_amount,
    case
        when charge_currency in (cost_currency, '') or cost_currency = ''
            then trim_scale(sum(charge_amount) - sum(cost_amount))
    end as margin_amount,
    sum(request_count)::bigint as request_count,
    sum(incomplete_count)::bigint as incomplete_count
from parts
group by {groups} charge_currency, cost_currency, cost_basis = 'idle'
order by {groups} charge_currency, cost_currency, cost_basis
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
    format: FormatOption = Format.table,
) -> None:
    """Show what a month was charged against what it cost, by the local days on which it was used.

    Self-hosted models cost their share of the nodes' bills where nodes report (`actual`), the standard price of the
    price book elsewhere; idle nodes are rows of their own, on who owns them. Currencies are never added.
    """
    wanted = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in _DIMENSIONS]
    if unknown:
        raise CommandError(f"--by: {unknown[0]!r} is none of {', '.join(_DIMENSIONS)}")
    first = month(of_month)
    columns = {"tenant": "tenant_id", "feature": "feature", "provider": "provider", "model": "model"}
    chosen = [column if name in wanted else f"null::text as {column}" for name, column in columns.items()]
    groups = "".join(f"{column}, " for name, column in columns.items() if name in wanted)
    statement = _MARGIN.format(dimensions=",\n    ".join(chosen), groups=groups)

    async def read(connection: "Connection") -> list[Margin]:
        cursor = await connection.execute("select to_regclass('marts.fct_gpu_allocation_hourly') is not null")
        row = await cursor.fetchone()
        if row is None or not row[0]:
            raise CommandError("the marts are not there yet: run `tallystick rollup`")
        cursor = await connection.execute(statement.encode(), {"month": first, "tenant": tenant})
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
            "not known": lambda each: each.incomplete_count,
        },
        empty=f"nothing was used in {first:%Y-%m}",
    )


def _shown(each: Margin) -> str:
    if each.margin_amount is None:
        return "two currencies"
    share = f" ({each.margin_amount / each.charge_amount:.1%})" if each.charge_amount > 0 else ""
    return f"{each.margin_amount:,f} {each.charge_currency or each.cost_currency}".strip() + share
