"""`tallystick generate`: fills a ledger with synthetic usage over the road of every event, fast and to be gone on with.

GenerateError
└── what was asked for cannot be made; the message says which option and why
"""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ingest.intake import Intake, Message, ease_collection
from ingest.servegen import read_clients
from ingest.synthetic import SOURCE, Plan, party_of, providers_and_models
from ingest.usage_events import EARLIEST_AT
from ledger import feeds
from ledger.books import load_tenants
from ledger.contracts import load_contracts
from ledger.database import Connection, connect
from ledger.errors import AlreadyThere
from ledger.periods import month_after, month_of
from ledger.price_store import save_cards
from ledger.registry import add_entity, add_source, add_tenant, allow_tenants, set_model
from ledger.times import from_micros, local_midnight
from tallystick.settings import CHECKOUT

DATA: Final = CHECKOUT / "data" / "servegen"
ENTITY: Final = "synthetic"
FEEDS_MAX: Final = 8
_PACK_EVENTS: Final = 100
_LOOK_SECONDS: Final = 0.5
_DAY: Final = 86_400_000_000


class GenerateError(Exception):
    """What was asked for cannot be made."""


@dataclass(slots=True)
class Generated:
    """What a run posted; all of it is synthetic."""

    feed: str
    events: int
    """Of the whole plan."""
    resumed_at: int
    """How many of them earlier runs had posted."""
    seconds: float
    outcomes: dict[str, int] = field(default_factory=dict)


def plan_of(*, seed: str, entries: int, since: int, until: int, tenants: int | None = None, now: int) -> Plan:
    """Return the plan for so many entries between two instants, in UTC microseconds.

    `tenants`: how many of the 76, spread over all volumes, the heaviest among them. Errors: GenerateError.
    """
    if until > now:
        raise GenerateError("--until must not be in the future: a gateway reports calls that have ended")
    if since < EARLIEST_AT:
        raise GenerateError("they must not begin before 2020-01-01: no earlier call is accepted")
    if since >= until:
        raise GenerateError("--until must be after the beginning")
    if not seed.strip():
        raise GenerateError("--seed must not be empty")
    clients = read_clients(DATA)
    if tenants is not None:
        if not 1 <= tenants <= len(clients):
            raise GenerateError(f"--tenants must be from 1 to {len(clients)}")
        clients = [clients[place * len(clients) // tenants] for place in range(tenants)]
    return Plan(seed=seed, events=entries, since=since, until=until, clients=clients)


async def set_up(connection: Connection, plan: Plan, actor: str, *, now: int) -> None:
    """Register what the plan's events name: entity, tenants with their months, source, models, prices. Again changes nothing.

    Errors: GenerateError where a tenant is there already and begins after the plan does.
    """
    with suppress(AlreadyThere):
        await add_entity(connection, actor, ENTITY, "Synthetic")
    parties = [party_of(client) for client in plan.clients]
    there = await load_tenants(connection)
    for party in parties:
        if party.tenant_id in there:
            tenant = there[party.tenant_id]
            if tenant.starts_at > plan.since:
                raise GenerateError(
                    f"tenant {party.tenant_id} begins at {from_micros(tenant.starts_at):%Y-%m-%d %H:%M}Z, after what"
                    " is asked for: a database keeps the beginning that its first run gave it"
                )
            continue
        # A day more, for zones that are ahead; months stay open as long as usage of this age may be posted to them.
        first = month_of(from_micros(plan.since - _DAY).date())
        await add_tenant(
            connection,
            actor,
            party.tenant_id,
            entity_id=ENTITY,
            time_zone=party.time_zone,
            charge_currency=party.charge_currency,
            now=now,
            starts_at=local_midnight(party.time_zone, first),
            name=f"Synthetic ({party.tenant_id.removeprefix('synthetic-')} of ServeGen)",
            grace_days=(from_micros(now).date() - month_after(first)).days + 40,
        )
    names = [party.tenant_id for party in parties]
    try:
        await add_source(connection, actor, SOURCE, kind="gateway", rank=20, tenant_ids=names)
    except AlreadyThere:
        await allow_tenants(connection, actor, SOURCE, names)
    for provider, model in providers_and_models():
        await set_model(connection, actor, provider, model)
    await save_cards(connection, load_contracts(DATA / "prices.yaml"), actor, "prices of synthetic models")


def fill(
    url: str, plan: Plan, *, beside: int = 1, on_start: Callable[[int, int], None], on_events: Callable[[int], None]
) -> Generated:
    """Post the plan's events that are not posted yet, `beside` feeds beside each other, a process each.

    `url` logs in as the writer. A run that was interrupted is gone on with by the same call: a feed's position moves in the
    transaction that posts. Errors: those of `Intake.post`; what was committed stays.
    """
    parts = plan.split(beside)
    started = time.monotonic()
    names = [_feed_of(plan, number, len(parts)) for number in range(len(parts))]
    before = asyncio.run(_positions(url, names, parts))
    on_start(sum(before), plan.events)
    if len(parts) == 1:
        outcomes = asyncio.run(_fill_feed(url, plan, names[0], parts[0], on_events))
        return Generated(plan.name, plan.events, before[0], time.monotonic() - started, outcomes)
    done = Generated(plan.name, plan.events, sum(before), 0.0)
    with ProcessPoolExecutor(len(parts), mp_context=multiprocessing.get_context("spawn")) as pool:
        work = [pool.submit(_child, url, plan, name, part) for name, part in zip(names, parts, strict=True)]
        seen = sum(before)
        while not all(each.done() for each in work) and not any(_failed(each) for each in work):
            time.sleep(_LOOK_SECONDS)
            reached = sum(asyncio.run(_positions(url, names, parts)))
            on_events(reached - seen)
            seen = reached
        for each in work:
            for outcome, count in each.result().items():
                done.outcomes[outcome] = done.outcomes.get(outcome, 0) + count
    on_events(plan.events - seen)
    done.seconds = time.monotonic() - started
    return done


def _failed(work: "Future[Any]") -> bool:
    return work.done() and work.exception() is not None


def _feed_of(plan: Plan, number: int, count: int) -> str:
    return plan.name if count == 1 else f"{plan.name} part={number + 1}/{count}"


def _child(url: str, plan: Plan, name: str, part: tuple[int, int]) -> dict[str, int]:
    # Ctrl-C reaches all of them: each ends after what it has committed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return asyncio.run(_fill_feed(url, plan, name, part, lambda count: None))


async def _positions(url: str, names: Sequence[str], parts: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many events of each part are posted. A feed's position counts from the beginning of its part."""
    async with await connect(url) as connection:
        cursor = await connection.execute(
            "select name, next_position from ledger.feeds where name = any(%s)", [list(names)]
        )
        found: dict[str, int] = dict(await cursor.fetchall())
    return [found.get(name, 0) for name in names]


async def _fill_feed(
    url: str, plan: Plan, name: str, part: tuple[int, int], on_events: Callable[[int], None]
) -> dict[str, int]:
    low, high = part
    async with await connect(url) as connection:
        held = await feeds.claim(connection, "file", name)
    ease_collection()
    intake = await Intake.open(url, held, patience=60)
    outcomes: dict[str, int] = {}
    posting: asyncio.Task[Any] | None = None

    async def settle() -> None:
        nonlocal posting
        if posting is None:
            return
        posted, posting = await posting, None
        for result in posted.results:
            outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
        on_events(len(posted.results))

    try:
        for first, events in plan.batches(low + held.next_position, high):
            received_at = time.time_ns() // 1000
            position = first - low
            messages = [
                Message(
                    ("[" + ",".join(events[at : at + _PACK_EVENTS]) + "]").encode(), received_at, SOURCE, position + at
                )
                for at in range(0, len(events), _PACK_EVENTS)
            ]
            reading = await intake.read(messages, position, position + len(events))
            # One commit overlaps the making and the reading of the next batch.
            await settle()
            posting = asyncio.create_task(intake.post(reading))
            await asyncio.sleep(0)
        await settle()
    finally:
        if posting is not None:
            await asyncio.wait([posting])
        await intake.close()
    return outcomes


__all__ = ["DATA", "FEEDS_MAX", "GenerateError", "Generated", "fill", "plan_of", "set_up"]
