"""What arrived is checked by Great Expectations; each expectation holds on sound data, fails on planted data, and says when it broke."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer

from ledger import check_runs
from ledger.check_runs import CheckResult
from ledger.corrections import Request, Reverse, Wanted, correct
from ledger.database import connect
from ledger.periods import ensure_partitions, ensure_periods
from ledger.posting import Posted
from ledger.sequences import take_sequences
from tallystick import checks
from tallystick.check_words import percent
from tallystick.checks import CheckReport, ChecksMissing, NothingToCheck, run_checks
from tallystick.cli import app
from tallystick.expectations import BadExpectations, Expectation, Expectations, read_expectations
from tallystick.rollup import run_rollup
from tallystick.scheduler import jobs
from tallystick.settings import Settings
from tests.factories import NODE, make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands, Ran

NOW = datetime.now(UTC)
EXPECTED = read_expectations()
NAMES = [each.name for each in EXPECTED.listed]


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    made = Ledger(database)
    first = (NOW - timedelta(days=62)).date().replace(day=1)
    made.add_tenant(first_period=first, months=8).add_source().add_node()
    await made.add_price(input="2.00", output="8.00")
    yield made
    made.close()


async def post(ledger: Ledger, *events: dict[str, Any], minutes_ago: float = 1) -> Posted:
    """Post events that ended a moment ago, unless they say otherwise."""
    at = (datetime.now(UTC) - timedelta(minutes=minutes_ago)).isoformat()
    for event in events:
        if event["time"] == "2026-01-15T10:00:00Z":
            event["time"] = at
    return await ledger.post(*events, received_at=datetime.now(UTC).isoformat())


def some(count: int, name: str = "ev", **what: Any) -> list[dict[str, Any]]:
    return [make_event(f"{name}-{number}", **what) for number in range(count)]


async def post_last_week(ledger: Ledger, count: int = 600, **what: Any) -> None:
    """Post events that ended and arrived a week and an hour ago."""
    newest = ledger.value("select coalesce(max(batch_id), 0) from ledger.batches")
    await post(ledger, *some(count, "old", **what), minutes_ago=6 * 24 * 60)
    # Its guards forbid it, also to a superuser who does not switch them off.
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute(
        "update ledger.batches set recorded_at = recorded_at - interval '7 days 1 hour' where batch_id > %s", [newest]
    )
    ledger.superuser.execute("set session_replication_role = origin")


def check(ledger: Ledger, *names: str, **options: Any) -> CheckReport:
    """Check everything, or only expectations of these names, which takes a third of the time."""
    if names:
        options["expectations"] = only(*names)
    return run_checks(ledger.database.url_for("tallystick_analyst"), **options)


def only(*names: str) -> Expectations:
    listed = tuple(each for each in EXPECTED.listed if each.name in names)
    assert {each.name for each in listed} == set(names)
    return Expectations(EXPECTED.limits, listed)


async def ask(commands: Commands, *arguments: str) -> Ran:
    """Run a command beside the loop of the test, since it makes one of its own."""
    return await asyncio.to_thread(commands, "check", *arguments)


def found(report: CheckReport) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in report.findings]


def said(report: CheckReport, name: str) -> str:
    [text] = [finding.text for finding in report.findings if finding.check == name]
    return text


def of(report: CheckReport, name: str, subject: str = "") -> CheckResult:
    [result] = [each for each in report.results if (each.expectation, each.subject) == (name, subject)]
    return result


# --- Each expectation -------------------------------------------------------------------------------------------------


@pytest.mark.marts
async def test_each_expectation_holds_on_sound_data(ledger: Ledger, dbt_home: Path) -> None:
    """600 requests last week in these hours and 590 now: all can be judged, and all hold."""
    await post_last_week(ledger, lane="batch", tags={"team": "x"})
    await post(ledger, *some(590, lane="batch", tags={"team": "x"}))
    run_rollup(ledger.database.url_for("tallystick_rollup"), dbt_home)
    report = check(ledger)
    assert found(report) == []
    assert {each.outcome for each in report.results} == {"passed"}
    assert {each.expectation for each in report.results} == set(NAMES)
    volume = of(report, "volume", "gateway://eu-1")
    assert (volume.observed, volume.sample_count, volume.kind) == (Decimal("0.983333333"), 600, "source")
    assert report.requests == 590
    assert not report.failed


Plant = Callable[[Ledger], Awaitable[Any]]
PLANTS: dict[str, tuple[Plant, str, str, Decimal | None]] = {}
"""By expectation: what makes it fail, how, about what, and the number that it must say."""


def plant(name: str, severity: str, number: str | None, subject: str = "") -> Callable[[Plant], Plant]:
    def keep(function: Plant) -> Plant:
        PLANTS[name] = (function, severity, subject, None if number is None else Decimal(number))
        return function

    return keep


@plant("volume", "fail", "0.01", "gateway://eu-1")
async def _a_sender_falls_silent(ledger: Ledger) -> None:
    await post_last_week(ledger, 1000)
    await post(ledger, *some(10))


@plant("silence", "warn", "0")
async def _nothing_arrives(ledger: Ledger) -> None:
    pass


@plant("delay", "warn", "0.1")
async def _two_of_twenty_are_late(ledger: Ledger) -> None:
    await post(ledger, *some(18))
    await post(ledger, *some(2, "late"), minutes_ago=90)


@plant("delay_p95", "warn", None)
async def _a_tenth_comes_after_twenty_minutes(ledger: Ledger) -> None:
    await post(ledger, *some(90))
    await post(ledger, *some(10, "slow"), minutes_ago=20)


@plant("clocks", "warn", "1")
async def _a_clock_is_ahead(ledger: Ledger) -> None:
    await post(ledger, make_event("ahead"), minutes_ago=-4)


@plant("feature", "warn", "0.2")
async def _two_of_ten_say_no_feature(ledger: Ledger) -> None:
    await post(ledger, *some(8), *some(2, "x", feature=...))


@plant("language", "warn", "0.2")
async def _two_of_ten_have_no_known_language(ledger: Ledger) -> None:
    await post(ledger, *some(8), make_event("a", language=...), make_event("b", language="not a language"))


@plant("unpriced", "fail", "0.02")
async def _two_of_a_hundred_have_no_price(ledger: Ledger) -> None:
    await post(ledger, *some(98), *some(2, "x", model="m-x"))


@plant("usage_missing", "fail", "0.02")
async def _two_of_a_hundred_have_no_usage(ledger: Ledger) -> None:
    await post(ledger, *some(98), *some(2, "x", usage=...))


@plant("estimated", "warn", "0.15")
async def _three_of_twenty_are_estimates(ledger: Ledger) -> None:
    await post(ledger, *some(17), *some(3, "x", basis="estimated"))


@plant("flagged", "warn", "0.05")
async def _one_of_twenty_does_not_add_up(ledger: Ledger) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 150}
    await post(ledger, *some(19), make_event("x", usage=usage))


@plant("duplicates", "warn", "0.666666667")
async def _everything_is_sent_three_times(ledger: Ledger) -> None:
    events = some(10)
    for _ in range(3):
        await post(ledger, *events)


@plant("conflicts", "warn", "0.1")
async def _an_identity_comes_with_other_content(ledger: Ledger) -> None:
    await post(ledger, *some(9))
    await post(ledger, make_event("ev-0", usage={"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}))


@plant("dead_letters", "fail", "0.02")
async def _two_of_a_hundred_cannot_be_posted(ledger: Ledger) -> None:
    await post(ledger, *some(98), *some(2, "x", tenant_id="t-nobody"))


@plant("dead_letters_by_reason", "warn", "0.01", "unknown_flavour")
async def _one_of_a_hundred_has_a_new_flavour(ledger: Ledger) -> None:
    await post(ledger, *some(99), make_event("x", flavour="nobody.knows"))


@plant("dead_letters_by_source", "warn", "0.1", NODE)
async def _a_small_sender_fails(ledger: Ledger) -> None:
    """5 of the node's 50, and 5 of all 545."""
    await post(ledger, *some(495))
    await post(ledger, *some(45, "n", source=NODE), *some(5, "m", source=NODE, flavour="nobody.knows"))


@plant("model_mix", "warn", "1", "model")
async def _another_model_answers(ledger: Ledger) -> None:
    await ledger.add_price(model="m-other", input="2.00", output="8.00")
    await post_last_week(ledger, 200)
    await post(ledger, *some(100, model="m-other"))


@plant("new_models", "warn", "1")
async def _a_model_was_never_seen(ledger: Ledger) -> None:
    await ledger.add_price(model="m-other", input="2.00", output="8.00")
    await post_last_week(ledger, 100)
    await post(ledger, *some(20), make_event("x", model="m-other"))


@plant("new_tag_keys", "warn", "1")
async def _a_key_of_tags_is_misspelt(ledger: Ledger) -> None:
    await post_last_week(ledger, 100, tags={"team": "search"})
    await post(ledger, *some(20, tags={"team": "search"}), make_event("x", tags={"taem": "search"}))


@plant("letters_waiting", "warn", "1")
async def _nobody_looks_after_a_letter(ledger: Ledger) -> None:
    await _a_letter_waits(ledger, 1.1, None)


@plant("letters_age", "fail", None)
async def _a_letter_waits_for_over_a_week(ledger: Ledger) -> None:
    await _a_letter_waits(ledger, 168.1, "bea")


async def _a_letter_waits(ledger: Ledger, hours: float, owner: str | None) -> None:
    await post(ledger, *some(10), make_event("x", tenant_id="t-nobody"))
    at = datetime.now(UTC) - timedelta(hours=hours)
    ledger.superuser.execute("update ledger.dead_letters set first_at = %s, owner = %s", [at, owner])


@plant("gaps", "warn", "3")
async def _three_numbers_never_came(ledger: Ledger) -> None:
    await post(ledger, *(make_event(f"s-{number}", sequence=number) for number in (1, 2, 6)))
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        await take_sequences(connection)
    ledger.superuser.execute("update ledger.sequence_gaps set noted_at = noted_at - interval '16 minutes'")


@plant("canary", "fail", "2")
async def _the_canary_fails_twice(ledger: Ledger) -> None:
    await post(ledger, make_event())
    ledger.superuser.execute(
        "insert into ledger.canary_beats (road, every_seconds, event_id, failure)"
        " values ('http', 60, 'a', 'no answer'), ('http', 60, 'b', 'no answer')"
    )


@plant("months_ahead", "fail", "1")
async def _the_next_month_is_not_made(ledger: Ledger) -> None:
    following = (NOW.date().replace(day=1) + timedelta(days=32)).replace(day=1)
    ledger.superuser.execute("delete from ledger.periods where posting_period = %s", [following])


async def _proved(ledger: Ledger, seconds_ago: int, differences: int) -> None:
    ledger.superuser.execute(
        "insert into ledger.proofs (kind, started_at, ended_at, every_seconds, up_to, difference_count, differences, notes)"
        " values ('standing', now(), now() - make_interval(secs => %s), 60, '{}', %s, '[]', '[]')",
        [seconds_ago, differences],
    )


@plant("proofs", "fail", "2")
async def _a_proof_differs(ledger: Ledger) -> None:
    await _proved(ledger, 0, 2)


@plant("proofs_missed", "warn", "1")
async def _no_proof_for_five_minutes(ledger: Ledger) -> None:
    """It comes each minute; three of its pauses and a minute make four minutes."""
    await _proved(ledger, 300, 0)


def test_each_expectation_has_data_that_make_it_fail() -> None:
    assert sorted(PLANTS) == sorted(NAMES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.marts] if name == "model_mix" else []) for name in NAMES]
)
async def test_each_expectation_fails_on_planted_data(ledger: Ledger, dbt_home: Path, name: str) -> None:
    planted, severity, subject, number = PLANTS[name]
    await planted(ledger)
    if name == "model_mix":
        run_rollup(ledger.database.url_for("tallystick_rollup"), dbt_home)
    report = check(ledger, name)
    result = of(report, name, subject)
    assert (result.outcome, result.severity) == ("failed", severity)
    assert number is None or result.observed == number
    assert severity in {how for how, check in found(report) if check == name}
    # The bound that it broke, and what to do, stand beside it.
    assert result.why
    assert result.act
    assert (result.least is not None and result.observed < result.least) or (
        result.most is not None and result.observed > result.most
    )


@pytest.mark.parametrize("each", EXPECTED.listed, ids=lambda each: each.name)
def test_what_to_do_names_commands_and_options_that_are_there(each: Expectation) -> None:
    for words in re.findall(r"`tallystick ([^`]+)`", each.act):
        command: Any = typer.main.get_command(app)
        path, _, options = words.partition(" --")
        for name in path.split():
            command = command.commands[name]
        known = {name for parameter in command.params for name in parameter.opts}
        assert not options or f"--{options.split()[0]}" in known, words


def _suites() -> list[str]:
    return list(dict.fromkeys(each.suite for each in EXPECTED.listed))


async def test_a_statement_that_cannot_run_is_told_from_bad_data(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file raises in turn: all of its expectations are broken, whose data may be in order, and no other one's."""
    await post(ledger, *some(60))
    kept = checks.statement_of
    for suite in _suites():
        monkeypatch.setattr(
            checks, "statement_of", lambda name, broken=suite: "select 1 / 0" if name == broken else kept(name)
        )
        report = check(ledger)
        broken = {each.expectation for each in report.results if each.outcome == "broken"}
        assert broken == {each.name for each in EXPECTED.listed if each.suite == suite}
        assert {each.fault for each in report.results if each.outcome == "broken"} == {
            "Postgres says 22012 (DivisionByZero)"
        }
        assert report.failed
        assert ("fail", "broken") in found(report)


async def test_a_column_that_is_not_there_is_a_broken_check(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Great Expectations calls it a failed expectation; here it is the check that failed."""
    await post(ledger, *some(60))
    kept = checks._asset

    def without_a_column(scope: Any, suite: str, listed: Any) -> str:
        return kept(scope, suite, listed).replace("as unpriced_fail", "as something_else")

    monkeypatch.setattr(checks, "_asset", without_a_column)
    report = check(ledger)
    assert [each.expectation for each in report.results if each.outcome == "broken"] == ["unpriced"]
    assert "the check unpriced itself could not run, so nothing is known about it" in said(report, "broken")
    assert report.failed


async def test_a_query_that_fails_for_great_expectations_alone_is_not_said_to_lack_a_column(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the file a second time, and may be cancelled then."""
    await post(ledger, *some(60))
    kept = checks._asset
    monkeypatch.setattr(
        checks, "_asset", lambda *which: kept(*which).replace("as unpriced_fail", "/ 0 as unpriced_fail")
    )
    broken = [each for each in check(ledger).results if each.outcome == "broken"]
    assert {each.expectation for each in broken} == {each.name for each in EXPECTED.listed if each.suite == "requests"}
    assert {each.fault for each in broken} == {
        "Great Expectations could not try it; perhaps the file has no such column"
    }


# --- Too little to say ------------------------------------------------------------------------------------------------


async def test_a_quiet_sunday_is_no_alarm_and_no_pass_either(ledger: Ledger) -> None:
    """Ninety-nine last week and none now: a hundred are needed before silence of a sender is said."""
    await post_last_week(ledger, 99)
    await post(ledger, make_event("n", source=NODE))
    result = of(check(ledger, "volume"), "volume", "gateway://eu-1")
    assert (result.outcome, result.observed, result.sample_count, result.sample_min) == ("unknown", 0, 99, 100)


async def test_without_a_week_behind_it_what_needs_one_is_unknown(ledger: Ledger) -> None:
    await post(ledger, *some(200))
    report = check(ledger)
    unknown = {each.expectation for each in report.results if each.outcome == "unknown"}
    assert unknown == {"volume", "model_mix", "new_models", "new_tag_keys"}
    assert found(report) == []


@pytest.mark.parametrize(("count", "severity"), [(49, "warn"), (50, "fail")])
async def test_one_of_few_warns_where_one_of_many_fails(ledger: Ledger, count: int, severity: str) -> None:
    """2 of 49 are 4 %, and so are 2 of 50: a share fails from fifty requests on, and warns from the first."""
    await post(ledger, *some(count - 2), *some(2, "x", model="m-x"))
    assert of(check(ledger, "unpriced"), "unpriced").severity == severity


# --- What people are told ---------------------------------------------------------------------------------------------


async def test_an_unpriced_request_is_named_with_its_model_and_share(ledger: Ledger) -> None:
    """2 of 400 are 0.50 %, below the one percent that fails."""
    await post(ledger, *some(398), *some(2, "x", model="m-x"))
    report = check(ledger)
    assert found(report) == [("warn", "unpriced")]
    assert said(report, "unpriced") == (
        "0.50 % of requests have no price (400 in all; none is expected); m-x of openai (unknown_model) (2)"
    )
    assert not report.failed


async def test_a_report_without_a_price_that_was_replaced_by_a_priced_one_is_not_unpriced(ledger: Ledger) -> None:
    await post(ledger, make_event("n", source=NODE, request_id="r", model="m-nobody-knows"))
    await post(ledger, make_event("g", request_id="r"))
    assert found(check(ledger)) == []


async def test_many_unpriced_models_are_counted_and_not_all_named(ledger: Ledger) -> None:
    await post(ledger, *(make_event(f"x-{number}", model=f"m-x{number % 7}") for number in range(20)))
    text = said(check(ledger, "unpriced"), "unpriced")
    assert "m-x0 of openai (unknown_model) (3)" in text
    assert text.endswith("2 more")


async def test_a_sender_that_is_worse_than_the_rest_is_named(ledger: Ledger) -> None:
    """10 of the node's 60 have no usage, 14 % of all 70; the gateway's ten are whole."""
    await post(ledger, *some(10), *some(50, "n", source=NODE), *some(10, "m", source=NODE, usage=...))
    report = check(ledger, "usage_missing")
    assert of(report, "usage_missing", "gateway://eu-1").outcome == "passed"
    assert of(report, "usage_missing", NODE).severity == "fail"
    assert said(report, "usage_missing") == (
        f"14 % of requests came without usage (70 in all; at most 1.0 %); 17 % of 60 at {NODE}"
    )


@pytest.mark.marts
async def test_what_moved_is_named_in_words_of_the_catalogue_and_not_of_a_tenant(
    ledger: Ledger, dbt_home: Path
) -> None:
    await post_last_week(ledger, 200)
    await post(ledger, *some(100, feature="secret-project", language="de"))
    run_rollup(ledger.database.url_for("tallystick_rollup"), dbt_home)
    report = check(ledger, "model_mix")
    text = said(report, "model_mix")
    assert "language de: 0.00 % before, 100 % now" in text
    assert of(report, "model_mix", "feature").outcome == "failed"
    assert "secret-project" not in text


@pytest.mark.parametrize(
    ("hours", "owner", "severity"),
    [
        (0.9, None, None),
        (1.1, None, "warn"),
        (1.1, "bea", None),
        (23.9, "bea", None),
        (24.1, "bea", "warn"),
        (167.9, "bea", "warn"),
        (168.1, "bea", "fail"),
    ],
)
async def test_a_letter_that_waits_for_long_is_said_again(
    ledger: Ledger, hours: float, owner: str | None, severity: str | None
) -> None:
    """Whenever it arrived: a day with an owner, an hour without one, a week at most."""
    await _a_letter_waits(ledger, hours, owner)
    waiting = ("letters_waiting", "letters_age")
    assert {how for how, _ in found(check(ledger, *waiting))} == ({severity} if severity else set())
    ledger.superuser.execute("update ledger.dead_letters set resolved_at = now()")
    assert found(check(ledger, *waiting)) == []


async def test_numbers_that_never_came_are_said_once_they_are_not_merely_late(ledger: Ledger) -> None:
    """A counter at 1, 2 and 6: three numbers, of which 4 lies in a dead letter."""
    await post(ledger, *(make_event(f"s-{number}", sequence=number) for number in (1, 2, 6)))
    await post(ledger, make_event("s-4", sequence=4, tenant_id="t-nobody"))
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        await take_sequences(connection)
    assert found(check(ledger, "gaps")) == []
    later = check(ledger, "gaps", now=datetime.now(UTC) + timedelta(minutes=16))
    assert said(later, "gaps") == "2: events counted by a sender never came (none is expected); gateway://eu-1 (2)"


async def test_what_is_taken_back_had_arrived_all_the_same(ledger: Ledger) -> None:
    """Twenty arrive, and thirty of last week are reversed: as a sum there are ten fewer than none."""
    await post_last_week(ledger, 100)
    await post(ledger, *some(20))
    async with await connect(ledger.database.url_for("tallystick_writer")) as writer:
        for number in range(30):
            wanted = Wanted(Reverse(Request("t-alpha", f"req-old-{number}")))
            await correct(writer, wanted, actor="ada", reason="sent to the wrong tenant")
    report = check(ledger, "silence", "volume", "unpriced")
    assert found(report) == []
    assert report.requests == 20
    assert of(report, "volume").observed == Decimal("0.2")
    assert of(report, "unpriced").outcome == "passed"


async def test_batches_before_the_hours_are_out_of_scope(ledger: Ledger) -> None:
    await post(ledger, make_event("x", model="m-x"))
    assert check(ledger, now=datetime.now(UTC) + timedelta(hours=25)).requests == 0


async def test_a_month_that_is_not_prepared_is_a_fault_before_it_begins(ledger: Ledger) -> None:
    """The next month lacks a period of one tenant, then of two, then its partition; the one after next may wait."""
    ledger.add_tenant("t-beta", first_period=NOW.date().replace(day=1), months=8)
    await post(ledger, make_event("a"))
    following = (NOW.date().replace(day=1) + timedelta(days=32)).replace(day=1)
    later = (following + timedelta(days=32)).replace(day=1)
    remove = "delete from ledger.periods where posting_period = %s and tenant_id = any(%s)"
    missing = []
    for month, tenants in ((later, ["t-alpha", "t-beta"]), (following, ["t-beta"]), (following, ["t-alpha"])):
        ledger.superuser.execute(remove, [month, tenants])
        missing.append(of(check(ledger, "months_ahead"), "months_ahead").observed)
    ledger.superuser.execute(f"drop table ledger.entries_{following:%Y_%m}")
    missing.append(of(check(ledger, "months_ahead"), "months_ahead").observed)
    assert missing == [0, 1, 2, 3]
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        at = time.time_ns() // 1000
        await ensure_partitions(operator, now=at)
        await ensure_periods(operator, now=at)
    assert found(check(ledger)) == []


# --- What is written down ---------------------------------------------------------------------------------------------

SECRETS = ("t-alpha", "t-nobody", "ev-", "req-", "secret-project", "taem", "conv-7", "key-7", "hash-7")


async def test_no_value_of_a_tenant_stands_in_results_or_on_the_page(ledger: Ledger, commands: Commands) -> None:
    """Everything fails that can; a sender that is called after its tenant has a digest for a name."""
    named = "gateway://T-Alpha/eu"
    ledger.add_source(named)
    who = {"conversation_id": "conv-7", "api_key_id": "key-7", "user_hash": "hash-7"}
    await post_last_week(ledger, 100)
    await post(ledger, *some(60, feature="secret-project", tags={"taem": "x"}, model="m-x", **who))
    await post(ledger, *some(60, "own", source=named, usage=..., **who), *some(9, "bad", tenant_id="t-nobody"))
    file = Path(commands.database.name + ".html")
    home = Settings().home
    ran = await ask(commands, "--page", str(home / file))
    assert ran.code == 1
    html = (home / file).read_text()
    rows = ledger.superuser.execute("select r::text from ledger.check_results as r").fetchall()
    as_json = (await ask(commands, "--last", "--format", "json")).out
    assert len(rows) > len(NAMES)
    for secret in SECRETS:
        assert not [row for (row,) in rows if secret.lower() in row.lower()], secret
        assert secret.lower() not in html.lower()
        assert secret.lower() not in as_json.lower()
        assert secret.lower() not in ran.out.lower()
    digest = ledger.value("select 'sender ' || left(md5(%s), 8)", named)
    assert digest in html


async def test_the_page_loads_nothing_and_escapes_what_it_shows(ledger: Ledger, commands: Commands) -> None:
    ledger.add_source("gateway://<script>alert(1)</script>")
    await post(ledger, *some(60, source="gateway://<script>alert(1)</script>", model="m-x"))
    home = Settings().home
    await ask(commands, "--page", str(home / "page.html"))
    html = (home / "page.html").read_text()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html
    assert not [mark for mark in ("src=", "href=", "url(", "@import") if mark in html]
    assert "default-src 'none'" in html
    # Also of what passed: why it is looked at, and what to do.
    assert html.count("If it fails: ") >= 10


async def test_a_run_is_written_down_with_its_window_and_shown_again(ledger: Ledger, commands: Commands) -> None:
    assert "nothing has been checked yet" in (await ask(commands, "--last")).line
    await post(ledger, *some(99), make_event("x", model="m-x"))
    assert (await ask(commands, "--hours", "2")).code == 0
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        [run] = await check_runs.list_runs(connection)
        results = await check_runs.results_of(connection, run.run_id)
    assert (run.kind, run.request_count, run.every_seconds) == ("command", 100, None)
    assert run.window_ends_at - run.window_starts_at == timedelta(hours=2)
    assert run.started_at <= run.ended_at
    counts = (run.passed_count, run.warned_count, run.failed_count, run.unknown_count, run.broken_count)
    assert sum(counts) == len(results)
    shown = (await ask(commands, "--last", "--format", "json")).json
    assert shown["run"]["run_id"] == run.run_id
    worst = [each for each in shown["results"] if each["outcome"] == "failed"]
    assert {each["expectation"] for each in worst} == {"unpriced"}
    assert worst[0]["observed"] == "0.01"
    assert {field.name for field in fields(CheckResult)} == set(worst[0])


async def test_the_schedule_checks_the_last_hour_and_writes_the_page(
    ledger: Ledger, commands: Commands, database: Database
) -> None:
    from tallystick.addresses import configured

    await post(ledger, *some(60), make_event("x", model="m-x"))
    settings = Settings()
    found_at = configured(settings)
    assert found_at is not None
    [job] = [job for job in jobs(settings, found_at) if job.name == "checks"]
    assert job.every_seconds == 900
    told = await job.do()
    assert told is not None
    assert told.startswith("2 failed, 0 warn, 0 broken: ")
    assert "Somebody must act" in settings.checks_page.read_text()
    values = dict(
        ledger.superuser.execute(
            "select coalesce(label, name), value from ledger.watched() where name in ('checks', 'checks_age_seconds')"
        ).fetchall()
    )
    assert (values["failed"], values["broken"]) == (2, 0)
    assert 0 <= values["checks_age_seconds"] < 60
    assert [
        job for job in jobs(settings.model_copy(update={"check_seconds": 0}), found_at) if job.name == "checks"
    ] == []


async def test_old_runs_go_with_their_results(ledger: Ledger, commands: Commands) -> None:
    await ask(commands)
    ledger.superuser.execute("update ledger.check_runs set ended_at = now() - interval '36 days'")
    await ask(commands)
    assert ledger.value("select count(*) from ledger.check_runs") == 1
    assert ledger.value("select count(distinct run_id) from ledger.check_results") == 1


# --- Bounds are data --------------------------------------------------------------------------------------------------


async def test_a_file_of_ones_own_sets_bounds_anew(
    ledger: Ledger, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.yml"
    own.write_text("expectations:\n  unpriced: {warn: null, fail: {most: 0.5, sample: 50}}\n")
    monkeypatch.setenv("TALLYSTICK_CHECKS_FILE", str(own))
    await post(ledger, *some(58), *some(2, "x", model="m-x"))
    assert (await ask(commands)).code == 0
    results = (await ask(commands, "--last", "--format", "json")).json["results"]
    assert {each["most"] for each in results if each["expectation"] == "unpriced"} == {"0.5"}


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        ("[1]", "the file must be fields with values"),
        ("a: {", "line 1: no YAML"),
        ("thresholds: {}", "thresholds is not known; known are limits, expectations"),
        ("limits: {late: 1}", "limits.late is not known"),
        ("limits: {late_seconds: soon}", "limits.late_seconds must be a whole number, not 'soon'"),
        ("expectations: {unprized: {}}", "expectations.unprized: there is none of this name"),
        ("expectations: {unpriced: {mesure: x}}", "expectations.unpriced.mesure is not known"),
        ("expectations: {unpriced: {measure: nothing.here}}", "expectations.unpriced.measure must be file.column"),
        ("expectations: {unpriced: {unit: furlong}}", "expectations.unpriced.unit must be one of"),
        ("expectations: {unpriced: {why: 7}}", "expectations.unpriced.why must be a text"),
        (
            "expectations: {unpriced: {warn: {most: lots}}}",
            "expectations.unpriced.warn.most must be a number, not 'lots'",
        ),
        ("expectations: {unpriced: {warn: {sample: 3}}}", "expectations.unpriced.warn must say least or most"),
    ],
)
def test_a_file_that_cannot_be_used_names_field_and_rule(tmp_path: Path, text: str, said_of_it: str) -> None:
    own = tmp_path / "own.yml"
    own.write_text(text)
    with pytest.raises(BadExpectations) as raised:
        read_expectations(own)
    assert said_of_it in str(raised.value)
    assert str(own) in str(raised.value)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadExpectations, match="No such file"):
        read_expectations(tmp_path / "nowhere.yml")


# --- How it runs ------------------------------------------------------------------------------------------------------


async def test_no_table_is_made_and_nothing_is_printed(ledger: Ledger, capfd: pytest.CaptureFixture[str]) -> None:
    tables = "select count(*) from pg_class where relkind in ('r', 'v')"
    await post(ledger, make_event("a"))
    before = ledger.value(tables)
    check(ledger)
    assert ledger.value(tables) == before
    assert capfd.readouterr() == ("", "")
    sessions = (
        "select count(*) from pg_stat_activity where datname = current_database() and usename = 'tallystick_analyst'"
    )
    # A backend ends a moment after its client has gone.
    deadline = time.monotonic() + 5
    while ledger.value(sessions) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ledger.value(sessions) == 0


def test_a_ledger_without_tables_is_one_clear_line(empty_database: Database) -> None:
    with pytest.raises(NothingToCheck, match="the ledger's tables are not there: run `tallystick migrate`"):
        run_checks(empty_database.url)


def test_a_postgres_that_is_away_is_one_clear_line() -> None:
    with pytest.raises(NothingToCheck) as raised:
        run_checks("postgresql://tallystick_analyst@/tallystick?host=/nowhere")
    assert "\n" not in str(raised.value)


def test_a_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(ChecksMissing, match=r"pip install 'tallystick\[warehouse\]'"):
        run_checks("postgresql:///")


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ("0.0004", "0.04 %"),
        ("0.00001", "under 0.01 %"),
        ("0", "0.00 %"),
        ("0.015", "1.5 %"),
        ("0.5", "50 %"),
        ("1", "100 %"),
    ],
)
def test_shares_are_said_with_the_digits_that_count(share: str, said: str) -> None:
    assert percent(Decimal(share)) == said
