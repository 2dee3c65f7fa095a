"""Windows of GPU nodes: kept once, never over each other, under the chain; they make no entries."""

import asyncio
import json
from typing import Any

import psycopg
import pytest

from ingest.usage_events import Speaker
from ledger import chain
from tallystick.verify import verify
from tests.factories import GATEWAY, NODE, TENANT, make_event, make_window
from tests.support.databases import Database
from tests.support.ledger import Ledger


def spans(ledger: Ledger) -> list[tuple[Any, ...]]:
    return ledger.rows(
        "select node_id, to_char(starts_at, 'HH24:MI'), to_char(ends_at, 'HH24:MI') from ledger.node_windows order by 1, 2"
    )


async def test_a_window_is_kept_as_it_was_said_and_makes_no_entry(ledger: Ledger) -> None:
    posted = await ledger.post(make_window(gpu_model='H100 "SXM"\\', energy_joules=2_520_000, busy_ms=59_900))
    assert ledger.outcomes(posted) == ["created"]
    ((tenant, source, node, body, batch),) = ledger.rows(
        "select tenant_id, source, node_id, body, batch_id from ledger.node_windows"
    )
    assert (tenant, source, node, batch) == (TENANT, NODE, "gpu-7", posted.batch_id)
    assert (body["gpu_model"], body["gpu_count"], body["energy_joules"]) == ('H100 "SXM"\\', 8, 2_520_000)
    assert ledger.value("select count(*) from ledger.entries") == 0
    assert ledger.rows("select created_count, entry_count, hash_version from ledger.batches") == [(1, 0, 2)]


async def test_sent_again_a_window_is_a_duplicate_and_otherwise_a_conflict(ledger: Ledger) -> None:
    """The same in other words, an offset and the order of fields, is the same."""
    await ledger.post(make_window())
    again = make_window(starts_at="2026-01-15T10:59:00+01:00")
    again["data"] = dict(reversed(again["data"].items()))
    assert ledger.outcomes(await ledger.post(again)) == ["duplicate"]
    posted = await ledger.post(make_window(gpu_count=7))
    assert ledger.outcomes(posted) == ["conflict"]
    assert ledger.rows("select reason, source, event_id from ledger.dead_letters") == [("conflict", NODE, "w-1")]
    assert spans(ledger) == [("gpu-7", "09:59", "10:00")]


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize(
    ("start", "end", "outcome"),
    [
        ("09:58:00", "09:59:00", "created"),
        ("09:58:00", "09:59:00.000001", "dead_letter"),
        ("09:59:59.999999", "10:00:30", "dead_letter"),
        ("10:00:00", "10:00:30", "created"),
        ("09:59:20", "09:59:40", "dead_letter"),
        ("09:00:00", "10:00:30", "dead_letter"),
    ],
)
async def test_windows_of_a_node_never_overlap(
    ledger: Ledger, start: str, end: str, outcome: str, in_one_batch: bool
) -> None:
    """Half-open: what ends as another begins is beside it. What would be paid twice is set aside, with its bytes and why."""
    first = make_window()
    second = make_window("w-2", starts_at=f"2026-01-15T{start}Z", ends_at=f"2026-01-15T{end}Z")
    other = make_window("w-3", node_id="gpu-8", starts_at=f"2026-01-15T{start}Z", ends_at=f"2026-01-15T{end}Z")
    if in_one_batch:
        results = (await ledger.post(first, second, other)).results[1:]
    else:
        await ledger.post(first)
        results = (await ledger.post(second, other)).results
    assert [result.outcome for result in results] == [outcome, "created"]
    if outcome == "dead_letter":
        assert results[0].reason == "window_overlaps"
        assert results[0].detail == (
            "data: node gpu-7 has reported 2026-01-15T09:59:00+00:00 to 2026-01-15T10:00:00+00:00 already"
        )
        assert [json.loads(row[0])["id"] for row in ledger.rows("select bytes from ledger.dead_letters")] == ["w-2"]


async def test_two_feeds_cannot_both_report_one_minute(ledger: Ledger) -> None:
    """Ten at once, over ten feeds and two sources, each with an id of its own: one is kept."""
    ledger.add_node("node://other")
    sources = (NODE, "node://other")
    posted = await asyncio.gather(
        *(ledger.post({**make_window(f"w-{n}"), "source": sources[n % 2]}, feed=f"file:{n}") for n in range(10))
    )
    outcomes = sorted(each.results[0].outcome for each in posted)
    assert outcomes == ["created", *["dead_letter"] * 9]
    assert spans(ledger) == [("gpu-7", "09:59", "10:00")]


async def test_only_a_node_of_the_owner_reports_its_window(ledger: Ledger) -> None:
    """A customer's key could otherwise take a node's time and have the idle hours of others on its name."""
    ledger.add_tenant("t-beta").add_source("node://theirs", kind="node", tenants=["t-beta"])
    refused = await ledger.post(
        {**make_window("w-1"), "source": GATEWAY},
        {**make_window("w-2"), "source": "node://theirs"},
        {**make_window("w-3"), "source": "node://nobody"},
        make_window("w-4", tenant_id="t-nobody"),
    )
    assert [result.reason for result in refused.results] == [
        "source_may_not_speak", "source_may_not_speak", "unknown_source", "unknown_tenant",
    ]  # fmt: skip
    own = await ledger.post(make_window("w-5"), speaker=Speaker(tenant_id=TENANT))
    assert [(r.outcome, r.reason) for r in own.results] == [("dead_letter", "source_may_not_speak")]
    assert spans(ledger) == []


async def test_a_window_beside_usage_in_one_batch_leaves_the_usage_alone(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    posted = await ledger.post(make_event("e-1"), make_window(), make_event("e-2"), make_window("w-2"))
    assert ledger.outcomes(posted) == ["created", "created", "created", "dead_letter"]
    assert ledger.value("select count(*) from ledger.entries") == 2
    assert verify(ledger.database.url_for("tallystick_operator")).ok


async def test_a_batch_of_usage_alone_hashes_as_it_always_did(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(make_event())
    assert ledger.rows("select hash_version, windows_digest from ledger.batches") == [(chain.HASH_VERSION, None)]


ATTACKS = {
    "a window that ends later": "update ledger.node_windows set ends_at = ends_at + interval '1 second'",
    "one GPU less": "update ledger.node_windows set body = jsonb_set(body, '{gpu_count}', '7')",
    "a window gone": "delete from ledger.node_windows where event_key = (select min(event_key::text)::uuid from ledger.node_windows)",
    "all windows gone": "delete from ledger.node_windows",
    "a window of another batch": "update ledger.node_windows set batch_id = batch_id + 1",
    "a digest made to fit": "update ledger.batches set windows_digest = sha256('other')",
    "a digest taken away": "update ledger.batches set windows_digest = null",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_the_chain_shows_what_was_done_to_windows(ledger: Ledger, attack: str) -> None:
    """By a superuser who switches the triggers off."""
    await ledger.post(make_window(), make_window("w-2", node_id="gpu-8"))
    url = ledger.database.url_for("tallystick_operator")
    assert verify(url).ok
    with pytest.raises(psycopg.Error):
        ledger.superuser.execute(ATTACKS[attack].encode())
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute(ATTACKS[attack].encode())
    assert "chain" in {failure.part for failure in verify(url).failures}


def test_a_batch_with_windows_says_so_under_its_hash() -> None:
    """Golden: version 2 is version 1 with the digest of the windows as its last line."""
    from hashlib import sha256

    made = chain.batch_hash(
        feed="api:a", number=1, previous_hash=b"", first_position=None, next_position=None, counts={}, digests={},
        windows=b"\xcc",
    )  # fmt: skip
    assert made == sha256(b"version 2\nfeed api:a\nnumber 1\nprevious \npositions - -\nwindows cc\n").digest()


# --- Rights -----------------------------------------------------------------------------------------------------------


def test_nodes_are_the_platforms_and_no_tenants_reader_sees_one(database: Database) -> None:
    with database.connect() as connection:
        rights = dict(
            connection.execute(
                "select r, has_table_privilege(r, 'ledger.node_windows', 'select') from unnest(array["
                "'tallystick_reader', 'tallystick_api', 'tallystick_analyst', 'tallystick_billing', 'tallystick_rollup',"
                " 'tallystick_operator', 'tallystick_writer']) as r"
            ).fetchall()
        )
        policies = connection.execute(
            "select distinct unnest(roles)::text from pg_policies where tablename = 'node_windows'"
        ).fetchall()
        secured = connection.execute(
            "select relrowsecurity from pg_class where oid = 'ledger.node_windows'::regclass"
        ).fetchone()
    assert not rights.pop("tallystick_reader")
    assert not rights.pop("tallystick_api")
    assert all(rights.values())
    # The writer passes by row-level security, which COPY refuses to run under.
    assert {role for (role,) in policies} == rights.keys() - {"tallystick_writer"}
    assert secured == (True,)


@pytest.mark.parametrize("role", ["writer", "operator", "rollup", "analyst"])
async def test_nobody_changes_a_window_or_a_rate(ledger: Ledger, role: str) -> None:
    await ledger.post(make_window())
    with ledger.database.connect(f"tallystick_{role}") as connection:
        for statement in (
            "update ledger.node_windows set node_id = 'x'", "delete from ledger.node_windows",
            "truncate ledger.node_windows", "update ledger.node_rates set hourly_price = 1",
            "delete from ledger.node_rates",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement.encode())
