"""Reads raw usage again after a record was mended, and posts what it says now as a better statement of the same request.

Shown before it is kept: what would move, by tenant. Keeping it is a person's decision, which ranks above any report; so a
lower count of a final request is accepted by it. A second run finds nothing to do.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ingest.flavours import FLAVOURS
from ingest.usage_events import read_event
from ingest.wire import UsageData, UsageEvent, decode_any
from ledger import feeds
from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, record_act
from ledger.entries import Standing, standing, tail
from ledger.errors import Unknown
from ledger.keys import EVENT, key
from ledger.meters import COLUMN_METERS
from ledger.money import EXACT
from ledger.posting import Batch, Missing, Posted, Priced, Rows, post, prepare, standing_rows
from ledger.statements import DIMENSIONS, Refused, Statement
from ledger.times import from_micros, micros
from ledger.true_ups import fold, reported

SOURCE: Final = "commands://events/reread"
"""Stands in the keys of what this posts; entries keep the source of the report that was read again."""
FEED: Final = "commands:events-reread"
_AT_ONCE: Final = 500
_PLACE: Final = {name: number for number, name in enumerate(DIMENSIONS)}


@dataclass(slots=True)
class Moves:
    """What reading again changes, for one tenant or in sum."""

    request_count: int = 0
    """Requests whose statement changes."""
    quantities: Counter[str] = field(default_factory=Counter)
    """Meter to the difference."""
    cost: dict[str, Decimal] = field(default_factory=dict)
    """Currency to the difference."""
    charge: dict[str, Decimal] = field(default_factory=dict)
    unpriced_before: int = 0
    unpriced_after: int = 0
    """Of those requests, how many have an amount missing."""

    def add(self, other: "Moves") -> None:
        """Add what another changes."""
        self.request_count += other.request_count
        self.quantities.update(other.quantities)
        for mine, theirs in ((self.cost, other.cost), (self.charge, other.charge)):
            for currency, amount in theirs.items():
                mine[currency] = EXACT.add(mine.get(currency, Decimal(0)), amount)
        self.unpriced_before += other.unpriced_before
        self.unpriced_after += other.unpriced_after


@dataclass(slots=True)
class Reread:
    """What a run found, and did if it was to keep it."""

    flavour: str
    version: int
    """The version of the record that read now."""
    read_count: int = 0
    """Raw objects that an older version had read and that stand for their request."""
    unchanged_count: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Reason to count of objects that the record refuses now; they stay as they are."""
    by_tenant: dict[str, Moves] = field(default_factory=dict)
    is_kept: bool = False
    batch_ids: list[int] = field(default_factory=list)

    @property
    def total(self) -> Moves:
        """What changes in sum."""
        total = Moves()
        for moves in self.by_tenant.values():
            total.add(moves)
        return total


async def reread(
    connection: Connection, flavour: str, *, since: int | None = None, keep: bool, actor: str, reason: str
) -> Reread:
    """Read every raw object of a flavour that an older version of its record has read, and keep what changes if told to.

    Only the statement that stands for its request is read again; `since` leaves out requests that occurred before.
    Needs the writer's role. Raises Unknown for a flavour that nobody has described; errors of `post` as they come: what was
    kept before stays, and another run goes on with the rest.
    """
    record = FLAVOURS.get(flavour)
    if record is None:
        raise Unknown("flavour", flavour)
    found = Reread(flavour, record.version, is_kept=keep)
    books = await load_books(connection)
    held = await feeds.claim(connection, "commands", FEED) if keep else None
    after = 0
    while True:
        rows = await _older_rows(connection, flavour, record.version, since, after)
        if not rows:
            return found
        after = rows[-1].entry_id
        changed = await _changes(connection, books, rows, found, actor, reason)
        if held is not None and changed:
            detail = {"flavour": flavour, "version": record.version, "requests": len(changed)}
            batch = Batch(
                items=changed,
                body_of=lambda index, said=changed: said[index].statement.raw_usage or b"",  # type: ignore[misc]
                origin_of=lambda _: FEED,
                versions=books.versions,
                and_then=_noting(actor, detail, reason),
            )
            posted = await post(connection, held, batch, books)
            found.batch_ids.append(posted.batch_id)


def _noting(actor: str, detail: Mapping[str, Any], reason: str) -> Callable[[Connection, Posted], Awaitable[None]]:
    """Return what writes down the act in the transaction that posts."""

    async def note(connection: Connection, posted: Posted) -> None:
        await record_act(connection, actor, "events.reread", {**detail, "batch_id": posted.batch_id}, reason)

    return note


class _Row(msgspec.Struct, frozen=True):
    """A raw object, the entry that it was posted with, and the request whose best statement that is."""

    entry_id: int
    raw: Any
    parser_version: int
    event_key: str
    request_key: str
    rank: tuple[int, ...]
    first_occurred_at: int
    posting_period: date
    first_entry_id: int
    entry_count: int
    dimensions: tuple[str | None, ...]
    entry: Mapping[str, Any]


_CARRIED: Final = (
    "subject_id", "tags", "attempt", "sequence", "revision", "is_final", "reservation_open", "max_output_tokens",
    "delivered_output_tokens", "provider_calls", "latency_ms", "ttft_ms", "queue_ms", "prefill_ms", "decode_ms",
    "usage_flags",
)  # fmt: skip

_OLDER: Final = f"""
select
    r.entry_id, r.usage::text, r.parser_version, e.event_key::text, q.key::text, q.rank, q.occurred_at, q.posting_period,
    q.entry_id, q.entry_count, {", ".join(f"e.{name}" for name in (*DIMENSIONS, *_CARRIED))}
from ledger.raw_usage as r
-- A statement's first row says all; a true-up keeps its raw object beside each of its rows.
join ledger.entries as e on e.entry_id = r.entry_id and e.entry_no = 0 and e.kind <> 'evidence'
join ledger.requests as q on q.key = e.request_key and q.best_event_key = e.event_key
where
    r.flavour = %(flavour)s
    and r.parser_version < %(version)s
    and r.entry_id > %(after)s
    and (%(since)s::timestamptz is null or q.occurred_at >= %(since)s)
order by r.entry_id
limit %(limit)s
"""


async def _older_rows(connection: Connection, flavour: str, version: int, since: int | None, after: int) -> list[_Row]:
    cursor = await connection.execute(
        _OLDER,
        {
            "flavour": flavour,
            "version": version,
            "after": after,
            "since": None if since is None else from_micros(since),
            "limit": _AT_ONCE,
        },
    )
    found = []
    for row in await cursor.fetchall():
        entry_id, raw, parser_version, event_key, request_key, rank, at, period, first_id, count, *rest = row
        dimensions, carried = tuple(rest[: len(DIMENSIONS)]), rest[len(DIMENSIONS) :]
        found.append(
            _Row(
                entry_id, decode_any(raw), parser_version, event_key, request_key, tuple(rank), micros(at), period, first_id,
                count, dimensions, dict(zip(_CARRIED, carried, strict=True)),
            )
        )  # fmt: skip
    return found


async def _changes(
    connection: Connection, books: Books, rows: Sequence[_Row], found: Reread, actor: str, reason: str
) -> list[Priced]:
    """Return the statements that change, priced; note in `found` what they move."""
    stands = await _standing(connection, rows)
    statements: list[Statement] = []
    kept: list[_Row] = []
    for row in rows:
        found.read_count += 1
        statement = _statement(books, row, found)
        if isinstance(statement, Refused):
            found.refused[statement.reason] += 1
        else:
            statements.append(statement)
            kept.append(row)
    missing = Missing()
    prepared = prepare(books, statements, missing)
    if missing:
        # Rate sets never change, so that having made one for a look costs nothing later.
        await ensure_ids(connection, books, missing.rate_sets, missing.subjects)
        prepared = prepare(books, statements, Missing())
    changed = []
    for row, item in zip(kept, prepared, strict=True):
        assert isinstance(item, Priced)
        # The link to a user may have been erased since; what was posted keeps its bare id.
        subject_id = row.entry["subject_id"]
        entries = [
            replace(e, subject_id=subject_id and str(subject_id), actor=actor, reason=reason) for e in item.entries
        ]
        moves = _moves(stands[row.first_entry_id], [standing(entry) for entry in entries])
        if moves is None:
            found.unchanged_count += 1
            continue
        found.by_tenant.setdefault(entries[0].dimensions[0] or "", Moves()).add(moves)
        changed.append(Priced(item.statement, entries, [tail(entry) for entry in entries], item.fees))
    return changed


async def _standing(connection: Connection, rows: Iterable[_Row]) -> dict[int, list[Standing]]:
    wanted = [Rows(row.posting_period, row.first_entry_id, row.entry_count, row.first_occurred_at) for row in rows]
    groups: dict[int, list[Standing]] = {each.entry_id: [] for each in wanted}
    async for first_id, _, _, group in standing_rows(connection, wanted):
        groups[first_id].append(group)
    return {first_id: reported(fold(listed)) for first_id, listed in groups.items()}


def _statement(books: Books, row: _Row, found: Reread) -> Statement | Refused:
    """Return what the record makes of a raw object now, as a statement of a person's decision over the one that stands."""
    was = dict(zip(DIMENSIONS, row.dimensions, strict=True))
    source = was["source"] or ""
    record = FLAVOURS[found.flavour]
    tier = was["service_tier"]
    if "tier_assumed" in row.entry["usage_flags"] or tier in record.tier_words:
        # It came from the request, or from the object by a word that the record translates now.
        tier = None
    data = UsageData(
        tenant_id=was["sent_tenant_id"],
        request_id=was["request_id"],
        provider=was["provider"],
        model=was["reported_model"],
        requested_model=was["requested_model"],
        requested_service_tier=was["requested_service_tier"],
        service_tier=tier,
        status=was["status"],  # type: ignore[arg-type]
        stop_reason=was["stop_reason"],
        cache_result=was["cache_result"],  # type: ignore[arg-type]
        basis=was["basis"],  # type: ignore[arg-type]
        final=row.entry["is_final"],
        revision=row.entry["revision"],
        lane=was["lane"],  # type: ignore[arg-type]
        flavour=found.flavour,
    )
    if isinstance(row.raw, list):
        data.usage_frames = row.raw
    else:
        data.usage = row.raw
    event_id = f"{found.flavour}/{found.version}/{row.event_key}"
    at = from_micros(row.first_occurred_at).isoformat()
    event = UsageEvent(id=event_id, source=source, time=at, data=data)
    read = read_event(event, books.parties, row.first_occurred_at)
    if not isinstance(read, Statement):
        assert isinstance(read, Refused), "a usage event is no window"
        return read
    parts = tuple(
        # The name was resolved when it was posted; only another name is resolved anew.
        replace(part, model=was["model"]) if part.reported_model == was["reported_model"] else part
        for part in read.parts
    )
    dimensions = list(row.dimensions)
    dimensions[_PLACE["model"]], dimensions[_PLACE["reported_model"]] = parts[0].model, parts[0].reported_model
    dimensions[_PLACE["service_tier"]] = read.dimensions[_PLACE["service_tier"]]
    decision, *ranked = read.rank
    carried = {name: value for name, value in row.entry.items() if name not in {"subject_id", "usage_flags"}}
    return replace(
        read,
        event_key=key(EVENT, was["sent_tenant_id"] or "", SOURCE, event_id),
        request_key=row.request_key,
        rank=(max(decision, row.rank[0] + 1), *ranked),
        occurred_at=row.first_occurred_at,
        dimensions=tuple(dimensions),
        parts=parts,
        subject_hash=None,
        refused_if_new=None,
        **carried,
    )


def _moves(stands: Iterable[Standing], said: Iterable[Standing]) -> Moves | None:
    """Return what taking one for the other moves, or None where no count, amount, model or tier changes."""
    before, after = _by_grain(stands), _by_grain(said)
    if before == after:
        return None
    moves = Moves(request_count=1)
    for sign, groups in ((-1, before), (1, after)):
        is_unpriced = False
        for (*_, cost_currency, charge_currency), (quantities, cost, charge) in groups.items():
            for meter, count in quantities.items():
                moves.quantities[meter] += sign * count
            for sums, currency, amount in ((moves.cost, cost_currency, cost), (moves.charge, charge_currency, charge)):
                if amount is None:
                    is_unpriced = True
                else:
                    sums[currency] = EXACT.add(sums.get(currency, Decimal(0)), EXACT.multiply(amount, Decimal(sign)))
        if sign < 0:
            moves.unpriced_before = int(is_unpriced)
        else:
            moves.unpriced_after = int(is_unpriced)
    moves.quantities = Counter({meter: count for meter, count in moves.quantities.items() if count})
    return moves


_Grain = tuple[str | None, str | None, str | None, str, str]
_Sums = tuple[dict[str, int], Decimal | None, Decimal | None]


def _by_grain(groups: Iterable[Standing]) -> dict[_Grain, _Sums]:
    """Sum groups by model, tier and currencies; where an amount is missing, the sum is."""
    sums: dict[_Grain, _Sums] = {}
    for group in groups:
        dimensions, _, _, _, _, cost_currency, _, charge_currency, *_ = group.grain
        grain = (
            dimensions[_PLACE["model"]],
            dimensions[_PLACE["reported_model"]],
            dimensions[_PLACE["service_tier"]],
            cost_currency or "",
            charge_currency or "",
        )
        quantities, cost, charge = sums.get(grain, ({}, Decimal(0), Decimal(0)))
        for meter, count in (group.quantities or {}).items():
            quantities[meter] = quantities.get(meter, 0) + count
        sums[grain] = (
            {meter: count for meter, count in quantities.items() if count},
            None if cost is None or group.cost_amount is None else EXACT.add(cost, group.cost_amount),
            None if charge is None or group.charge_amount is None else EXACT.add(charge, group.charge_amount),
        )
    return sums


def lines_of(found: Reread) -> Iterator[tuple[str, str, str, str]]:
    """Yield (tenant, what, currency or unit, difference) of everything that moves, tenants in order and the sum last."""
    for tenant_id, moves in (*sorted(found.by_tenant.items()), ("in sum", found.total)):
        yield tenant_id, "requests", "", str(moves.request_count)
        for meter in (*COLUMN_METERS, *sorted(moves.quantities.keys() - set(COLUMN_METERS))):
            if moves.quantities.get(meter):
                yield tenant_id, meter, "", f"{moves.quantities[meter]:+d}"
        for book, sums in (("cost", moves.cost), ("charge", moves.charge)):
            for currency, amount in sorted(sums.items()):
                if amount:
                    yield tenant_id, book, currency, f"{amount.normalize(EXACT):+f}"
        if moves.unpriced_before != moves.unpriced_after:
            yield tenant_id, "unpriced requests", "", f"{moves.unpriced_after - moves.unpriced_before:+d}"
