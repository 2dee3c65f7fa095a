"""People: a user's link is cut and stays cut, what the ledger holds of them can be shown, and what has an age limit goes."""

import json
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger import expiry, subjects
from ledger.database import connect
from ledger.errors import Unknown
from ledger.times import parse_rfc3339
from tests.factories import make_event
from tests.support.ledger import Ledger

USER = "hash-of-ada"


async def operator_does(ledger: Ledger, what: Any, *arguments: Any, **named: Any) -> Any:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        return await what(operator, *arguments, **named)


async def erase(ledger: Ledger, user_hash: str = USER) -> subjects.Erased:
    erased: subjects.Erased = await operator_does(
        ledger, subjects.erase_subject, "t-alpha", user_hash, actor="dpo", reason="asked to be forgotten"
    )
    return erased


@pytest.fixture
async def used(ledger: Ledger) -> Ledger:
    """Two calls of one user and one of another: 100 x 2.00 + 10 x 8.00 a million each."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(
        make_event("e1", user_hash=USER, conversation_id="c-1"),
        make_event("e2", user_hash=USER, tags={"team": "a"}),
        make_event("e3", user_hash="hash-of-bob"),
    )
    return ledger


# --- Erasure ----------------------------------------------------------------------------------------------------------


async def test_an_erasure_cuts_the_link_and_says_what_remains(used: Ledger) -> None:
    before = used.rows("select * from ledger.entries order by entry_id")
    done = await erase(used)
    assert (done.entry_count, done.conversation_count, done.tagged_count) == (2, 1, 1)
    assert used.rows("select * from ledger.entries order by entry_id") == before
    assert used.rows("select subject_id::text, user_hash from ledger.subjects where user_hash is null") == [
        (done.subject_id, None)
    ]
    for table in ("acts", "subjects", "entries", "raw_usage", "dead_letters"):
        assert used.value(f"select count(*) from ledger.{table} as t where t::text like '%%{USER}%%'") == 0, table
    assert used.rows("select actor, act, reason from ledger.acts where act = 'subjects.erase'") == [
        ("dpo", "subjects.erase", "asked to be forgotten")
    ]


async def test_an_erasure_can_be_repeated_and_leaves_others_alone(used: Ledger) -> None:
    await erase(used)
    again = await erase(used)
    assert again.subject_id is None
    assert used.value("select count(*) from ledger.acts where act = 'subjects.erase'") == 1
    assert used.value("select count(*) from ledger.subjects where user_hash = 'hash-of-bob'") == 1
    with pytest.raises(Unknown, match="there is no tenant 't-nobody'"):
        await operator_does(used, subjects.erase_subject, "t-nobody", USER, actor="dpo", reason="x")


async def test_a_later_event_of_the_same_user_has_another_subject(used: Ledger) -> None:
    """Also from a writer that remembers the old id: the erasure raised the version of the parties."""
    async with used.intake("file:remembers") as intake:
        await intake.post(await intake.read([used.message(make_event("e4", user_hash=USER))]))
        erased = await erase(used)
        reading = await intake.read([used.message(make_event("e5", user_hash=USER))])
        await intake.post(reading)
    old, new = (
        used.value("select subject_id::text from ledger.entries where request_id = %s", f"req-{event}")
        for event in ("e4", "e5")
    )
    assert old == erased.subject_id
    assert new not in (None, old)


async def test_a_batch_that_was_read_before_the_erasure_uses_no_old_id(used: Ledger) -> None:
    async with used.intake("file:remembers") as intake:
        reading = await intake.read([used.message(make_event("e5", user_hash=USER))])
        erased = await erase(used)
        await intake.post(reading)
    assert used.value("select subject_id::text from ledger.entries where request_id = 'req-e5'") != erased.subject_id


async def test_a_resend_after_an_erasure_is_a_duplicate(used: Ledger) -> None:
    await erase(used)
    posted = await used.post(make_event("e1", user_hash=USER, conversation_id="c-1"))
    assert used.outcomes(posted) == ["duplicate"]


async def test_budgets_of_each_user_go_on_under_the_bare_id(used: Ledger) -> None:
    used.superuser.execute(
        "insert into quotas.budgets (budget_id, tenant_id, group_by, unit, currency, window_kind, first_window)"
        " values ('each-user', 't-alpha', '{subject_id}', 'charge', 'USD', 'month', '2026-01-01')"
    )
    await used.post(make_event("e6", user_hash=USER))
    await erase(used)
    await used.post(make_event("e7", user_hash=USER))
    posted = used.rows("select posted from quotas.windows where budget_id = 'each-user'")
    assert posted == [(Decimal("0.00028"),)] * 2


async def test_no_role_links_a_subject_again(used: Ledger) -> None:
    await erase(used)
    for role in ("operator", "writer", "api", "analyst", "billing", "rollup"):
        with (
            used.database.connect(f"tallystick_{role}") as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("update ledger.subjects set user_hash = 'x' where user_hash is null")


async def test_what_is_held_of_a_user_can_be_shown_and_written_out(used: Ledger) -> None:
    found = await operator_does(used, subjects.find_subject, "t-alpha", USER)
    assert (found.entry_count, found.request_count, found.conversation_count) == (2, 2, 1)
    assert found.charge_sums == {"USD": Decimal("0.00056")}

    async def entries(connection: Any) -> list[dict[str, Any]]:
        return [entry async for entry in subjects.entries_of(connection, found)]

    listed = await operator_does(used, entries)
    assert [entry["request_id"] for entry in listed] == ["req-e1", "req-e2"]
    assert not any("cost" in name for name in listed[0])
    await erase(used)
    with pytest.raises(Unknown):
        await operator_does(used, subjects.find_subject, "t-alpha", USER)


# --- Age limits -------------------------------------------------------------------------------------------------------


async def expire(ledger: Ledger, now: str, **limits: int) -> expiry.Expired:
    named = {"raw_usage_months": 6, "dead_letter_days": 90, "open_dead_letter_days": 400, "load_days": 90, **limits}
    done: expiry.Expired = await operator_does(
        ledger, expiry.expire, now=parse_rfc3339(now), actor="scheduler", **named
    )
    return done


async def test_raw_usage_older_than_the_limit_goes_by_the_month_and_entries_keep_its_digest(used: Ledger) -> None:
    """Three months in a row: what was received below the limit goes, what was received at it and above stays."""
    used.superuser.execute(
        "select ledger.make_partitions(m::date) from unnest('{2024-01-01,2024-02-01,2024-03-01}'::date[]) as m"
    )
    digest = used.value("select raw_digest from ledger.entries where request_id = 'req-e1'")
    done = await expire(used, "2024-08-15T00:00:00Z")
    assert done.raw_usage_months == [date(2024, 1, 1)]
    assert used.value("select to_regclass('ledger.raw_usage_2024_01')") is None
    assert used.value("select to_regclass('ledger.raw_usage_2024_02')") is not None
    assert used.value("select raw_digest from ledger.entries where request_id = 'req-e1'") == digest
    assert used.value("select detail -> 'months' from ledger.acts where act = 'retention.drop_raw_usage'") == [
        "2024-01"
    ]
    assert (await expire(used, "2024-08-15T00:00:00Z")).line is None


async def test_a_wrong_limit_never_takes_this_month_or_the_last(used: Ledger) -> None:
    kept = used.value("select count(*) from ledger.raw_usage")
    await expire(used, "2099-01-01T00:00:00Z", raw_usage_months=1)
    assert used.value("select count(*) from ledger.raw_usage") == kept == 3


@pytest.mark.parametrize(
    ("resolved", "days", "expires"), [(True, 89, False), (True, 91, True), (False, 399, False), (False, 401, True)]
)
async def test_bytes_of_dead_letters_go_and_hash_and_reason_stay(
    used: Ledger, resolved: bool, days: int, expires: bool
) -> None:
    await used.post(make_event("x1", tenant_id="t-nobody"))
    used.superuser.execute(
        "update ledger.dead_letters set last_at = timestamptz '2026-06-01' - make_interval(days => %s)", [days]
    )
    if resolved:
        used.superuser.execute(
            "update ledger.dead_letters set resolution = 'dismissed',"
            " resolved_at = timestamptz '2026-06-01' - make_interval(days => %s)",
            [days],
        )
    done = await expire(used, "2026-06-01T00:00:00Z")
    assert done.letters == int(expires)
    (row,) = used.rows("select bytes is null, reason, octet_length(bytes_hash) from ledger.dead_letters")
    assert row == (expires, "unknown_tenant", 32)
    acts = used.rows("select detail ->> 'letters' from ledger.acts where act = 'retention.expire_dead_letters'")
    assert acts == ([("1",)] if expires else [])


def test_what_an_act_says_is_plain() -> None:
    assert expiry.Expired([date(2024, 1, 1)], 1).line == "raw usage of 2024-01 dropped, bytes of 1 dead letter expired"
    assert expiry.Expired([], 0).line is None
    assert expiry.Expired([], 0, 2).line == "2 staged rows of loads gone"
    assert json.dumps(expiry.Expired([], 2).line) == '"bytes of 2 dead letters expired"'
