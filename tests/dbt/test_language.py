"""Languages: what a request and a conversation come to, against English, and beside what tokenizers are known to do."""

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

from tallystick.refold import refold
from tests.conftest import CHECKOUT
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import set_up, usage
from tests.factories import NODE, make_event

MARTS = ("+path:models/marts/language",)
SESSIONS = CHECKOUT / "data" / "ragpulse" / "sessions.csv"


def sessions() -> list[dict[str, str]]:
    with Path(SESSIONS).open(newline="") as file:
        return list(csv.DictReader(file))


async def test_a_conversation_of_several_languages_is_one_conversation(marts: Marts) -> None:
    """German 1.00 and 2.00, English 4.00, one request that nobody says the language of at 8.00: one German conversation of
    15.00, in rows of 3.00, 4.00 and 8.00; and a request of no conversation at 16.00."""
    await set_up(marts)
    said = (("de", 1), ("de", 2), ("en", 4), (..., 8))
    await marts.post(
        *(
            make_event(f"c-{millions}", conversation_id="c", language=language, usage=usage(millions * 1_000_000))
            for language, millions in said
        ),
        make_event("alone", language="en", usage=usage(16_000_000)),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(
        "select conversation_id, language, charge_amount from marts.fct_conversation_cost order by 1, 2"
    ) == [("", "en", 16), ("c", "de", 3), ("c", "en", 4), ("c", "und", 8)]
    assert marts.ledger.rows(
        "select conversation_id, language, language_count, request_count, und_request_count from marts.dim_conversations"
    ) == [("c", "de", 2, 4, 1)]
    assert marts.ledger.rows(
        "select language, request_count, charge_per_request, conversation_count, several_languages_count,"
        " charge_per_conversation, tokens_per_conversation, und_share from marts.fct_language_cost_monthly order by 1"
    ) == [
        ("de", 2, Decimal("1.5"), 1, 1, 15, 15_000_000, Decimal("0.2")),
        ("en", 2, 10, 0, 0, None, None, Decimal("0.2")),
        ("und", 1, 8, 0, 0, None, None, Decimal("0.2")),
    ]


async def test_a_conversation_lies_in_one_month_with_all_it_came_to(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(
        make_event("a", conversation_id="c", time="2026-01-31T23:59:59Z", usage=usage(1_000_000)),
        make_event("b", conversation_id="c", time="2026-02-01T00:00:00Z", usage=usage(2_000_000)),
    )
    marts.roll_up(*MARTS)
    assert marts.ledger.rows(
        "select local_month::text, charge_amount, conversation_count, conversation_charge_amount"
        " from marts.fct_language_cost_monthly order by 1"
    ) == [("2026-01-01", 1, 1, 3), ("2026-02-01", 2, 0, 0)]


async def test_a_conversation_is_counted_once_on_its_first_day_whenever_its_parts_come(marts: Marts) -> None:
    """A German call on the 15th; then, late, two English ones of the 14th, whose parts were rolled up alone: an English
    conversation of the 14th with all three. One of them was German, as its final report says: a German one of that day."""
    both = ("fct_conversation_cost", "fct_conversations_daily")
    await set_up(marts)

    async def post(event_id: str, language: str, day: int, millions: int, **more: Any) -> None:
        said = {"language": language, "time": f"2026-01-{day}T12:00:00Z", "conversation_id": "c"}
        await marts.post(make_event(event_id, **{"usage": usage(millions * 1_000_000), **said, **more}))

    def counted() -> list[tuple[Any, ...]]:
        return marts.ledger.rows(
            "select to_char(first_date, 'DD'), language, conversation_count, charge_conversation_count, several_languages_count,"
            " request_count, charge_amount from marts.fct_conversations_daily where conversation_count <> 0"
        )

    await post("a", "de", 15, 1)
    marts.roll_up(*both)
    assert counted() == [("15", "de", 1, 1, 0, 1, 1)]
    await post("b", "en", 14, 2)
    marts.roll_up(both[0])
    assert counted() == [("15", "de", 1, 1, 0, 1, 1)]
    await post("d", "en", 14, 4, request_id="r-d", final=False)
    marts.roll_up(*both)
    assert counted() == [("14", "en", 1, 1, 1, 3, 7)]
    await post("e", "de", 14, 1, request_id="r-d")
    marts.roll_up(*both, tests=True)
    assert counted() == [("14", "de", 1, 1, 1, 3, 4)]


async def test_a_feed_that_only_another_run_knows_is_counted_once(marts: Marts) -> None:
    """A German call by one feed; then two English ones by a new feed, which the other run has added to the parts and this run,
    which began before, has not among its batches, and two more German ones."""
    mart = "fct_conversations_daily"
    await set_up(marts)
    await marts.post(make_event("a", language="de", conversation_id="c"))
    marts.roll_up(*MARTS)
    late = (make_event(f"b-{number}", language="en", conversation_id="c") for number in range(2))
    await marts.ledger.post(*late, received_at="2026-12-31T00:00:00Z", feed="file:late")
    await marts.post(*(make_event(f"d-{number}", language="de", conversation_id="c") for number in range(2)))
    marts.roll_up("fct_conversation_cost")
    marts.ledger.superuser.execute(
        "create function marts.forget() returns trigger language plpgsql as $$ begin"
        " if new.feed_id = (select feed_id from ledger.feeds where name = 'file:late') then return null; end if;"
        " return new; end $$"
    )
    marts.ledger.superuser.execute(
        "create trigger forget before insert on marts.run_batches for each row execute function marts.forget()"
    )
    marts.roll_up(mart)
    marts.ledger.superuser.execute("drop trigger forget on marts.run_batches")
    marts.roll_up(mart)
    assert marts.ledger.rows(
        "select language, conversation_count, several_languages_count, request_count from marts.fct_conversations_daily"
        " where conversation_count <> 0"
    ) == [("de", 1, 1, 5)]
    assert refold(marts.url, marts.home, marts=(mart,)).differences == []


async def test_a_better_report_brings_the_language_along(marts: Marts) -> None:
    """The node knows neither language nor conversation; then the gateway reports."""
    await set_up(marts)
    await marts.post(make_event("n", source=NODE, request_id="r", language=..., usage=usage(90), final=False))
    marts.roll_up(*MARTS)
    await marts.post(make_event("g", request_id="r", language="th", conversation_id="c", usage=usage(100)))
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(
        "select conversation_id, language, request_count, input_tokens from marts.fct_conversation_cost"
        " where request_count <> 0"
    ) == [("c", "th", 1, 100)]
    assert marts.ledger.rows("select conversation_id, language from marts.dim_conversations") == [("c", "th")]
    assert marts.ledger.value("select max(und_share) from marts.fct_language_cost_monthly") == 0


async def test_an_average_leaves_out_what_has_no_price(marts: Marts) -> None:
    """2.00 over the one request that has a price, not 1.00 over two; a conversation that lacks a price has no average."""
    await set_up(marts)
    await marts.post(
        make_event("a", conversation_id="c", usage=usage(2_000_000)),
        make_event("b", conversation_id="c", model="m-unknown", requested_model="m-unknown", usage=usage(2_000_000)),
        make_event("s", usage=...),
    )
    marts.roll_up(*MARTS)
    assert marts.ledger.rows(
        "select model, cost_currency, request_count, cost_unpriced_count, cost_per_request, usage_missing_count,"
        " tokens_per_request, conversation_count, charge_per_conversation from marts.fct_language_cost_monthly order by 1, 2"
    ) == [
        ("", "", 1, 1, None, 0, Decimal(2_000_000), 0, None),
        ("m-sub", "", 1, 1, None, 1, None, 1, None),
        ("m-sub", "USD", 1, 0, 2, 0, Decimal(2_000_000), 1, None),
    ]


async def test_real_sessions_are_conversations_whatever_languages_they_mix(marts: Marts) -> None:
    """400 requests in 227 sessions (RAGPulse; the languages are ours, by turns): tokens and amounts are those of the trace."""
    await set_up(marts)
    rows = sessions()
    languages = ("zh-Hans", "en", "zh-Hans", "und")
    await marts.post(
        *(
            make_event(
                f"ev-{place}", conversation_id=row["session_id"], language=languages[place % 4],
                time=f"2026-01-15T{int(row['timestamp_s']) // 3600:02d}:{int(row['timestamp_s']) // 60 % 60:02d}:"
                f"{int(row['timestamp_s']) % 60:02d}Z",
                usage=usage(int(row["input_tokens"]), int(row["output_tokens"])),
            )
            for place, row in enumerate(rows)
        )
    )  # fmt: skip
    marts.roll_up(*MARTS, tests=True)
    tokens = 1_198_153 + 97_367
    assert marts.ledger.rows(
        "select sum(request_count), sum(input_tokens + output_tokens), sum(charge_amount) from marts.fct_conversation_cost"
    ) == [(400, tokens, Decimal(tokens) / 1_000_000)]
    assert marts.ledger.rows(
        "select count(*), count(*) filter (where request_count > 1), max(request_count) from marts.dim_conversations"
    ) == [(227, 95, 9)]
    # Whole conversations under one language each: as many and as much as there is, once.
    assert marts.ledger.rows(
        "select sum(conversation_count), sum(conversation_request_count), sum(conversation_tokens), min(und_share)"
        " from marts.fct_language_cost_monthly"
    ) == [(227, 400, tokens, Decimal("0.25"))]


async def test_a_premium_stands_beside_what_the_tokenizer_is_known_to_do(marts: Marts) -> None:
    """30 requests each of 100, 150 and 190 tokens, and 29 of 400: German 1.5, Chinese 1.9, Thai not enough to say."""
    await set_up(marts, "gpt-4", "m-sub")
    sizes = (("en", 30, 100), ("de", 30, 150), ("zh-Hans", 30, 190), ("th", 29, 400))
    for model in ("gpt-4", "m-sub"):
        await marts.post(
            *(
                make_event(
                    f"{model}-{language}-{place}", model=model, requested_model=model, language=language,
                    usage=usage(tokens),
                )
                for language, count, tokens in sizes
                for place in range(count)
            )
        )  # fmt: skip
    marts.roll_up(*MARTS, tests=True)
    found = marts.ledger.rows(
        "select language, sample, request_count, english_request_count, tokens_premium, cost_premium, charge_premium,"
        " tokenizer, tokenizer_premium from marts.fct_language_premium where model = 'gpt-4' order by 1"
    )
    assert found == [
        ("de", "enough", 30, 30, *[Decimal("1.500")] * 3, "cl100k_base", Decimal("1.579")),
        ("en", "english", 30, 30, None, None, None, "cl100k_base", Decimal("1.000")),
        ("th", "too few", 29, 30, None, None, None, "cl100k_base", Decimal("4.391")),
        ("zh-Hans", "enough", 30, 30, *[Decimal("1.900")] * 3, "cl100k_base", Decimal("1.914")),
    ]
    # The tokenizer of a model that no table names is unknown, and nothing is guessed for it.
    assert marts.ledger.rows(
        "select distinct tokenizer, tokenizer_premium from marts.fct_language_premium where model = 'm-sub'"
    ) == [("", None)]


async def test_known_premiums_are_those_of_the_paper_by_the_tags_of_the_ledger(marts: Marts) -> None:
    marts.roll_up("+dim_tokenizer_premiums", tests=True)
    known: dict[str, Any] = dict(
        marts.ledger.rows(
            "select language, round(premium, 2) from marts.dim_tokenizer_premiums where provider = 'openai' and model = 'gpt-4'"
        )
    )
    said = {
        "pt": "1.48", "es": "1.55", "de": "1.58", "fr": "1.60", "zh": "1.91", "ja": "2.30", "ko": "2.38", "ru": "2.49",
        "ar": "3.04", "hi": "4.79", "zh-Hans": "1.91", "de-Latn": "1.58", "ko-Kore": "2.38",
    }  # fmt: skip
    assert {tag: str(known[tag]) for tag in said} == said
    # Two scripts, two numbers; a script that the tables lack has none.
    assert known["zh-Hant"] != known["zh"]
    assert "sr" in known
    assert "sr-Latn" not in known


async def test_seeds_and_views_stay_as_they_are_while_nothing_in_them_changes(marts: Marts) -> None:
    """Of every subject: a view that is made again is gone for a moment, and waits for whoever reads it."""
    named = (*MARTS, "config.materialized:standing_view")
    marts.roll_up(*named)
    state = (
        "select c.relname, c.oid, (select min(t.ctid::text || t.xmin) from marts.tokenizer_languages as t)"
        " from pg_class as c where c.relnamespace = 'marts'::regnamespace and c.relkind in ('r', 'v') order by 1"
    )
    before = marts.ledger.rows(state)
    assert len(before) > 10
    marts.roll_up(*named)
    assert marts.ledger.rows(state) == before
    # One that somebody dropped is there again.
    marts.ledger.superuser.execute("drop view marts.fct_language_premium cascade")
    marts.ledger.superuser.execute("drop table marts.tokenizer_languages cascade")
    # A view has no rows of its own, made or not.
    assert set(marts.roll_up(*MARTS).rows.values()) == {0}
    assert [row[0] for row in marts.ledger.rows(state)] == [row[0] for row in before]
