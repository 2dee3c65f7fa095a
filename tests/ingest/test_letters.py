"""Dead letters are released through the reader and `post`: once, under their own identity, and each says what came of it."""

import asyncio
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from ingest.letters import Fix, FixRefused, Replayed, field_of, mended, parse_set, pretty, replay
from ingest.usage_events import Speaker
from ledger.database import connect
from ledger.dead_letters import Search, list_dead_letters, readable
from tests.factories import GATEWAY, event_bytes, make_event
from tests.support.ledger import Failpoint, Ledger

PRICE = Decimal("0.00028")
"""100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000."""


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="2.00", output="8.00")


async def release(
    ledger: Ledger, ids: Sequence[int] | None = None, fix: Fix | None = None, reason: str | None = None
) -> list[Replayed]:
    """Release letters as a command does; without ids all open ones, the oldest first."""
    if ids is None:
        ids = [row[0] for row in ledger.rows("select dead_letter_id from ledger.dead_letters order by 1")]
    connection = await connect(ledger.database.url_for("tallystick_operator"))
    try:
        return await replay(
            connection, ledger.database.url_for("tallystick_writer"), ids, actor="ann", reason=reason, fix=fix
        )
    finally:
        await connection.close()


def outcomes(done: Sequence[Replayed]) -> list[tuple[str, str | None]]:
    return [(each.outcome, each.reason) for each in done]


def resolutions(ledger: Ledger) -> list[tuple[Any, ...]]:
    return ledger.rows(
        "select resolution, resolved_by, resolved_batch_id is not null, resolved_at is not null"
        " from ledger.dead_letters order by dead_letter_id"
    )


# --- As they are ------------------------------------------------------------------------------------------------------


async def test_a_letter_is_posted_once_its_cause_is_gone(priced: Ledger) -> None:
    """
    2026-01-15  gw-new is not registered: 2 events set aside, 0 posted
                gw-new is registered, both are released: 2 x 0.00028 = 0.00056
                released again, and sent again: nothing more
    """
    bodies = [event_bytes(make_event(f"e{n}", source="gateway://new")) for n in range(2)]
    await priced.post_bytes(*bodies)
    assert priced.total() == 0
    priced.add_source("gateway://new")
    assert outcomes(await release(priced)) == [("created", None), ("created", None)]
    assert priced.total() == Decimal("0.00056")
    assert resolutions(priced) == [("created", "ann", True, True)] * 2
    assert outcomes(await release(priced)) == [("resolved", "created")] * 2
    assert priced.outcomes(await priced.post_bytes(*bodies)) == ["duplicate", "duplicate"]
    assert priced.total() == Decimal("0.00056")
    assert priced.rows("select bytes from ledger.dead_letters order by 1") == [(body,) for body in bodies]


async def test_a_letter_that_is_refused_again_stays_open_and_says_what_stands_in_the_way_now(priced: Ledger) -> None:
    """Its source is registered, its tenant is not: one letter still, which no sender repeated."""
    await priced.post(make_event("e", source="gateway://new", tenant_id="t-new"))
    priced.add_source("gateway://new")
    assert outcomes(await release(priced)) == [("dead_letter", "unknown_tenant")]
    assert priced.rows("select reason, repeats, resolution from ledger.dead_letters") == [("unknown_tenant", 0, None)]
    priced.add_tenant("t-new")
    assert outcomes(await release(priced)) == [("created", None)]


async def test_what_was_posted_meanwhile_is_a_duplicate(priced: Ledger) -> None:
    event = make_event("e", source="gateway://new")
    await priced.post(event)
    priced.add_source("gateway://new")
    await priced.post(event)
    assert outcomes(await release(priced)) == [("duplicate", None)]
    assert resolutions(priced) == [("duplicate", "ann", True, True)]
    assert priced.total() == PRICE


async def test_two_people_who_release_the_same_letters_post_them_once(priced: Ledger) -> None:
    """Twenty letters, two releases at one time: one posts them, the other finds them resolved. 20 x 0.00028 = 0.0056."""
    await priced.post(*(make_event(f"e{n}", source="gateway://new") for n in range(20)))
    priced.add_source("gateway://new")
    both = await asyncio.gather(release(priced), release(priced))
    assert sorted({each.outcome for each in done} == {"created"} for done in both) == [False, True]
    assert {each.outcome for done in both for each in done} == {"created", "resolved"}
    assert priced.total() == Decimal("0.0056")
    assert priced.value("select count(*) from ledger.acts where act = 'dead_letters.replay'") == 1


async def test_a_release_skips_the_window_of_time_and_shows_a_future(priced: Ledger) -> None:
    """Too old by a day, and a year ahead: both are posted by a person's word, and the second is named."""
    await priced.post(make_event("old", time="2019-12-31T23:59:59Z"), make_event("ahead", time="2027-01-15T10:00:00Z"))
    assert priced.rows("select reason from ledger.dead_letters order by 1") == [
        ("time_in_future",),
        ("time_too_early",),
    ]
    done = await release(priced)
    assert sorted((each.outcome, each.is_in_future) for each in done) == [("created", False), ("created", True)]


async def test_a_conflict_is_no_matter_of_replaying(priced: Ledger) -> None:
    await priced.post(make_event("e"))
    await priced.post(make_event("e", model="m-other"))
    (told,) = await release(priced)
    assert (told.outcome, told.reason) == ("conflict", "conflict")
    assert f"`tallystick corrections accept --letter {told.dead_letter_id}` takes the other content over" in (
        told.detail or ""
    )
    assert priced.value("select count(*) from ledger.batches") == 2, "nothing was posted"


async def test_a_letter_that_has_become_a_conflict_says_so_with_both_hashes(priced: Ledger) -> None:
    await priced.post(make_event("e", source="gateway://new"))
    priced.add_source("gateway://new")
    await priced.post(make_event("e", source="gateway://new", model="m-other"))
    assert outcomes(await release(priced)) == [("conflict", "conflict")]
    assert priced.rows(
        "select reason, num_nonnulls(event_key, first_hash, second_hash), resolution from ledger.dead_letters"
    ) == [("conflict", 3, None)]


async def test_a_message_that_was_set_aside_whole_is_split(priced: Ledger) -> None:
    """Three events, one of a tenant that nobody knows: two are posted, the third becomes a letter of its own."""
    pack = event_bytes(make_event("a"), make_event("b", tenant_id="t-nobody"), make_event("c"))
    from ingest.intake import Message
    from ledger.statements import Refused
    from ledger.times import parse_rfc3339

    async with priced.intake() as intake:
        whole = Message(pack, parse_rfc3339("2026-01-15T10:01:00Z"), "test", refused=Refused("kills_process", "it did"))
        await intake.post(await intake.read([whole]))
    (told,) = await release(priced)
    assert (told.outcome, told.results) == ("split", {"created": 2, "dead_letter": 1})
    assert priced.rows("select reason, resolution from ledger.dead_letters order by dead_letter_id") == [
        ("kills_process", "split"),
        ("unknown_tenant", None),
    ]
    assert priced.total() == 2 * PRICE


async def test_a_tenants_own_word_stays_its_own(priced: Ledger) -> None:
    """A letter of a tenant's credential names no tenant: the credential still does, and still ranks below its gateway."""
    priced.superuser.execute(
        "insert into ledger.api_keys (key_id, secret_hash, tenant_id, scopes)"
        " values ('tsk_0123456789ab', '\\x00', 't-alpha', '{events:write}')"
    )
    event = make_event("e", source="gateway://new", tenant_id=..., request_id="r")
    speaker = Speaker(tenant_id="t-alpha")
    await priced.post_bytes(event_bytes(event), origin="tsk_0123456789ab", speaker=speaker)
    priced.add_source("gateway://new")
    assert outcomes(await release(priced)) == [("created", None)]
    assert priced.rows("select sent_tenant_id from ledger.entries") == [("t-alpha",)]
    assert priced.value("select rank[5] < 0 from ledger.requests")


async def test_a_release_that_fails_before_its_commit_leaves_the_letter_open(
    priced: Ledger, failpoint: Failpoint
) -> None:
    """What is posted, what the letter says and the act are one transaction."""
    await priced.post(make_event("e", source="gateway://new"))
    priced.add_source("gateway://new")

    def fail(_: bytes) -> None:
        raise RuntimeError("cut here")

    failpoint("post.before_commit", fail)
    with pytest.raises(RuntimeError, match="cut here"):
        await release(priced)
    assert priced.rows("select resolution from ledger.dead_letters") == [(None,)]
    assert priced.value("select count(*) from ledger.acts where act = 'dead_letters.replay'") == 0
    failpoint("post.before_commit", lambda _: None)
    assert outcomes(await release(priced)) == [("created", None)]
    assert priced.total() == PRICE


async def test_a_letter_that_the_database_refuses_says_so(priced: Ledger) -> None:
    await priced.post(make_event("e", source="gateway://new"))
    priced.add_source("gateway://new")
    priced.superuser.execute("alter table ledger.entries add constraint is_allowed check (feature <> 'chat')")
    assert outcomes(await release(priced)) == [("dead_letter", "database_refused")]
    assert priced.rows("select reason, resolution from ledger.dead_letters") == [("database_refused", None)]


# --- Mended -----------------------------------------------------------------------------------------------------------


async def test_a_letter_is_mended_under_its_own_identity(priced: Ledger) -> None:
    """The sender's broken flavour is set right: posted under its id, the bytes stay, and the same bytes again stay refused."""
    body = event_bytes(make_event("e", flavour="openai.chatt"))
    await priced.post_bytes(body)
    fix = Fix([("data.flavour", "openai.chat")])
    assert outcomes(await release(priced, fix=fix, reason="a misspelling of release 12")) == [("created", None)]
    assert priced.total() == PRICE
    assert priced.rows("select bytes, reason, resolution from ledger.dead_letters") == [
        (body, "unknown_flavour", "created")
    ]
    assert priced.rows("select detail -> 'changed', reason from ledger.acts where act = 'dead_letters.replay'") == [
        (["data.flavour"], "a misspelling of release 12")
    ]
    assert priced.outcomes(await priced.post(make_event("e"))) == ["duplicate"]


async def test_a_fix_that_is_refused_makes_no_letter_of_its_own(priced: Ledger) -> None:
    body = event_bytes(make_event("e", flavour="openai.chatt"))
    await priced.post_bytes(body)
    done = await release(priced, fix=Fix([("data.flavour", "nobody.knows")]), reason="r")
    assert outcomes(done) == [("dead_letter", "unknown_flavour")]
    assert "nobody.knows" in (done[0].detail or "")
    letters = priced.rows("select bytes, detail, repeats, resolution from ledger.dead_letters")
    assert [(bytes(row[0]), "chatt" in row[1], *row[2:]) for row in letters] == [(body, True, 0, None)]


async def test_a_fix_needs_a_reason(priced: Ledger) -> None:
    await priced.post(make_event("e", flavour="x"))
    with pytest.raises(FixRefused, match="needs a reason"):
        await release(priced, fix=Fix([("data.flavour", "openai.chat")]), reason=" ")


NO_TENANT = event_bytes(make_event("e", tenant_id=...))
WHOLE = event_bytes(make_event("e"))


@pytest.mark.parametrize(
    ("body", "fix", "rule"),
    [
        (b"{", Fix([("id", "e")]), "no JSON object, so no field can be set"),
        (WHOLE, Fix(body=b"[]"), "the new bytes are no JSON object"),
        (WHOLE, Fix([("data.feature.x", "y")]), "data.feature.x: feature is no object"),
        (WHOLE, Fix([("data.model", "m-sub")]), "nothing changes"),
        (WHOLE, Fix([("id", "f")]), "id would change from 'e' to 'f'"),
        (WHOLE, Fix([("source", "gateway://other")]), "source would change"),
        (WHOLE, Fix([("data.tenant_id", "t-beta")]), "data.tenant_id would change from 't-alpha' to 't-beta'"),
        (b'{"id": "e"', Fix(body=WHOLE), "its own identity cannot be read"),
    ],
)
def test_what_no_fix_may_do(body: bytes, fix: Fix, rule: str) -> None:
    with pytest.raises(FixRefused, match="dead letter 7: ") as refused:
        mended(7, body, fix, None)
    assert rule in str(refused.value)


def test_what_a_sender_left_out_may_be_filled_in() -> None:
    made = mended(7, NO_TENANT, Fix([("data.tenant_id", "t-alpha")]), None)
    assert made.changed == ("data.tenant_id",)
    assert readable(made.body).tenant_id == "t-alpha"
    with pytest.raises(FixRefused, match="would change from 't-beta'"):
        mended(7, NO_TENANT, Fix([("data.tenant_id", "t-alpha")]), Speaker(tenant_id="t-beta"))


def test_another_identity_is_a_persons_word() -> None:
    assert mended(7, WHOLE, Fix([("id", "f")], allows_other_identity=True), None).changed == ("id",)
    assert mended(7, b"{", Fix(body=WHOLE, allows_other_identity=True), None).changed == ("(all)",)


def test_what_is_not_mended_keeps_its_digits() -> None:
    body = b'{"id":"e","data":{"usage":{"cost":0.10,"big":12345678901234567890.5},"x":1}}'
    made = mended(7, body, Fix([("data.x", 2)]), None)
    assert b'"cost":0.10,"big":12345678901234567890.5' in made.body
    assert '"cost": 0.10' in (pretty(made.body) or "")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("data.model=m-1", "data.model", "m-1"),
        ("data.model=", "data.model", ""),
        ("data.request_id=123", "data.request_id", "123"),
        ("data.usage.prompt_tokens:=123", "data.usage.prompt_tokens", 123),
        ("data.tags:={}", "data.tags", {}),
        ("data.note=a=b", "data.note", "a=b"),
    ],
)
def test_a_field_is_set_to_a_text_or_to_json(text: str, path: str, value: Any) -> None:
    assert parse_set(text) == (path, value)


@pytest.mark.parametrize("text", ["data.model", "=x", ":=1", "data.x:={"])
def test_what_sets_nothing_is_refused(text: str) -> None:
    with pytest.raises(FixRefused):
        parse_set(text)


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        ("data.tenant_id: 't-nobody' is not registered", "data.tenant_id"),
        ("source: is missing", "source"),
        ("23514: new row violates", None),
        ("the message is empty", None),
        ("a key of data.tags: too long", None),
    ],
)
def test_the_field_at_fault_is_the_one_that_the_detail_names(detail: str, field: str | None) -> None:
    assert field_of(detail) == field


# --- Searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (json.dumps(make_event("e", sequence=7)).encode(), ("t-alpha", GATEWAY, "e", 7)),
        (b'{"id": "e", "source": 3, "data": {"sequence": -1}}', (None, None, "e", None)),
        (b'{"id": "a\\u0000b", "source": "", "data": []}', (None, None, None, None)),
        (b'{"data": {"sequence": true, "tenant_id": "' + b"x" * 257 + b'"}}', (None, None, None, None)),
        (b'{"data": {"sequence": 9223372036854775808}}', (None, None, None, None)),
        (b"\xff\xfe", (None, None, None, None)),
        (b"[" * 10_000, (None, None, None, None)),
        (b"17", (None, None, None, None)),
    ],
)
def test_who_sent_it_is_read_as_far_as_it_can_be(body: bytes, named: tuple[Any, ...]) -> None:
    assert tuple(readable(body)) == named


async def test_letters_are_found_by_what_is_known_of_them(priced: Ledger) -> None:
    await priced.post(make_event("a", tenant_id="t-nobody"))
    await priced.post(make_event("b", source="gateway://new"))
    await priced.post_bytes(b"garbage", origin="llm-usage")
    connection = await connect(priced.database.url_for("tallystick_operator"))

    async def found(**search: Any) -> list[str]:
        return [each.reason for each in await list_dead_letters(connection, Search(**search))]

    try:
        assert await found() == ["invalid_json", "unknown_source", "unknown_tenant"]
        assert await found(tenant_id="t-nobody") == ["unknown_tenant"]
        assert await found(source="gateway://new") == ["unknown_source"]
        assert await found(origin="llm-usage") == ["invalid_json"]
        assert await found(reason="invalid_json", origin="test") == []
        assert await found(text="NOT REGISTERED") == ["unknown_source", "unknown_tenant"]
        assert len(await found(owner="")) == 3
        assert await found(state="resolved") == []
        page = await list_dead_letters(connection, limit=2)
        rest = await list_dead_letters(connection, before=page[-1].dead_letter_id)
        assert [each.reason for each in rest] == ["unknown_tenant"]
    finally:
        await connection.close()
