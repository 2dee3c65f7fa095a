"""Terms of budgets: limits of groups, steps, what is held without an estimate; changes, versions, replacement, files."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.database import connect
from ledger.errors import ActRefused
from ledger.times import micros, parse_rfc3339
from quotas import budgets
from quotas.budget_files import load_budgets
from quotas.budgets import BudgetSet, Changes, GroupLimit, Step, Terms
from tests.quotas.support import NOW, add_price, end_budget, excesses, set_budget, spend, windows
from tests.support.ledger import Ledger

DEGRADE = Step(at=Decimal("0.80"), action="degrade", route="small", output_tokens_max=512, hold=Decimal("0.05"))
REFUSE = Step(at=Decimal("0.95"), action="refuse")


def step(**values: Any) -> Step:
    return Step(**{"at": Decimal("0.8"), "action": "degrade", "route": "small", **values})


def own(limit: str | None, **group: str | None) -> GroupLimit:
    return GroupLimit(group=group, limit=None if limit is None else Decimal(limit))


# Each row breaks one rule, in the order in which they are checked.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"feature": ""}, "feature '' is no printable text"),
    ({"route": "a\nb"}, "is no printable text of 1 to 200 characters"),
    ({"tags": {"": "x"}}, "is no pair of printable texts"),
    ({"lane": "slow"}, "lane 'slow' is unknown; it is one of interactive, batch"),
    ({"group_limits": [own("1", feature="chat")]}, "a limit of a group needs a budget by groups"),
    ({"group_by": ("feature",), "group_limits": [own("1", model="m")]}, "a limit of a group names feature, and 'model=m' does not"),
    ({"group_by": ("feature",), "group_limits": [own("1", feature="")]}, "feature '' is no printable text"),
    ({"group_by": ("feature",), "group_limits": [own("-1", feature="chat")]}, "the limit of feature=chat must not be negative"),
    ({"group_by": ("currency",), "group_limits": [own("1", currency="USD")]}, "a limit in money needs a currency"),
    ({"when_away": "guess"}, "policy while away 'guess' is unknown; it is one of refuse, admit"),
    ({"missing_estimate": "hold", "missing_estimate_amount": Decimal(-1)}, "the amount held for a missing estimate must not"),
    ({"unit": "requests", "away_amount": Decimal("0.5")}, "the amount while away of requests must be a whole number"),
    ({"description": "two\nlines"}, "the description is a printable line"),
    ({"steps": [step(action="explode")]}, "step 'explode' is unknown; it is one of degrade, refuse"),
    ({"steps": [step(at=Decimal(0))]}, "a step is taken at a share of the limit between 0 and 1, and 0 is none"),
    ({"steps": [step(at=Decimal(1))]}, "a step is taken at a share of the limit between 0 and 1, and 1 is none"),
    ({"steps": [step(), step()]}, "steps stand in the order of their shares, and 0.8 comes after 0.8"),
    ({"steps": [Step(at=Decimal("0.5"), action="refuse"), step()]}, "no step comes after the one that refuses"),
    ({"steps": [step(route=None)]}, "a step that degrades names a route, an output cap, or both"),
    ({"steps": [step(output_tokens_max=0)]}, "an output cap is a number of tokens above zero, and 0 is not"),
    ({"steps": [step(hold=Decimal(-1))]}, "the amount held for a degraded call must not be negative"),
    ({"steps": [step(action="refuse")]}, "a step that refuses has neither route, nor output cap, nor an amount to hold"),
    ({"steps": [DEGRADE], "limit": None}, "steps are taken at shares of a limit, and there is no limit"),
    ({"steps": [REFUSE], "hardness": "soft"}, "a soft budget refuses nothing: it has no step that refuses"),
    ({"missing_estimate": "hold"}, "missing_estimate needs missing_estimate_amount"),
    ({"missing_estimate_amount": Decimal(1)}, "missing_estimate is not hold, and takes no missing_estimate_amount"),
    ({"when_away": "admit"}, "when_away needs away_amount"),
    ({"away_amount": Decimal(1)}, "when_away is not admit, and takes no away_amount"),
    ({"group_by": ("feature",), "group_limits": [own("1", feature="chat")], "interactive_reserve": Decimal(2)},
     'the interactive reserve of 2 must lie within the limit of ["chat"]'),
]  # fmt: skip


async def test_terms_that_break_a_rule_are_refused_in_one_line(ledger: Ledger) -> None:
    for terms, line in REFUSALS:
        with pytest.raises(ActRefused) as refused:
            await set_budget(ledger, **{"limit": "10", **terms})
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)
    assert ledger.value("select count(*) from quotas.budgets where budget_id !~ '^totals-'") == 0


async def test_all_terms_are_kept_as_they_were_said(ledger: Ledger) -> None:
    await set_budget(
        ledger, limit="10", steps=[DEGRADE, REFUSE], missing_estimate="hold", missing_estimate_amount=Decimal("0.05"),
        when_away="admit", away_amount=Decimal(1), description="For the spring", interactive_reserve=Decimal(2),
    )  # fmt: skip
    (kept,) = ledger.rows(
        "select steps, missing_estimate, missing_estimate_amount, when_away, away_amount, description, interactive_reserve"
        " from quotas.budgets where budget_id = 'b'"
    )
    assert kept == (
        [
            {"at": "0.8", "action": "degrade", "route": "small", "output_tokens_max": 512, "hold": "0.05"},
            {"at": "0.95", "action": "refuse"},
        ],
        "hold", Decimal("0.05"), "admit", Decimal(1), "For the spring", Decimal(2),
    )  # fmt: skip


async def test_an_amount_goes_with_its_policy(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10", missing_estimate="hold", missing_estimate_amount=Decimal(1))
    await set_budget(ledger, limit="11")
    assert ledger.value("select missing_estimate_amount from quotas.budgets where budget_id = 'b'") == 1, "it stays"
    await set_budget(ledger, limit="11", missing_estimate="admit")
    assert ledger.value("select missing_estimate_amount from quotas.budgets where budget_id = 'b'") is None


# --- Limits of groups --------------------------------------------------------------------------------------------------


async def test_one_row_is_a_budget_for_every_user_of_a_tenant(ledger: Ledger) -> None:
    """1.00 a day for each user, 3.00 for u-2: after 2.00 of each, u-1 alone is above."""
    await add_price(ledger)
    await set_budget(
        ledger, group_by=("subject_id",), window="day", limit="1.00", now="2026-03-10T12:00:00Z",
        group_limits=[own("3.00", user_hash="u-2")],
    )  # fmt: skip
    for user in ("u-1", "u-2"):
        await spend(ledger, f"e-{user}", "2.00", user_hash=user)
    above = ledger.rows(
        "select s.user_hash, x.change from quotas.excess as x"
        " join ledger.subjects as s on x.group_key = '[\"' || s.subject_id || '\"]'"
    )
    assert above == [("u-1", Decimal(1))]


async def test_a_limit_of_a_group_moves_its_excess_alone(ledger: Ledger) -> None:
    """2.00 of chat and of search at a limit of 1.00; search gets 1.50, then none: 0.50 and 0.50 are taken back."""
    await add_price(ledger)
    await set_budget(ledger, group_by=("feature",), limit="1.00")
    await spend(ledger, "e1", "2.00", feature="chat")
    await spend(ledger, "e2", "2.00", feature="search")
    await set_budget(ledger, group_by=("feature",), limit="1.00", group_limits=[own("1.50", feature="search")])
    done = await set_budget(ledger, group_by=("feature",), limit="1.00", group_limits=[own(None, feature="search")])
    assert (done.outcome, done.windows_above) == ("changed", 1)
    assert excesses(ledger) == [("unreserved", "1"), ("unreserved", "1"), ("limit", "-0.5"), ("limit", "-0.5")]
    again = await set_budget(ledger, group_by=("feature",), limit="1.00")
    assert again.outcome == "unchanged", "what is not said stays"
    await set_budget(ledger, group_by=("feature",), limit="1.00", group_limits=[])
    assert excesses(ledger)[4:] == [("limit", "1")]


# --- Changes, versions, replacement ------------------------------------------------------------------------------------


async def change(ledger: Ledger, budget_id: str = "b", **terms: Any) -> BudgetSet:
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        return await budgets.change_budget(connection, "test", budget_id, Changes(terms=terms), reason="for a test")


async def test_a_change_by_name_touches_what_it_names(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10", thresholds=["0.8"], user_hash="u-1", tags={"a": "b"})
    done = await change(ledger, hardness="soft")
    assert done.changed == {"hardness": ("hard", "soft")}
    assert (await change(ledger, limit=Decimal(12))).changed == {"limit_amount": ("10", "12")}
    assert (await change(ledger, limit=Decimal(12))).outcome == "unchanged"
    with pytest.raises(ActRefused, match="the limit must not be negative"):
        await change(ledger, limit=Decimal(-1))
    with pytest.raises(ActRefused, match="there is no budget in force 'nothing'"):
        await change(ledger, "nothing", limit=Decimal(1))
    with pytest.raises(ActRefused, match="budget totals-cost gives totals"):
        await change(ledger, "totals-cost", hardness="soft")


async def test_what_the_terms_were_at_any_instant_is_known(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10")
    await change(ledger, limit=Decimal(12))
    await end_budget(ledger)
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        versions = await budgets.history(connection, "b")
        assert [(each.version, each.actor, each.reason, each.terms["limit_amount"]) for each in versions] == [
            (1, "test", None, "10"), (2, "test", "for a test", "12"), (3, "test", None, "12"),
        ]  # fmt: skip
        assert (versions[1].terms["ended_at"], versions[2].terms["ended_at"] is None) == (None, False)
        second = micros(versions[1].at)
        before = await budgets.terms_at(connection, "b", second - 1)
        at = await budgets.terms_at(connection, "b", second)
        assert before is not None
        assert at is not None
        assert (before.version, at.version) == (1, 2)
        assert await budgets.terms_at(connection, "b", 0) is None
        assert (await budgets.history(connection, "totals-cost"))[0].terms["limit_amount"] is None
        with pytest.raises(ActRefused, match="there is no budget 'nothing'"):
            await budgets.history(connection, "nothing")


async def test_versions_and_what_makes_a_budget_cannot_be_changed(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10")
    with ledger.database.connect("tallystick_operator", autocommit=True) as connection:
        for statement in (
            "update quotas.budget_versions set actor = 'nobody'", "delete from quotas.budget_versions",
            "update quotas.budgets set unit = 'cost'", "update quotas.budgets set window_kind = 'day'",
            "update quotas.budgets set first_window = '2020-01-01'", "delete from quotas.budgets",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    with pytest.raises(psycopg.Error, match=r"quotas\.budget_versions is append-only"):
        ledger.superuser.execute("delete from quotas.budget_versions")


async def test_a_replacement_ends_and_makes_in_one_commit(ledger: Ledger) -> None:
    """A month's 10.00 becomes a week's 3.00: 2.00 of this week are in it from the start."""
    await add_price(ledger)
    await set_budget(ledger, limit="10")
    await spend(ledger, "e1", "2.00", "2026-03-15T00:00:00Z")
    weekly = Terms(tenant_id="t-alpha", unit="charge", currency="USD", window="week", limit=Decimal(3))
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        done = await budgets.replace_budget(
            connection, "test", "b", weekly, now=parse_rfc3339(NOW), budget_id="weekly", reason="finer"
        )
        with pytest.raises(ActRefused, match="there is no budget in force 'b'"):
            await budgets.replace_budget(connection, "test", "b", weekly, now=parse_rfc3339(NOW), reason="again")
    assert (done.budget_id, done.outcome) == ("weekly", "replaced")
    assert ledger.value("select ended_at is not null from quotas.budgets where budget_id = 'b'")
    assert windows(ledger, "weekly") == {"2026-03-09": "2"}
    assert ledger.rows("select act, detail ->> 'replaces' from ledger.acts where act = 'budgets.replace'") == [
        ("budgets.replace", "b")
    ]


async def test_a_replacement_that_is_there_already_changes_nothing(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10")
    await set_budget(ledger, budget_id="weekly", window="week", limit="3")
    weekly = Terms(tenant_id="t-alpha", unit="charge", currency="USD", window="week", limit=Decimal(4))
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        with pytest.raises(ActRefused, match="budget weekly has this scope, unit and window already"):
            await budgets.replace_budget(connection, "test", "b", weekly, now=parse_rfc3339(NOW))
    assert ledger.rows("select ended_at from quotas.budgets where budget_id in ('b', 'weekly')") == [(None,), (None,)]
    assert ledger.value("select limit_amount from quotas.budgets where budget_id = 'weekly'") == 3


async def test_a_dry_run_says_what_would_be_above_and_keeps_nothing(ledger: Ledger) -> None:
    """Two months, 3.00 and 5.00, at a limit that falls from 10.00 to 4.00: one window is above."""
    await add_price(ledger)
    await set_budget(ledger, limit="10", since=date(2026, 2, 1))
    await spend(ledger, "e1", "3.00", "2026-02-10T12:00:00Z")
    await spend(ledger, "e2", "5.00", "2026-03-10T12:00:00Z")
    wanted = Terms(tenant_id="t-alpha", unit="charge", currency="USD", limit=Decimal(4))
    before = ledger.value("select budgets from ledger.versions")
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        tried = await budgets.set_budget(connection, "test", wanted, now=parse_rfc3339(NOW), dry_run=True)
    assert (tried.outcome, tried.windows_above, tried.changed) == ("changed", 1, {"limit_amount": ("10", "4")})
    assert excesses(ledger) == []
    assert ledger.value("select budgets from ledger.versions") == before
    assert (await set_budget(ledger, limit="4")).windows_above == 1
    assert excesses(ledger) == [("limit", "1")]


# --- Files -------------------------------------------------------------------------------------------------------------

FILE = """
budgets:
  - id: monthly
    tenant: t-alpha
    unit: charge
    currency: USD
    limit: 500
    thresholds: [0.8, 0.95]
    steps:
      - {at: 0.9, action: degrade, route: small, output_tokens_max: 512, hold: 0.05}
  - id: each-feature
    tenant: t-alpha
    group_by: [feature]
    unit: requests
    window: days
    days: 7
    anchor: 2026-03-02
    limit: none
    group_limits:
      - {group: {feature: chat}, limit: 20}
      - {group: {feature: ""}, limit: 0}
"""


async def applied(ledger: Ledger, tmp_path: Path, text: str, *, dry_run: bool = False) -> list[tuple[str, str]]:
    file = tmp_path / "budgets.yaml"
    file.write_text(text)
    wishes, ended = load_budgets(file)
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        done = await budgets.apply_budgets(
            connection, "test", wishes, ended, now=parse_rfc3339(NOW), reason="as reviewed", dry_run=dry_run
        )
    return [(each.budget_id, each.outcome) for each in done]


async def test_a_file_is_applied_once_however_often(ledger: Ledger, tmp_path: Path) -> None:
    created = [("monthly", "created"), ("each-feature", "created")]
    assert await applied(ledger, tmp_path, FILE, dry_run=True) == created
    assert await applied(ledger, tmp_path, FILE) == created
    versions = "select count(*) from quotas.budget_versions"
    acts = "select count(*) from ledger.acts"
    before = (ledger.value(versions), ledger.value(acts))
    assert await applied(ledger, tmp_path, FILE) == [("monthly", "unchanged"), ("each-feature", "unchanged")]
    assert (ledger.value(versions), ledger.value(acts)) == before
    assert ledger.rows("select group_key, limit_amount from quotas.group_limits order by 1") == [
        ('["chat"]', Decimal(20)), ("[null]", Decimal(0)),
    ]  # fmt: skip


async def test_what_a_file_leaves_out_is_at_its_default(ledger: Ledger, tmp_path: Path) -> None:
    await applied(ledger, tmp_path, FILE)
    shorter = FILE.replace("    thresholds: [0.8, 0.95]\n", "").replace("limit: 500", "limit: 400")
    assert await applied(ledger, tmp_path, shorter) == [("monthly", "changed"), ("each-feature", "unchanged")]
    assert ledger.rows("select limit_amount, thresholds from quotas.budgets where budget_id = 'monthly'") == [
        (Decimal(400), [])
    ]


async def test_a_file_replaces_and_ends(ledger: Ledger, tmp_path: Path) -> None:
    await applied(ledger, tmp_path, FILE)
    with pytest.raises(ActRefused, match="monthly: its window_kind is 'month' and never changes: give the other one"):
        await applied(ledger, tmp_path, FILE.replace("limit: 500", "limit: 500\n    window: week"))
    following = """
budgets:
  - id: weekly
    tenant: t-alpha
    unit: charge
    currency: USD
    window: week
    limit: 100
    replaces: monthly
ended: [each-feature]
"""
    assert await applied(ledger, tmp_path, following) == [("each-feature", "ended"), ("weekly", "created")]
    assert await applied(ledger, tmp_path, following) == [("each-feature", "unchanged"), ("weekly", "unchanged")]
    with pytest.raises(ActRefused, match="budget monthly: has ended, and a name is given once"):
        await applied(ledger, tmp_path, FILE)


async def test_a_file_is_applied_whole_or_not_at_all(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ActRefused, match="budget each-feature: there is no tenant 't-nobody'"):
        await applied(ledger, tmp_path, FILE.replace("tenant: t-alpha\n    group_by", "tenant: t-nobody\n    group_by"))
    assert ledger.value("select count(*) from quotas.budgets where budget_id !~ '^totals-'") == 0


BROKEN_FILES = [
    ("- a list", "budgets.yaml is not a mapping of fields"),
    ("budgets: [", "budgets.yaml is not YAML"),
    ("{}", "budgets.yaml names no budget"),
    ("budgets: 3", "budgets.yaml: budgets is not a list"),
    ("budget: []", "budgets.yaml has the unknown field 'budget'"),
    ("budgets: [{unit: cost, limit: 1}]", "budget no. 1 has no id"),
    ("budgets: [{id: a, unit: cost}]", "budget no. 1 has no limit"),
    ("budgets: [{id: a, unit: cost, limit: ten}]", "budget no. 1 (a): limit: 'ten' is not a decimal number"),
    ("budgets: [{id: a, unit: cost, limit: 1, colour: red}]", "budget no. 1 has the unknown field 'colour'"),
    ("budgets: [{id: a, unit: cost, limit: 1, days: 1.5}]", "(a): days: '1.5' is not a whole number"),
    ("budgets: [{id: a, unit: cost, limit: 1, anchor: tomorrow}]", "'tomorrow' is not a date"),
    ("budgets: [{id: a, unit: cost, limit: 1, steps: [{at: 0.5}]}]", "(a): steps no. 1 has no action"),
    ("budgets: [{id: a, unit: cost, limit: 1, group_limits: [{limit: 1}]}]", "group_limits no. 1 has no group"),
    ("budgets: [{id: a, unit: cost, limit: 1, limit: 2}]", "'limit' stands twice"),
    ("budgets: [{id: a, unit: cost, limit: 1}]\nended: [a]", "budgets.yaml names budget 'a' twice"),
]


@pytest.mark.parametrize(("text", "line"), BROKEN_FILES)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text(text)
    with pytest.raises(ActRefused) as refused:
        load_budgets(file)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
