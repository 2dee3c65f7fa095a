"""Webhooks: one message for each fact, in the commit that makes it true, sent until it is taken, signed, and to nobody else."""

import asyncio
import json
import multiprocessing
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from ledger import failpoints
from ledger.database import Connection
from ledger.errors import ActRefused
from quotas import webhooks
from quotas.webhooks import Added, Rules, Sent
from tests.quotas.support import add_price, set_budget, spend
from tests.support.ledger import Failpoint, Ledger
from tests.support.receiver import Received, Receiver, listening

HERE = Rules(allow_private=True)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with listening() as one:
        yield one


async def add(connection: Connection, url: str, **values: Any) -> Added:
    return await webhooks.add_endpoint(connection, "test", url, HERE, **values)


async def deliver(ledger: Ledger, rules: Rules = HERE) -> Sent:
    return await webhooks.deliver_due(ledger.database.url_for("tallystick_operator"), rules)


def due_now(ledger: Ledger) -> None:
    ledger.superuser.execute("update quotas.deliveries set next_at = now()")


def said(received: Received) -> tuple[str, dict[str, Any]]:
    body = json.loads(received.body)
    return body["type"], body["data"]


# --- What becomes a message --------------------------------------------------------------------------------------------


async def test_each_fact_is_told_once(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    """Limit 1.00: 0.85 reach 0.8, 0.15 exhaust it, 0.30 overrun it; 0.30 more change nothing that was not said."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00", thresholds=["0.8"], group_by=("feature",))
    await add(operator, receiver.url())
    for number, amount in enumerate(("0.85", "0.15", "0.30", "0.30")):
        await spend(ledger, f"e{number}", amount)
    assert await deliver(ledger) == Sent(delivered=3)
    # Sent beside each other: no order is promised.
    told = {said(each)[0]: each for each in receiver.received}
    assert told.keys() == {"budget.threshold_reached", "budget.exhausted", "budget.overrun"}
    assert said(told["budget.overrun"])[1] == {
        "budget_id": "b", "tenant_id": "t-alpha", "group": {"feature": "chat"}, "unit": "charge", "currency": "USD",
        "window_kind": "month", "window_start": "2026-03-01", "limit": "1", "posted": "1.3", "held": "0", "hardness": "hard",
        "cause": "unreserved", "change": "0.3", "batch_id": 3,
    }  # fmt: skip
    body = json.loads(told["budget.threshold_reached"].body)
    assert (body["version"], body["data"]["threshold"]) == (1, "0.8")
    assert body["timestamp"].endswith("Z")
    assert await deliver(ledger) == Sent()


async def test_a_message_lives_and_dies_with_its_transaction(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await add(operator, receiver.url())
    await spend(ledger, "e1", "0.50")
    with ledger.database.connect() as connection:
        connection.execute(
            "insert into quotas.threshold_notes (budget_id, group_key, window_start, threshold) values ('b', '', '2026-03-01', 1)"
        )
        assert connection.execute("select count(*) from quotas.outbox").fetchone() == (1,)
        connection.rollback()
    assert ledger.value("select count(*) from quotas.outbox") == 0


async def test_nobody_hears_of_another_tenant(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    """Of t-beta's overrun hear t-beta and the operator; of a budget over all tenants the operator alone."""
    ledger.add_tenant("t-beta")
    await add_price(ledger)
    await set_budget(ledger, tenant_id=None, group_by=("tenant_id",), limit="1.00")
    await set_budget(ledger, tenant_id=None, budget_id="shared", limit="1.00")
    for tenant_id in ("t-alpha", "t-beta"):
        await add(operator, receiver.url(f"/{tenant_id}"), tenant_id=tenant_id, kinds=["budget.overrun"])
    await add(operator, receiver.url("/operator"), kinds=["budget.overrun"])
    await spend(ledger, "e1", "2.00", tenant_id="t-beta")
    await deliver(ledger)
    assert sorted((each.path, said(each)[1]["budget_id"]) for each in receiver.received) == [
        ("/operator", "b"), ("/operator", "shared"), ("/t-beta", "b"),
    ]  # fmt: skip


async def test_without_endpoints_nothing_is_written(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await spend(ledger, "e1", "2.00")
    assert ledger.value("select count(*) from quotas.outbox") == 0


async def test_a_limit_that_is_lowered_is_told_too(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="3.00")
    await add(operator, receiver.url())
    await spend(ledger, "e1", "2.00")
    await set_budget(ledger, limit="1.00")
    await deliver(ledger)
    assert sorted((said(each)[0], said(each)[1].get("cause")) for each in receiver.received) == [
        ("budget.exhausted", None), ("budget.overrun", "limit"),
    ]  # fmt: skip


# --- Signatures and secrets --------------------------------------------------------------------------------------------


def is_signed_by(secret: str, received: Received) -> bool:
    try:
        Webhook(secret).verify(received.body, received.headers)
    except WebhookVerificationError:
        return False
    return True


async def sent_one(ledger: Ledger, connection: Connection, receiver: Receiver, endpoint_id: str) -> Received:
    await webhooks.send_test(connection, "test", endpoint_id)
    await deliver(ledger)
    return receiver.received[-1]


async def test_messages_are_signed_with_every_secret_in_force(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    assert is_signed_by(added.secret, await sent_one(ledger, operator, receiver, added.endpoint_id))
    second = await webhooks.rotate_secret(operator, "test", added.endpoint_id)
    both = await sent_one(ledger, operator, receiver, added.endpoint_id)
    assert (is_signed_by(added.secret, both), is_signed_by(second, both)) == (True, True)
    third = await webhooks.rotate_secret(operator, "test", added.endpoint_id)
    two = await sent_one(ledger, operator, receiver, added.endpoint_id)
    assert [is_signed_by(secret, two) for secret in (added.secret, second, third)] == [False, True, True]
    fourth = await webhooks.rotate_secret(operator, "test", added.endpoint_id, overlap_hours=0)
    last = await sent_one(ledger, operator, receiver, added.endpoint_id)
    assert [is_signed_by(secret, last) for secret in (second, third, fourth)] == [False, False, True]
    changed = Received(last.path, last.headers, last.body + b" ")
    assert not is_signed_by(fourth, changed)


async def test_secrets_are_read_by_the_operator_alone(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    added = await add(operator, receiver.url())
    for role in ("writer", "api", "analyst", "billing", "rollup"):
        with (
            ledger.database.connect(f"tallystick_{role}") as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("select * from quotas.webhook_secrets")
    assert added.secret not in str(ledger.rows("select detail from ledger.acts"))
    await webhooks.remove_endpoint(operator, "test", added.endpoint_id)
    assert added.secret not in str(ledger.rows("select * from quotas.webhook_secrets"))


# --- Retries -----------------------------------------------------------------------------------------------------------


async def test_a_failure_is_tried_again_under_the_same_id_later_and_later(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    receiver.answer = lambda _: (500, {})
    for attempt, seconds in ((1, 5), (2, 20), (3, 80)):
        assert await deliver(ledger) == Sent(failed=1)
        assert await deliver(ledger) == Sent(), "not before its time"
        (wait,) = ledger.rows("select next_at - last_at from quotas.deliveries")[0]
        assert timedelta(seconds=seconds * 0.8) <= wait <= timedelta(seconds=seconds * 1.2 + 5)
        (listed,) = await webhooks.list_deliveries(operator)
        assert (listed.attempts, listed.last_status, listed.last_error) == (attempt, 500, "answered 500")
        due_now(ledger)
    receiver.answer = lambda _: (200, {})
    assert await deliver(ledger) == Sent(delivered=1)
    assert len(set(receiver.ids)) == 1
    assert len(receiver.ids) == 4


async def test_a_receiver_may_say_when_to_come_again(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    receiver.answer = lambda _: (429, {"retry-after": "3600"})
    await deliver(ledger)
    assert ledger.value("select next_at - last_at from quotas.deliveries") >= timedelta(hours=1)


async def test_a_redirect_is_not_followed(ledger: Ledger, receiver: Receiver, operator: Connection) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    receiver.answer = lambda _: (307, {"location": receiver.url("/elsewhere")})
    assert await deliver(ledger) == Sent(failed=1)
    assert [each.path for each in receiver.received] == ["/hook"]
    assert ledger.value("select last_error from quotas.deliveries") == "redirects are not followed"


async def test_one_that_hangs_holds_up_no_other(
    ledger: Ledger, receiver: Receiver, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_SEND_SECONDS", 0.5)
    hanging = await add(operator, receiver.url("/hangs"))
    working = await add(operator, receiver.url("/works"))
    for added in (hanging, working):
        await webhooks.send_test(operator, "test", added.endpoint_id)
    receiver.answer = lambda one: None if one.path == "/hangs" else (204, {})
    assert await deliver(ledger) == Sent(delivered=1, failed=1)
    assert ledger.rows("select last_error from quotas.deliveries where state = 'pending'") == [("timed out",)]


async def test_a_message_that_nobody_took_is_given_up_after_its_age(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    ledger.superuser.execute("update quotas.outbox set created_at = now() - interval '72 hours'")
    receiver.answer = lambda _: (500, {})
    assert await deliver(ledger) == Sent(failed=1, given_up=1)
    due_now(ledger)
    assert await deliver(ledger) == Sent()
    assert await webhooks.resend(operator, "test", ledger.value("select message_id::text from quotas.outbox")) == 1
    receiver.answer = lambda _: (200, {})
    assert await deliver(ledger) == Sent(delivered=1)
    assert len(set(receiver.ids)) == 1
    with pytest.raises(ActRefused, match="there is no message 'msg_nothing'"):
        await webhooks.resend(operator, "test", "msg_nothing")


async def test_a_receiver_that_is_gone_is_disabled_at_once_and_others_are_told(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    gone = await add(operator, receiver.url("/gone"), tenant_id="t-alpha")
    await add(operator, receiver.url("/operator"))
    await webhooks.send_test(operator, "test", gone.endpoint_id)
    receiver.answer = lambda one: (410 if one.path == "/gone" else 204, {})
    done = await deliver(ledger)
    assert done.disabled == (gone.endpoint_id,)
    told = [said(each) for each in receiver.received if each.path == "/operator"]
    assert told == [("webhook.disabled", {"endpoint_id": gone.endpoint_id, "reason": "the receiver answered 410 Gone"})]
    due_now(ledger)
    assert await deliver(ledger) == Sent()
    assert ledger.value("select count(*) from ledger.acts where act = 'webhooks.disable'") == 1
    await webhooks.enable_endpoint(operator, "test", gone.endpoint_id)
    with pytest.raises(ActRefused, match="is not disabled"):
        await webhooks.enable_endpoint(operator, "test", gone.endpoint_id)
    receiver.answer = lambda _: (204, {})
    assert (await deliver(ledger)).delivered == 1, "what waited goes on"


async def test_a_receiver_that_fails_for_long_is_disabled(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    receiver.answer = lambda _: (500, {})
    await deliver(ledger)
    due_now(ledger)
    ledger.superuser.execute("update quotas.webhook_endpoints set failing_since = now() - interval '71 hours'")
    assert (await deliver(ledger)).disabled == ()
    due_now(ledger)
    ledger.superuser.execute("update quotas.webhook_endpoints set failing_since = now() - interval '72 hours'")
    assert (await deliver(ledger)).disabled == (added.endpoint_id,)
    (endpoint,) = await webhooks.list_endpoints(operator)
    assert endpoint.disabled_reason == "nothing was taken for 72 hours"


# --- Crashes, and several at once --------------------------------------------------------------------------------------


def _deliver_and_die(url: str) -> None:
    failpoints.set_failpoint("outbox.before_mark", lambda _: failpoints.die())
    asyncio.run(webhooks.deliver_due(url, HERE))


async def test_a_crash_after_sending_is_one_repeat_with_the_same_id(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    child = multiprocessing.get_context("spawn").Process(
        target=_deliver_and_die, args=(ledger.database.url_for("tallystick_operator"),)
    )
    child.start()
    await asyncio.to_thread(child.join)
    assert child.exitcode == -signal.SIGKILL
    assert len(receiver.received) == 1
    assert await deliver(ledger) == Sent(), "its lease still runs"
    ledger.superuser.execute(
        "update quotas.deliveries set next_at = now() where next_at <= now() + interval '60 seconds'"
    )
    assert await deliver(ledger) == Sent(delivered=1)
    assert len(receiver.received) == 2
    assert len(set(receiver.ids)) == 1


async def test_two_that_deliver_at_once_send_each_message_once(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    for _ in range(20):
        await webhooks.send_test(operator, "test", added.endpoint_id)
    done = await asyncio.gather(*(deliver(ledger) for _ in range(3)))
    assert sum(each.delivered for each in done) == 20
    assert len(set(receiver.ids)) == len(receiver.ids) == 20


async def test_a_failure_while_sending_is_a_failure_of_one_round(
    ledger: Ledger, receiver: Receiver, operator: Connection, failpoint: Failpoint
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)

    def fail(_: bytes) -> None:
        raise OSError("away")

    failpoint("outbox.before_mark", fail)
    with pytest.raises(OSError, match="away"):
        await deliver(ledger)
    assert ledger.value("select state from quotas.deliveries") == "pending"


# --- Where messages may go ---------------------------------------------------------------------------------------------

REFUSED_ADDRESSES = [
    ("http://example.com/hook", "the address must begin with https://"),
    ("ftp://example.com/", "the address must begin with https://"),
    ("https:///hook", "the address names no host"),
    ("https://me:secret@example.com/", "the address must not hold a name or password"),
    ("https://example.com/#part", "the address must not have a fragment"),
    ("https://example.com:99999/", "the address is no URL"),
    ("https://exa mple.com/", "no printable URL"),
    *(
        (f"https://{host}/", "the address is private")
        for host in (
            "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
            "[::1]", "[fd00::1]", "[fe80::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "[2002:a00:1::1]",
        )
    ),
]  # fmt: skip


async def test_addresses_that_nothing_may_be_sent_to_are_refused(operator: Connection) -> None:
    for url, line in REFUSED_ADDRESSES:
        with pytest.raises(ActRefused, match=line):
            await webhooks.add_endpoint(operator, "test", url, Rules())
    with pytest.raises(ActRefused, match="kind 'weather' is unknown"):
        await add(operator, "https://example.com/", kinds=["weather"])
    with pytest.raises(ActRefused, match="there is no tenant 't-nobody'"):
        await add(operator, "https://example.com/", tenant_id="t-nobody")


async def test_an_address_is_given_once_and_a_tenant_has_so_many(operator: Connection) -> None:
    for number in range(webhooks.ENDPOINTS_MAX):
        await add(operator, f"https://example.com/{number}")
    with pytest.raises(ActRefused, match="there is an endpoint with this address already"):
        await add(operator, "https://example.com/1")
    with pytest.raises(ActRefused, match="there are 20 endpoints already"):
        await add(operator, "https://example.com/more")


async def test_a_name_that_stands_for_a_private_address_is_refused_when_sending(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    """localhost is a name like any other until it is looked up."""
    added = await webhooks.add_endpoint(operator, "test", f"https://localhost:{receiver.port}/", Rules())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    assert await deliver(ledger, Rules()) == Sent(failed=1)
    assert ledger.value("select last_error from quotas.deliveries") == "the address is private"
    assert receiver.received == []


async def test_a_reservation_that_waits_for_more_than_a_day_is_told_once(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    await add(operator, receiver.url())
    ledger.superuser.execute(
        "insert into quotas.reservations (tenant_id, reservation_id, content_hash, basis, state, budget_ids, group_keys,"
        " window_starts, reserved, posted_under, decided_at, expires_at, ended_at)"
        " select 't-alpha', r, gen_random_uuid(), 'expected', 'awaiting_entry', '{}', '{}', '{}', '{}', '{}', now(), now(),"
        " now() - age from (values ('old', interval '25 hours'), ('young', interval '23 hours')) as v (r, age)"
    )
    assert await deliver(ledger) == Sent(delivered=1)
    assert await deliver(ledger) == Sent()
    kind, data = said(receiver.received[0])
    assert (kind, data["tenant_id"], data["reservation_id"]) == ("reservation.waiting", "t-alpha", "old")


async def test_old_messages_are_forgotten_once_nothing_waits(
    ledger: Ledger, receiver: Receiver, operator: Connection
) -> None:
    added = await add(operator, receiver.url())
    await webhooks.send_test(operator, "test", added.endpoint_id)
    await deliver(ledger)
    ledger.superuser.execute("update quotas.outbox set created_at = now() - interval '91 days'")
    await webhooks.send_test(operator, "test", added.endpoint_id)
    await deliver(ledger)
    assert ledger.value("select count(*) from quotas.outbox") == 1
    assert ledger.value("select count(*) from quotas.deliveries") == 1
