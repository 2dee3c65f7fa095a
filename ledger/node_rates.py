"""What an hour of a GPU node costs, from when: dated, immutable, with where it stands; and the nodes that there are.

A rate is for a kind of node, as its windows say it: GPU model, count and MIG profile, all exactly; nothing is derived from
the rate of another count. Of those in force for a node, one of that very node counts before one of its region, and that before
one of any. A rate counts from `effective_at` until the next of the same kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final

import msgspec
from psycopg.rows import class_row

from ledger.database import Connection, change, record_act
from ledger.errors import NodeRateRefused
from ledger.keys import digest_uuid
from ledger.money import CURRENCIES, EXACT
from ledger.times import from_micros

PRICE_MAX: Final = Decimal(10_000)
"""More for an hour of one node is a slip of the decimal point."""
PLACES_MAX: Final = 12


class NodeRate(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of a kind of node costs from an instant on. Instants are UTC microseconds.

    `content_hash` covers what the rate says and not where it was read, so that adding it can be repeated.
    """

    gpu_model: str
    gpu_count: int
    hourly_price: Decimal
    currency: str
    effective_at: int
    source_address: str
    checked_on: date
    mig_profile: str | None = None
    """Of nodes that are slices of a GPU; None for whole ones."""
    region: str | None = None
    node_id: str | None = None
    replaces: str | None = None
    """Content hash of the rate that this one restates: same kind, same instant, known better later."""
    recorded_at: int = 0
    content_hash: str = ""

    def __post_init__(self) -> None:
        price = self.hourly_price
        content = {
            "kind": self.kind,
            "price": f"{price.normalize(EXACT):f}" if price.is_finite() else str(price),
            "currency": self.currency,
            "effective_at": self.effective_at,
            "replaces": self.replaces,
        }
        msgspec.structs.force_setattr(self, "content_hash", digest_uuid(msgspec.json.encode(content, order="sorted")))

    @property
    def kind(self) -> tuple[str, int, str | None, str | None, str | None]:
        """Which nodes it is for."""
        return (self.gpu_model, self.gpu_count, self.mig_profile, self.region, self.node_id)

    def __str__(self) -> str:
        slices = f" {self.mig_profile}" if self.mig_profile else ""
        where = f" of node {self.node_id}" if self.node_id else f" in {self.region}" if self.region else ""
        return f"{self.gpu_count} x {self.gpu_model}{slices}{where} at {self.hourly_price:f} {self.currency} an hour"


def check_node_rate(rate: NodeRate) -> None:
    """Raise NodeRateRefused, naming field and rule, for a rate that could misprice."""

    def refuse(field: str, rule: str) -> None:
        raise NodeRateRefused(str(rate), field, rule)

    if not rate.gpu_model or rate.gpu_model != rate.gpu_model.strip():
        refuse("gpu_model", "is empty or has blanks around it; it is matched exactly with what windows say")
    if rate.gpu_count < 1:
        refuse("gpu_count", f"is {rate.gpu_count}; a node has at least one")
    for field, name in (("mig_profile", rate.mig_profile), ("region", rate.region), ("node_id", rate.node_id)):
        if name == "":
            refuse(field, "is empty; left out, the rate is for any")
    if rate.region is not None and rate.node_id is not None:
        refuse("region", "stands beside a node, which is somewhere anyway")
    if rate.currency not in CURRENCIES:
        refuse("currency", f"is {rate.currency!r}, which is no code of ISO 4217")
    if not rate.hourly_price.is_finite() or not 0 < rate.hourly_price <= PRICE_MAX:
        refuse("hourly_price", f"is {rate.hourly_price}; it takes a number above 0, at most {PRICE_MAX:,}")
    exponent = rate.hourly_price.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > PLACES_MAX:
        refuse("hourly_price", f"has more than {PLACES_MAX} decimal places")
    if not rate.source_address:
        refuse("source", "is empty; a price says where it stands")


def check_node_rates(rates: Iterable[NodeRate]) -> list[NodeRate]:
    """Return the rates that no other one replaces; raise NodeRateRefused where one breaks a rule or two claim one instant."""
    known = {rate.content_hash: rate for rate in rates}
    replaced: set[str] = set()
    for rate in known.values():
        check_node_rate(rate)
        if rate.replaces is not None:
            _check_replaced(rate, known, replaced)
            replaced.add(rate.replaces)
    standing: dict[tuple[object, ...], NodeRate] = {}
    for content_hash, rate in known.items():
        if content_hash not in replaced:
            before = standing.setdefault((*rate.kind, rate.effective_at), rate)
            if before is not rate:
                rule = "is that of another rate for these nodes; a correction names the rate that it replaces"
                raise NodeRateRefused(str(rate), "effective_at", rule)
    return list(standing.values())


def _check_replaced(rate: NodeRate, known: Mapping[str, NodeRate], replaced: set[str]) -> None:
    old = known.get(rate.replaces or "")
    if old is None:
        raise NodeRateRefused(str(rate), "replaces", f"names {rate.replaces}, which is no rate")
    if (old.kind, old.effective_at) != (rate.kind, rate.effective_at):
        raise NodeRateRefused(str(rate), "replaces", "names a rate of other nodes or another instant")
    if rate.replaces in replaced:
        raise NodeRateRefused(str(rate), "replaces", f"names {rate.replaces}, which another replaces already")


# --- In Postgres ------------------------------------------------------------------------------------------------------


async def read_node_rates(connection: Connection) -> list[NodeRate]:
    """Return all rates by kind and in order of time, those that were restated among them."""
    cursor = await connection.execute(
        """
        select
            gpu_model, gpu_count, hourly_price, currency,
            (extract(epoch from effective_at) * 1000000)::bigint,
            source_address, checked_on, mig_profile, region, node_id, replaces::text,
            (extract(epoch from recorded_at) * 1000000)::bigint
        from ledger.node_rates
        order by gpu_model, gpu_count, mig_profile, region, node_id, effective_at, node_rate_id
        """
    )
    return [
        NodeRate(
            gpu_model=row[0],
            gpu_count=row[1],
            hourly_price=row[2],
            currency=row[3],
            effective_at=row[4],
            source_address=row[5],
            checked_on=row[6],
            mig_profile=row[7],
            region=row[8],
            node_id=row[9],
            replaces=row[10],
            recorded_at=row[11],
        )
        async for row in cursor
    ]


async def save_node_rates(
    connection: Connection, rates: Iterable[NodeRate], actor: str, reason: str | None = None
) -> int:
    """Add rates that are not there yet and return how many; nothing is kept if one of them is refused.

    Takes the calendar lock alone, as every change of prices, so that rates are numbered in the order in which they commit:
    the rollup goes by that number.
    """
    async with change(connection):
        known = await read_node_rates(connection)
        hashes = {rate.content_hash for rate in known}
        added = list({rate.content_hash: rate for rate in rates if rate.content_hash not in hashes}.values())
        check_node_rates([*known, *added])
        async with connection.cursor() as writer:
            await writer.executemany(
                """
                insert into ledger.node_rates (
                    content_hash, gpu_model, gpu_count, mig_profile, region, node_id, hourly_price, currency,
                    effective_at, source_address, checked_on, replaces
                )
                values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                """,
                [
                    (
                        rate.content_hash,
                        rate.gpu_model,
                        rate.gpu_count,
                        rate.mig_profile,
                        rate.region,
                        rate.node_id,
                        rate.hourly_price,
                        rate.currency,
                        from_micros(rate.effective_at),
                        rate.source_address,
                        rate.checked_on,
                        rate.replaces,
                    )
                    for rate in added
                ],
            )
        if added:
            hashes_added = [rate.content_hash for rate in added]
            await record_act(connection, actor, "node_rates.add", {"rates": hashes_added}, reason)
    return len(added)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node by its newest window, and what an hour of it costs then."""

    node_id: str
    tenant_id: str
    source: str
    gpu_model: str | None
    gpu_count: int | None
    mig_profile: str | None
    region: str | None
    model: str | None
    window_count: int
    reported_until: datetime
    hourly_price: Decimal | None
    """None where no rate is in force: its hours have no cost until somebody adds one."""
    currency: str | None


async def list_nodes(connection: Connection, *, since: datetime) -> list[NodeRecord]:
    """List the nodes that reported a window that ended after an instant, by id."""
    async with connection.cursor(row_factory=class_row(NodeRecord)) as cursor:
        await cursor.execute(_NODES, {"since": since})
        return await cursor.fetchall()


_NODES: Final = """
with newest as (
    select distinct on (node_id)
        node_id,
        tenant_id,
        source,
        starts_at,
        ends_at,
        body,
        count(*) over (partition by node_id) as window_count
    from ledger.node_windows
    where ends_at > %(since)s
    order by node_id, starts_at desc
)

select
    n.node_id,
    n.tenant_id,
    n.source,
    n.body ->> 'gpu_model' as gpu_model,
    (n.body ->> 'gpu_count')::integer as gpu_count,
    n.body ->> 'mig_profile' as mig_profile,
    n.body ->> 'region' as region,
    n.body ->> 'model' as model,
    n.window_count,
    n.ends_at as reported_until,
    r.hourly_price,
    r.currency
from newest as n
left join lateral (
    select
        r.hourly_price,
        r.currency::text as currency
    from ledger.node_rates as r
    where
        r.gpu_model = n.body ->> 'gpu_model'
        and r.gpu_count = (n.body ->> 'gpu_count')::integer
        and r.mig_profile is not distinct from n.body ->> 'mig_profile'
        and (r.region is null or r.region = n.body ->> 'region')
        and (r.node_id is null or r.node_id = n.node_id)
        and r.effective_at <= n.starts_at
        and not exists (select from ledger.node_rates as later where later.replaces = r.content_hash)
    order by r.node_id is null, r.region is null, r.effective_at desc
    limit 1
) as r on true
order by n.node_id
"""
