"""Approvals: an act that needs two people is done once, by one of them, after the other has said yes."""

import asyncio

import psycopg
import pytest

from ledger.approvals import ACTS, Approved, Awaiting, acts_of, decide, find, list_approvals, second_person, use
from ledger.database import Connection, connect
from ledger.errors import ActRefused, Unknown
from tests.support.databases import Database

ACT = "corrections.reverse"
NEEDED = frozenset({ACT})
DETAIL = {"tenant_id": "t-alpha", "request_id": "r-1", "amount": "0.10"}


async def asked(
    connection: Connection, actor: str = "ann", reason: str | None = "wrong tenant", **detail: str
) -> Approved | Awaiting:
    async with connection.transaction():
        return await second_person(connection, NEEDED, ACT, {**DETAIL, **detail}, actor=actor, reason=reason)


async def waiting(connection: Connection, actor: str = "ann") -> int:
    found = await asked(connection, actor)
    assert isinstance(found, Awaiting)
    return found.approval_id


async def say_yes(connection: Connection, approval_id: int, actor: str = "ben") -> None:
    await decide(connection, approval_id, approve=True, actor=actor, reason=None)


def test_a_setting_names_acts_whole_or_by_their_noun() -> None:
    assert acts_of([]) == frozenset()
    assert acts_of([ACT]) == {ACT}
    assert acts_of(["corrections"]) == {act for act in ACTS if act.startswith("corrections.")}


@pytest.mark.parametrize("name", ["corection", "corrections.", "corrections.rev", "*"])
def test_a_name_that_is_no_act_is_refused(name: str) -> None:
    """It would ask nobody, in silence."""
    with pytest.raises(ActRefused, match="can need a second person"):
        acts_of([ACT, name])


async def test_an_act_that_needs_nobody_is_done_at_once(operator: Connection) -> None:
    assert await second_person(operator, frozenset(), ACT, DETAIL, actor="ann", reason=None) == Approved(None)
    assert await list_approvals(operator, with_done=True) == []


async def test_a_second_person_lets_it_be_done_once(operator: Connection) -> None:
    approval_id = await waiting(operator)
    assert await waiting(operator) == approval_id, "asking again is the same question"
    await say_yes(operator, approval_id)
    assert await asked(operator) == Approved("ben", approval_id)
    assert (await find(operator, approval_id)).state == "used"
    assert await waiting(operator) != approval_id, "a yes is used once"


async def test_who_asked_cannot_answer(operator: Connection) -> None:
    approval_id = await waiting(operator)
    with pytest.raises(ActRefused, match="was asked for by ann: somebody else"):
        await say_yes(operator, approval_id, "ann")
    with pytest.raises(psycopg.errors.CheckViolation, match="is_by_two_people"):
        await operator.execute("update ledger.approvals set state = 'approved', decided_by = 'ann'")
    assert (await find(operator, approval_id)).state == "requested"


async def test_who_answered_cannot_act_and_a_third_person_may(operator: Connection) -> None:
    """Two people stand behind each act: ann asked, ben agreed; ben alone would be both asker and judge."""
    approval_id = await waiting(operator)
    await say_yes(operator, approval_id)
    with pytest.raises(ActRefused, match="given by ben"):
        await asked(operator, "ben")
    assert await asked(operator, "cleo") == Approved("ben", approval_id)


async def test_a_yes_is_for_these_values_and_no_others(operator: Connection) -> None:
    await say_yes(operator, await waiting(operator))
    assert isinstance(await asked(operator, amount="0.1"), Awaiting)
    assert isinstance(await asked(operator), Approved)


async def test_what_is_refused_stays_refused_and_may_be_asked_anew(operator: Connection) -> None:
    approval_id = await waiting(operator)
    with pytest.raises(ActRefused, match="a refusal needs a reason"):
        await decide(operator, approval_id, approve=False, actor="ben", reason=" ")
    await decide(operator, approval_id, approve=False, actor="ben", reason="the tenant is right")
    with pytest.raises(ActRefused, match=f"approval {approval_id} is refused by ben"):
        await say_yes(operator, approval_id, "cleo")
    assert await waiting(operator) > approval_id


@pytest.mark.parametrize("answered", [False, True])
async def test_after_a_week_neither_question_nor_yes_counts(
    operator: Connection, database: Database, answered: bool
) -> None:
    approval_id = await waiting(operator)
    if answered:
        await say_yes(operator, approval_id)
    with database.connect() as superuser:
        superuser.execute("update ledger.approvals set expires_at = clock_timestamp()")
    assert (await find(operator, approval_id)).state == "expired"
    assert await list_approvals(operator) == []
    with pytest.raises(ActRefused, match="is expired"):
        await say_yes(operator, approval_id)
    with pytest.raises(ActRefused, match="has expired"):
        await use(operator, approval_id)
    assert await waiting(operator) > approval_id


async def test_two_who_ask_at_once_ask_one_question(operator: Connection, database: Database) -> None:
    async with await connect(database.url_for("tallystick_operator")) as other:
        first, second = await asyncio.gather(asked(operator, "ann"), asked(other, "cleo"))
    assert isinstance(first, Awaiting)
    assert isinstance(second, Awaiting)
    assert first.approval_id == second.approval_id


async def test_an_act_without_a_reason_is_not_asked_for(operator: Connection) -> None:
    with pytest.raises(ActRefused, match="who reads why: give a reason"):
        await asked(operator, reason=" ")
    with pytest.raises(Unknown, match="no approval '7'"):
        await say_yes(operator, 7)


async def test_an_answer_is_an_act_with_what_it_was_about(operator: Connection) -> None:
    approval_id = await waiting(operator)
    await say_yes(operator, approval_id)
    cursor = await operator.execute("select actor, act, detail from ledger.acts")
    detail = {"approval_id": approval_id, "act": ACT, **DETAIL}
    assert await cursor.fetchall() == [("ben", "approvals.approve", detail)]


async def test_nobody_can_change_what_was_asked(operator: Connection) -> None:
    await waiting(operator)
    for change in ("detail = '{}'", "requested_by = 'eve'", "expires_at = 'infinity'", "reason = ''", "digest = null"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await operator.execute(f"update ledger.approvals set {change}")
