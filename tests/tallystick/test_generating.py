"""`tallystick generate`: synthetic usage over the real road, exactly as much as asked for."""

import time

import pytest

from ledger.times import parse_rfc3339
from tallystick.commands.common import now
from tallystick.generating import Generated, GenerateError, fill, plan_of
from tallystick.roles import WRITER
from tallystick.verify import verify
from tests.tallystick.commands import Commands

SPAN = ("--since", "2026-10-12", "--until", "2026-10-26T00:00:00Z")
FEW = ("--entries", "1500", "--tenants", "6", *SPAN)


def count(commands: Commands, what: str = "count(*)") -> str:
    return commands.json("sql", f"select {what} as found from entries")[0]["found"]


def test_exactly_so_many_entries_are_posted_priced_and_proven(commands: Commands) -> None:
    done = commands.json("generate", *FEW)
    assert (done["events"], done["resumed_at"], done["outcomes"]) == (1500, 0, {"created": 1500})
    assert done["feed"].startswith("synthetic:seed=1 ")
    found = commands.json(
        "sql",
        "select count(*) as entries, count(distinct tenant_id) as tenants, min(source) as source, max(source) as last,"
        " count(*) filter (where charge_amount is null and status <> 'error') as unpriced,"
        " min(posting_period)::text as first_month, max(posting_period)::text as last_month from entries",
    )[0]
    assert found == {
        "entries": 1500, "tenants": 6, "source": "synthetic://servegen", "last": "synthetic://servegen",
        # The months of a past span are kept open for it: what happened in October is billed in October.
        "unpriced": 0, "first_month": "2026-10-01", "last_month": "2026-10-01",
    }  # fmt: skip
    proof = verify(commands.database.url)
    assert proof.failures == []
    assert proof.checked["entries"] == 1500


def test_the_same_command_again_posts_nothing(commands: Commands) -> None:
    commands.ok("generate", *FEW)
    again = commands.json("generate", *FEW)
    assert (again["resumed_at"], again["outcomes"]) == (1500, {})
    assert count(commands) == 1500


def test_what_was_interrupted_is_gone_on_with(commands: Commands) -> None:
    """Stopped after its third batch: the next run begins there, and no event is posted twice or left out."""
    commands.ok("generate", "--entries", "1", "--tenants", "6", *SPAN, "--seed", "other")
    plan = plan_of(
        seed="1",
        entries=1500,
        since=parse_rfc3339("2026-10-12T00:00:00Z"),
        until=parse_rfc3339("2026-10-26T00:00:00Z"),
        tenants=6,
        now=now(),
    )
    seen: list[int] = []

    def stop_after_three(events: int) -> None:
        seen.append(events)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(commands.database.url_for(WRITER), plan, on_start=lambda done, total: None, on_events=stop_after_three)
    done = commands.json("generate", *FEW)
    assert sum(seen) <= done["resumed_at"] < 1500
    assert done["outcomes"] == {"created": 1500 - done["resumed_at"]}
    assert count(commands) == 1501


def test_feeds_beside_each_other_post_the_same_entries(commands: Commands) -> None:
    done = commands.json("generate", *FEW, "--feeds", "2")
    assert done["outcomes"] == {"created": 1500}
    assert commands.json("generate", *FEW, "--feeds", "2")["resumed_at"] == 1500
    # In one feed they are the same events, so there is nothing in them that is new.
    assert commands.json("generate", *FEW)["outcomes"] == {"duplicate": 1500}
    assert count(commands) == 1500


def test_more_tenants_may_come_later(commands: Commands) -> None:
    commands.ok("generate", "--entries", "200", "--tenants", "2", *SPAN)
    commands.ok("generate", "--entries", "200", "--tenants", "5", *SPAN)
    assert count(commands) == 400
    # Of 76 by volume: nos. 0 and 38, then nos. 0, 15, 30, 45 and 60.
    assert len(commands.json("sql", "select tenant_id from tenants")) == 6


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--until", "2199-01-01"),
            "--until must not be in the future: a gateway reports calls that have ended",
        ),
        (("--since", "2026-10-26", "--until", "2026-10-26"), "--until must be after the beginning"),
        (("--until", "soon"), "--until: 'soon' is neither a date such as 2026-12-31 nor a time such as 2026-12-31T00:00:00Z"),
        (("--tenants", "77"), "--tenants must be from 1 to 76"),
        (("--seed", " "), "--seed must not be empty"),
        (("--until", "2020-01-14"), "they must not begin before 2020-01-01: no earlier call is accepted"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(commands: Commands, arguments: tuple[str, ...], line: str) -> None:
    assert commands("generate", "--entries", "10", *arguments).line == line


def test_what_did_not_become_an_entry_is_said(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may be told of ten entries where three are dead letters."""
    done = Generated("f", 10, 0, 1.0, {"created": 7, "dead_letter": 3})
    monkeypatch.setattr("tallystick.generating.fill", lambda *arguments, **options: done)
    line = commands("generate", "--entries", "10", "--tenants", "1", *SPAN).line
    assert line == "not every event became an entry (dead_letter: 3): `tallystick dead-letters list` says why"


def test_usage_before_a_tenants_beginning_is_refused(commands: Commands) -> None:
    commands.ok("generate", "--entries", "10", "--tenants", "1", *SPAN)
    line = commands(
        "generate", "--entries", "10", "--tenants", "1", "--since", "2026-09-01", "--until", "2026-10-01"
    ).line
    assert "begins at 2026-" in line
    assert "a database keeps the beginning that its first run gave it" in line


def test_the_default_ends_with_the_last_full_hour(commands: Commands) -> None:
    commands.ok("generate", "--entries", "50", "--tenants", "3", "--days", "1")
    hour = time.time() // 3600 * 3600
    last = commands.json("sql", "select extract(epoch from max(occurred_at))::text as at from entries")[0]["at"]
    assert hour - 86_400 <= float(last) < hour + 3600


def test_refusals_are_of_one_kind() -> None:
    with pytest.raises(GenerateError):
        plan_of(seed="1", entries=1, since=2, until=1, now=3)
