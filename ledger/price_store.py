"""Cards, rate sets and models in Postgres: loading the book, adding to it, and giving rate sets their ids."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final

from psycopg import sql

from ledger.database import Connection, change, record_act
from ledger.errors import CardRefused
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.parties import Model
from ledger.price_book import (
    Book,
    Card,
    PriceBook,
    Rate,
    RateSet,
    body_from_row,
    body_to_row,
    make_rate_set,
)
from ledger.times import from_micros

_CARD_COLUMNS: Final = """
    book, provider, provider_account, deployment, model, tenant_id, currency,
    (extract(epoch from effective_at) * 1000000)::bigint,
    (extract(epoch from recorded_at) * 1000000)::bigint,
    is_withdrawal, body, source_address, checked_on, content_hash::text
"""


async def load_price_book(connection: Connection, known_at: int | None = None) -> PriceBook:
    """Load all cards and exchange rates as a price book; `known_at` leaves out what was recorded after that instant.

    The version is read before the cards: if a card is added in between, the version that we hold is the older one, and
    `post` has the batch made again rather than trusting a book that lacks the card.
    """
    cursor = await connection.execute("select prices from ledger.versions")
    row = await cursor.fetchone()
    version = int(row[0]) if row else 0
    return PriceBook(version, await read_cards(connection), known_at, await read_exchange_rates(connection))


async def read_cards(
    connection: Connection,
    *,
    book: Book | None = None,
    provider: str | None = None,
    model: str | None = None,
    tenant_id: str | None = None,
) -> list[Card]:
    """Return the cards that fit all that is given, in the order in which they replace each other."""
    given = {"book": book, "provider": provider, "model": model, "tenant_id": tenant_id}
    asked = {column: value for column, value in given.items() if value is not None}
    conditions = [sql.SQL("{} = {}").format(sql.Identifier(column), sql.Placeholder(column)) for column in asked]
    statement = sql.SQL(
        "select {columns} from ledger.cards where {conditions} "
        "order by book, provider, model, tenant_id, effective_at, recorded_at, card_id"
    ).format(
        columns=sql.SQL(_CARD_COLUMNS),
        conditions=sql.SQL(" and ").join(conditions) if conditions else sql.SQL("true"),
    )
    cursor = await connection.execute(statement, asked)
    return [_card_from_row(row) async for row in cursor]


def _card_from_row(row: Sequence[Any]) -> Card:
    card = Card(
        book=row[0],
        provider=row[1],
        provider_account=row[2],
        deployment=row[3],
        model=row[4],
        tenant_id=row[5],
        currency=row[6],
        effective_at=row[7],
        recorded_at=row[8],
        is_withdrawal=row[9],
        body=body_from_row(row[10]),
        source_address=row[11],
        checked_on=row[12],
    )
    if card.content_hash != row[13]:
        raise CardRefused(str(card), "content_hash", f"is {row[13]}, but its content gives {card.content_hash}")
    return card


# --- Adding ----------------------------------------------------------------------------------------------------------


async def save_cards(connection: Connection, cards: Iterable[Card], actor: str, reason: str | None = None) -> int:
    """Add cards that are not in the book yet and return how many; nothing is kept if one of them is refused.

    Takes the calendar lock alone, so that no batch is posted between two prices.
    """
    wanted = list(cards)
    if not await _unknown(connection, wanted):
        return 0
    async with change(connection, "prices"):
        added = await insert_cards(connection, wanted)
        await record_act(connection, actor, "prices.save_cards", {"cards": [c.content_hash for c in added]}, reason)
    return len(added)


async def _unknown(connection: Connection, cards: Sequence[Card]) -> list[Card]:
    cursor = await connection.execute(
        "select content_hash::text from ledger.cards where content_hash = any(%s::uuid[])",
        [[card.content_hash for card in cards]],
    )
    known = {row[0] async for row in cursor}
    return list({card.content_hash: card for card in cards if card.content_hash not in known}.values())


async def insert_cards(connection: Connection, cards: Sequence[Card]) -> list[Card]:
    """Add cards inside the caller's `change`, after holding them together with the whole book against its rules."""
    added = await _unknown(connection, cards)
    PriceBook(0, [*await read_cards(connection), *added])
    tenants = {card.tenant_id for card in added if card.tenant_id is not None}
    cursor = await connection.execute(
        "select tenant_id from ledger.tenants where tenant_id = any(%s)", [sorted(tenants)]
    )
    missing = tenants - {row[0] async for row in cursor}
    for card in added:
        if card.tenant_id in missing:
            raise CardRefused(str(card), "tenant_id", f"is {card.tenant_id!r}, which is no tenant")
    async with connection.cursor() as writer:
        await writer.executemany(
            """
            insert into ledger.cards (
                book, content_hash, provider, provider_account, deployment, model, tenant_id, currency,
                effective_at, is_withdrawal, body, source_address, checked_on, recorded_at
            )
            values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, now())
            """,
            [
                (
                    card.book,
                    card.content_hash,
                    card.provider,
                    card.provider_account,
                    card.deployment,
                    card.model,
                    card.tenant_id,
                    card.currency,
                    from_micros(card.effective_at),
                    card.is_withdrawal,
                    json.dumps(body_to_row(card.body)),
                    card.source_address,
                    card.checked_on,
                )
                for card in added
            ],
        )
    return added


async def insert_models(
    connection: Connection, models: Iterable[Model], aliases: Mapping[tuple[str, str], str], source: str
) -> None:
    """Add models and exact aliases inside the caller's `change`; what is there stays as it is.

    Shape: aliases map (provider, alias) to the canonical id.
    """
    async with connection.cursor() as writer:
        await writer.executemany(
            """
            insert into ledger.models (provider, model, input_tokens_max, output_tokens_max)
            values (%s, %s, %s, %s)
            on conflict do nothing
            """,
            [(model.provider, model.model, model.input_tokens_max, model.output_tokens_max) for model in models],
        )
        await writer.executemany(
            """
            insert into ledger.model_aliases (provider, alias, model, source)
            values (%s, %s, %s, %s)
            on conflict do nothing
            """,
            [(provider, alias, model, source) for (provider, alias), model in aliases.items()],
        )


async def read_model_names(connection: Connection) -> dict[tuple[str, str], str]:
    """Return every known name: (provider, canonical id or alias) to canonical id."""
    cursor = await connection.execute(
        """
        select provider, alias, model from ledger.model_aliases
        union all
        select provider, model, model from ledger.models
        """
    )
    return {(row[0], row[1]): row[2] async for row in cursor}


def withdrawal_of(card: Card, effective_at: int, source_address: str, checked_on: date) -> Card:
    """Return the card that ends another one from an instant on."""
    return Card(
        book=card.book,
        provider=card.provider,
        provider_account=card.provider_account,
        deployment=card.deployment,
        model=card.model,
        tenant_id=card.tenant_id,
        currency=card.currency,
        effective_at=effective_at,
        is_withdrawal=True,
        source_address=source_address,
        checked_on=checked_on,
    )


# --- Exchange rates --------------------------------------------------------------------------------------------------


async def read_exchange_rates(connection: Connection) -> list[ExchangeRate]:
    """Return all exchange rates, by pair and in order of time."""
    cursor = await connection.execute(
        """
        select
            from_currency, to_currency, rate,
            (extract(epoch from effective_at) * 1000000)::bigint,
            source_address, checked_on, replaces::text,
            (extract(epoch from recorded_at) * 1000000)::bigint
        from ledger.exchange_rates
        order by from_currency, to_currency, effective_at, exchange_rate_id
        """
    )
    return [
        ExchangeRate(
            from_currency=row[0],
            to_currency=row[1],
            rate=row[2],
            effective_at=row[3],
            source_address=row[4],
            checked_on=row[5],
            replaces=row[6],
            recorded_at=row[7],
        )
        async for row in cursor
    ]


async def save_exchange_rates(
    connection: Connection, rates: Iterable[ExchangeRate], actor: str, reason: str | None = None
) -> int:
    """Add rates that are not there yet and return how many; nothing is kept if one of them is refused.

    Takes the calendar lock alone, so that no batch is posted between two rates.
    """
    async with change(connection, "prices"):
        known = await read_exchange_rates(connection)
        hashes = {rate.content_hash for rate in known}
        added = list({rate.content_hash: rate for rate in rates if rate.content_hash not in hashes}.values())
        ExchangeRates([*known, *added])
        async with connection.cursor() as writer:
            await writer.executemany(
                """
                insert into ledger.exchange_rates (
                    content_hash, from_currency, to_currency, rate, effective_at, source_address, checked_on, replaces
                )
                values (%s, %s, %s, %s, %s, %s, %s, %s)
                """,
                [
                    (
                        rate.content_hash,
                        rate.from_currency,
                        rate.to_currency,
                        rate.rate,
                        from_micros(rate.effective_at),
                        rate.source_address,
                        rate.checked_on,
                        rate.replaces,
                    )
                    for rate in added
                ],
            )
        await record_act(
            connection, actor, "exchange_rates.add", {"rates": [rate.content_hash for rate in added]}, reason
        )
    return len(added)


# --- Rate sets -------------------------------------------------------------------------------------------------------


async def ensure_rate_sets(connection: Connection, rate_sets: Iterable[RateSet]) -> dict[str, int]:
    """Return the id of each rate set by its content hash, adding those that nobody has used yet.

    A transaction of its own, before the batch that names the ids: `post` then locks nothing here. Ids never change, so
    callers may keep them for as long as they run.
    """
    wanted = {rate_set.content_hash: rate_set for rate_set in rate_sets}
    if not wanted:
        return {}
    async with connection.transaction():
        ids = await _rate_set_ids(connection, list(wanted))
        # In one order everywhere, so that two writers who add the same sets wait for each other and never in a ring.
        missing = [wanted[content_hash] for content_hash in sorted(wanted.keys() - ids.keys())]
        if missing:
            await _insert_rate_sets(connection, missing)
            # A set that another writer committed meanwhile is not returned by the insert: it is read here.
            ids = await _rate_set_ids(connection, list(wanted))
    return ids


async def _rate_set_ids(connection: Connection, hashes: Sequence[str]) -> dict[str, int]:
    cursor = await connection.execute(
        "select content_hash::text, rate_set_id from ledger.rate_sets where content_hash = any(%s::uuid[])", [hashes]
    )
    return {row[0]: row[1] async for row in cursor}


async def _insert_rate_sets(connection: Connection, rate_sets: Sequence[RateSet]) -> None:
    cursor = await connection.execute(
        """
        insert into ledger.rate_sets (content_hash, book, currency, card_hash, selectors, is_free)
        select *
        from unnest(%s::uuid[], %s::text[], %s::text[], %s::uuid[], %s::jsonb[], %s::boolean[])
        on conflict (content_hash) do nothing
        returning content_hash::text, rate_set_id
        """,
        [
            [each.content_hash for each in rate_sets],
            [each.book for each in rate_sets],
            [each.currency for each in rate_sets],
            [each.card_hash for each in rate_sets],
            [json.dumps(each.selectors, sort_keys=True) for each in rate_sets],
            [each.is_free for each in rate_sets],
        ],
    )
    made = {row[0]: row[1] async for row in cursor}
    rows = [
        (made[each.content_hash], rate)
        for each in rate_sets
        if each.content_hash in made
        for rate in each.rates.values()
    ]
    await connection.execute(
        """
        insert into ledger.rates (rate_set_id, meter, price, per, priced_as)
        select * from unnest(%s::bigint[], %s::text[], %s::numeric[], %s::bigint[], %s::text[])
        """,
        [
            [rate_set_id for rate_set_id, _ in rows],
            [rate.meter for _, rate in rows],
            [rate.price for _, rate in rows],
            [rate.per for _, rate in rows],
            [rate.priced_as for _, rate in rows],
        ],
    )


async def load_rate_sets(connection: Connection, rate_set_ids: Iterable[int]) -> dict[int, RateSet]:
    """Return rate sets by id as they were written, so that amounts can be computed again from their entries.

    Raises ValueError for a set whose rows no longer give its content hash.
    """
    wanted = sorted(set(rate_set_ids))
    cursor = await connection.execute(
        "select rate_set_id, meter, price, per, priced_as from ledger.rates where rate_set_id = any(%s)", [wanted]
    )
    rates: dict[int, dict[str, Rate]] = {}
    async for row in cursor:
        rates.setdefault(row[0], {})[row[1]] = Rate(row[1], row[2], row[3], row[4])
    cursor = await connection.execute(
        """
        select rate_set_id, content_hash::text, book, currency, card_hash::text, selectors
        from ledger.rate_sets
        where rate_set_id = any(%s)
        """,
        [wanted],
    )
    found = {}
    async for row in cursor:
        made = make_rate_set(row[2], row[3], row[4], row[5], rates.get(row[0], {}))
        if made.content_hash != row[1]:
            raise ValueError(f"rate set {row[0]} is named {row[1]}, but its rates give {made.content_hash}")
        found[row[0]] = made
    return found
