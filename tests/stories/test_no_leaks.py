"""What a tenant sends stands in its rows and letters, and in no log, act or raw usage object."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.replay import packs, send
from tallystick.embedded import EmbeddedBroker
from tests.api.support import bearer, site
from tests.factories import event_bytes, make_event
from tests.stories.test_worker import wait_for
from tests.support.ledger import Ledger
from tests.support.worker import WorkerProcess

SECRET = "the-patient-said-that"

PROMPT = "The patient said: it hurts since Monday"

HOSTILE_USAGE: dict[str, dict[str, Any]] = {
    "a prompt beside the counts": {"prompt": PROMPT},
    "a prompt as the name of a count": {PROMPT: 1},
    "a prompt under a name that holds counts": {"prompt_tokens_details": {"cached_tokens": 0, "text": PROMPT}},
    "a prompt where an enum stands": {"service_tier": PROMPT},
    "a prompt in a list": {"iterations": [{"type": "message", "content": PROMPT}]},
    "a prompt deep down": {"extra": {"a": {"b": [{"c": PROMPT}]}}},
    "a prompt as a number's text": {"cost": PROMPT},
}


@pytest.mark.parametrize("what", HOSTILE_USAGE)
@pytest.mark.parametrize("flavour", ["openai.chat", "anthropic.messages"])
async def test_no_text_of_a_usage_object_is_kept(ledger: Ledger, what: str, flavour: str) -> None:
    """Providers put what they like into the object. Kept are numbers and flags under names, and single words where we know
    that words stand; what has a blank in it is neither.
    """
    usage = (
        {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        if flavour == "openai.chat"
        else {"input_tokens": 100, "output_tokens": 10}
    )
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(make_event("e1", flavour=flavour, usage={**usage, **HOSTILE_USAGE[what]}))
    await ledger.post(
        make_event("e2", flavour=flavour, usage=..., usage_frames=[{**usage, **HOSTILE_USAGE[what]}, usage]),
    )
    kept = ledger.rows("select usage::text from ledger.raw_usage")
    assert all(PROMPT not in text for (text,) in kept)
    assert ledger.value("select count(*) from ledger.entries where reported::text like %s", f"%{PROMPT}%") == 0
    assert kept or ledger.value("select count(*) from ledger.dead_letters") == 2


REFUSALS = {
    "a row that a check refuses": "alter table ledger.entries add constraint no_such check (conversation_id is null) not valid",
    "a trigger that quotes the row": (
        "create function ledger.quote() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = '22000', message = 'cannot take ' || new.conversation_id,"
        " detail = new::text; end $$;"
        " create trigger quote before insert on ledger.entries for each row execute function ledger.quote()"
    ),
    "a trigger that stops everything": (
        "create function ledger.quote() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = 'XX000', message = 'cannot take ' || new.conversation_id,"
        " detail = new::text; end $$;"
        " create trigger quote before insert on ledger.entries for each row execute function ledger.quote()"
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_the_api_tells_and_logs_no_row_of_a_tenant(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The database's own words quote rows; a log, and the answer to somebody else in the same batch, must not."""
    from ledger import api_keys
    from ledger.database import connect

    await ledger.add_price(input="2.00", output="8.00")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        key = await api_keys.create_key(operator, actor="test", source="gateway://eu-1")
    ledger.superuser.execute(REFUSALS[what].encode())
    with caplog.at_level(logging.DEBUG):
        async with site(ledger) as running:
            answer = await running.client.post(
                "/v1/events",
                content=json.dumps(make_event("e1", conversation_id=SECRET)).encode(),
                headers={**bearer(key.token), "content-type": "application/json"},
            )
    said = "\n".join(
        f"{record.getMessage()} {record.exc_text or ''} {record.exc_info or ''}" for record in caplog.records
    )
    assert SECRET not in said
    if what == "a trigger that stops everything":
        assert answer.status_code >= 500
        assert SECRET not in answer.text


@pytest.fixture
def worker(embedded_broker: EmbeddedBroker, ledger: Ledger, tmp_path: Path) -> Iterator[Callable[[], WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        started.append(
            WorkerProcess(
                tmp_path,
                writer_url=ledger.database.url_for("tallystick_writer"),
                bootstrap=embedded_broker.bootstrap,
                topic="usage-leaks",
                group=f"leaks-{ledger.database.name}",
                session_seconds=3.0,
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()


async def test_a_worker_that_fails_logs_no_row_of_a_tenant(
    ledger: Ledger, embedded_broker: EmbeddedBroker, worker: Callable[[], WorkerProcess]
) -> None:
    """One event is refused and set aside; then the database refuses everything, and the worker ends: it names the error."""
    await ledger.add_price(input="2.00", output="8.00")
    embedded_broker.create_topic("usage-leaks", 1)
    ledger.superuser.execute(REFUSALS["a row that a check refuses"].encode())
    running = worker()
    send(embedded_broker.bootstrap, "usage-leaks", packs([event_bytes(make_event("e1", conversation_id=SECRET))], 1))
    wait_for(lambda: bool(ledger.value("select count(*) from ledger.dead_letters")), 60, running)
    ledger.superuser.execute(REFUSALS["a trigger that stops everything"].encode())
    send(embedded_broker.bootstrap, "usage-leaks", packs([event_bytes(make_event("e2", conversation_id=SECRET))], 1))
    wait_for(lambda: running.process.poll() is not None, 60, running)
    assert "XX000" in running.said
    assert "no_such" in running.said
    assert SECRET not in running.said
