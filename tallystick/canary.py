"""The canary: one synthetic event over the real path, and how long it takes to be an entry and to move a budget."""

import asyncio
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

from psycopg.rows import class_row

from ledger.database import Connection
from ledger.errors import AlreadyThere
from ledger.keys import event_key
from ledger.price_book import Body, Book, Card
from ledger.price_store import save_cards
from ledger.registry import add_entity, add_source, add_tenant, set_model
from quotas.budgets import set_budget
from quotas.terms import Terms

TENANT: Final = "tallystick-canary"
ENTITY: Final = "tallystick"
SOURCE: Final = "canary://tallystick"
PROVIDER: Final = "tallystick"
MODEL: Final = "canary"
BUDGET: Final = "tallystick-canary"
WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_KEPT_DAYS: Final = 30
_CHECKED_ON: Final = date(2026, 11, 30)

Road = Literal["http", "kafka"]


class CanaryError(Exception):
    """The canary cannot be sent; the message is one line."""


@dataclass(frozen=True, slots=True)
class Http:
    """The API that an event is sent to, and the key of the canary's source."""

    address: str
    token: str


@dataclass(frozen=True, slots=True)
class Kafka:
    """The topic that an event is sent to."""

    bootstrap: str
    topic: str


@dataclass(frozen=True, slots=True)
class Beat:
    """One synthetic event and what became of it."""

    sent_at: datetime
    road: Road
    every_seconds: Decimal
    event_id: str
    entry_seconds: Decimal | None
    budget_seconds: Decimal | None
    failure: str | None


# --- Its parties ------------------------------------------------------------------------------------------------------


async def set_up(connection: Connection, actor: str, *, now: int, months_ahead: int, grace_days: int) -> bool:
    """Make whatever the canary lacks: entity, tenant, source, model, free card, budget. Return whether anything was. As the operator."""
    cursor = await connection.execute("select exists (select from quotas.budgets where budget_id = %s)", [BUDGET])
    row = await cursor.fetchone()
    if row is not None and row[0]:
        # The budget is made last, so all of it is there.
        return False
    for made in (
        add_entity(connection, actor, ENTITY, "Tallystick's own"),
        add_tenant(
            connection, actor, TENANT, entity_id=ENTITY, time_zone="UTC", charge_currency="USD", now=now, name="Canary",
            months_ahead=months_ahead, grace_days=grace_days,
        ),
        add_source(connection, actor, SOURCE, kind="gateway", rank=20, tenant_ids=[TENANT]),
    ):  # fmt: skip
        try:
            await made
        except AlreadyThere:
            continue
    await set_model(connection, actor, PROVIDER, MODEL)
    books: tuple[Book, ...] = ("cost", "charge")
    cards = [
        Card(
            book=book,
            provider=PROVIDER,
            model=MODEL,
            currency="USD",
            effective_at=0,
            source_address="tallystick/canary.py",
            checked_on=_CHECKED_ON,
            body=Body(is_free=True),
        )
        for book in books
    ]
    await save_cards(connection, cards, actor=actor, reason="the canary's model is free")
    await set_budget(
        connection,
        actor,
        Terms(tenant_id=TENANT, unit="requests", window="lifetime"),
        now=now,
        budget_id=BUDGET,
        reason="moved by each beat of the canary",
    )
    return True


# --- A beat -----------------------------------------------------------------------------------------------------------


async def beat(connection: Connection, road: Http | Kafka, *, every_seconds: float, wait: float = WAIT_SECONDS) -> Beat:
    """Send an event, wait until its entry is visible and its budget has moved, and write down how long both took.

    Errors: none that concern the path, which are the beat's `failure`; those of the database as they come.
    """
    event_id = f"beat-{time.time_ns()}-{secrets.token_hex(4)}"
    before = await _posted(connection)
    sent_at = datetime.now(UTC)
    started = time.monotonic()
    entry: Decimal | None = None
    budget: Decimal | None = None
    failure: str | None = None
    try:
        await asyncio.to_thread(_send, road, _event(event_id, sent_at))
        while entry is None or budget is None:
            seconds = _seconds(started)
            if entry is None and (amount := await _amount(connection, event_id)) is not None:
                entry = seconds
                if amount != (0, 0):
                    raise CanaryError("its entry has an amount, or none that is known: its model should be free")
            if budget is None and await _posted(connection) > before:
                budget = _seconds(started)
            if entry is not None and budget is not None:
                break
            if time.monotonic() - started > wait:
                missing = "its entry is not visible" if entry is None else "its budget has not moved"
                raise CanaryError(f"{missing} after {wait:g} seconds")
            await asyncio.sleep(_POLL_SECONDS)
    except CanaryError as error:
        failure = str(error)
    done = Beat(
        sent_at,
        "http" if isinstance(road, Http) else "kafka",
        Decimal(str(every_seconds)),
        event_id,
        entry,
        budget,
        failure,
    )
    await _keep(connection, done)
    return done


def _seconds(started: float) -> Decimal:
    return Decimal(f"{time.monotonic() - started:.3f}")


def _event(event_id: str, at: datetime) -> bytes:
    event = {
        "specversion": "1.0",
        "type": "llm.usage.v1",
        "source": SOURCE,
        "id": event_id,
        "time": at.isoformat(),
        "data": {
            "tenant_id": TENANT,
            "request_id": event_id,
            "feature": "canary",
            "language": "und",
            "provider": PROVIDER,
            "model": MODEL,
            "status": "ok",
            "quantities": {"uncached_input_tokens": 1, "visible_output_tokens": 1},
        },
    }
    return json.dumps(event).encode()


def _send(road: Http | Kafka, body: bytes) -> None:
    """Send one event and wait for the acknowledgement. Blocking. Errors: `CanaryError`."""
    if isinstance(road, Kafka):
        from ingest.replay import ReplayError, send

        try:
            send(road.bootstrap, road.topic, [(body, 1)])
        except ReplayError as error:
            raise CanaryError(str(error)) from None
        return
    request = urllib.request.Request(
        f"{road.address.rstrip('/')}/v1/events",
        data=body,
        headers={"authorization": f"Bearer {road.token}", "content-type": "application/cloudevents+json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            (result,) = json.loads(answer.read())["results"]
    except urllib.error.HTTPError as error:
        raise CanaryError(f"the API answers {error.code}") from None
    except (OSError, ValueError, KeyError) as error:
        raise CanaryError(f"the API does not answer: {type(error).__name__}") from None
    if result["outcome"] != "created":
        raise CanaryError(f"the API answers {result['outcome']}: {result.get('reason')}")


async def _posted(connection: Connection) -> Decimal:
    cursor = await connection.execute(
        "select coalesce(sum(posted), 0) from quotas.windows where budget_id = %s", [BUDGET]
    )
    row = await cursor.fetchone()
    assert row is not None
    return Decimal(row[0])


async def _amount(connection: Connection, event_id: str) -> tuple[Any, Any] | None:
    """Return the amounts of the event's entry; None while it is not there."""
    cursor = await connection.execute(
        "select e.cost_amount, e.charge_amount from ledger.event_keys as k"
        " join ledger.batch_digests as d on d.batch_id = k.batch_id"
        " join ledger.entries as e on e.posting_period = d.posting_period"
        " and e.entry_id >= k.batch_id * 65536 and e.entry_id < (k.batch_id + 1) * 65536 and e.event_key = k.key"
        " where k.key = %s",
        [event_key(TENANT, SOURCE, event_id)],
    )
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1])


async def _keep(connection: Connection, done: Beat) -> None:
    await connection.execute(
        "insert into ledger.canary_beats (sent_at, road, every_seconds, event_id, entry_seconds, budget_seconds, failure)"
        " values (%s, %s, %s, %s, %s, %s, %s)",
        [
            done.sent_at, done.road, done.every_seconds, done.event_id, done.entry_seconds, done.budget_seconds,
            done.failure,
        ],
    )  # fmt: skip
    await connection.execute(
        "delete from ledger.canary_beats where sent_at < clock_timestamp() - make_interval(days => %s)", [_KEPT_DAYS]
    )


async def list_beats(connection: Connection, *, limit: int = 20) -> Sequence[Beat]:
    """List beats, the newest first."""
    async with connection.cursor(row_factory=class_row(Beat)) as cursor:
        await cursor.execute(
            "select sent_at, road, every_seconds, event_id, entry_seconds, budget_seconds, failure"
            " from ledger.canary_beats order by beat_id desc limit %s",
            [limit],
        )
        return await cursor.fetchall()
