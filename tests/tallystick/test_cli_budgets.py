"""Budgets by command: terms as they are typed, dry runs, replacement, files under version control, history."""

from pathlib import Path

import psycopg
import pytest

from tests.tallystick.commands import Commands

SET = ("budgets", "set", "--tenant", "acme", "--unit", "charge", "--currency", "EUR", "--id", "b")

REFUSALS = [
    (("--step", "0.8"), "--step '0.8' is not SHARE:degrade:route=R,output_tokens_max=N,hold=A or SHARE:refuse"),
    (("--step", "0.8:degrade:colour=red"), "--step '0.8:degrade:colour=red' is not SHARE:degrade"),
    (("--step", "0.8:degrade:output_tokens_max=many"), "output_tokens_max is a whole number"),
    (("--step", "much:refuse"), "'much' is not a decimal number"),
    (("--group-limit", "feature=chat"), "--group-limit 'feature=chat' is not name=value:limit"),
    (("--group-limit", "chat:5"), "--group-limit 'chat:5' is not name=value:limit"),
    (("--group-limit", "feature=chat:5"), "a limit of a group needs a budget by groups"),
    (("--missing-estimate", "admit=5"), "--missing-estimate 'admit=5': only hold takes an amount, as hold=AMOUNT"),
    (("--missing-estimate", "hold"), "missing_estimate needs missing_estimate_amount"),
    (("--when-away", "admit"), "when_away needs away_amount"),
]


@pytest.mark.parametrize(("words", "line"), REFUSALS)
def test_terms_that_make_no_sense_are_refused_in_one_line(
    with_tenant: Commands, words: tuple[str, ...], line: str
) -> None:
    assert line in with_tenant(*SET, "--limit", "10", *words).line


def test_all_terms_can_be_typed_and_shown(with_tenant: Commands) -> None:
    made = with_tenant.ok(
        *SET, "--limit", "10.00", "--group-by", "feature", "--group-limit", "feature=chat:20", "--group-limit", "feature=:none",
        "--step", "0.8:degrade:route=small,output_tokens_max=512,hold=0.05", "--step", "0.95:refuse",
        "--missing-estimate", "hold=0.05", "--when-away", "admit=1", "--description", "For the spring",
    )  # fmt: skip
    assert made.out == "created budget b\n"
    shown = with_tenant.json("budgets", "show", "b")
    assert shown["group_limits"] == {'["chat"]': "20", "[null]": None}
    assert shown["steps"] == [
        {"at": "0.8", "action": "degrade", "route": "small", "output_tokens_max": 512, "hold": "0.05"},
        {"at": "0.95", "action": "refuse"},
    ]
    assert (shown["missing_estimate"], shown["missing_estimate_amount"], shown["away_amount"]) == ("hold", "0.05", "1")
    table = with_tenant.ok("budgets", "show", "b").out
    assert "For the spring" in table
    assert 'limit of ["chat"]' in table
    assert with_tenant("budgets", "show", "nothing").line == "there is no budget 'nothing'"


def test_a_change_by_id_and_its_history(with_tenant: Commands) -> None:
    with_tenant.ok(*SET, "--limit", "10.00", "--threshold", "0.8")
    tried = with_tenant.ok("budgets", "change", "b", "--limit", "12.00", "--dry-run")
    assert tried.out == "would have changed budget b: limit 10.00 -> 12.00\n"
    assert with_tenant.ok("budgets", "change", "b", "--limit", "12.00", "--reason", "asked for").out == (
        "changed budget b: limit 10.00 -> 12.00\n"
    )
    assert (
        with_tenant.ok("budgets", "change", "b", "--hardness", "soft").out
        == "changed budget b: hardness hard -> soft\n"
    )
    assert with_tenant("budgets", "change", "b").line == "nothing to change: say which terms"
    versions = with_tenant.json("budgets", "history", "b")
    assert [(each["version"], each["reason"], each["terms"]["limit_amount"]) for each in versions] == [
        (1, None, "10.00"), (2, "asked for", "12.00"), (3, None, "12.00"),
    ]  # fmt: skip
    (second,) = with_tenant.json("budgets", "history", "b", "--at", versions[1]["at"])
    assert second["version"] == 2
    assert "asked for" in with_tenant.ok("budgets", "history", "b").out
    assert "had no terms yet" in with_tenant("budgets", "history", "b", "--at", "2020-01-01").line


def test_a_budget_is_replaced(with_tenant: Commands) -> None:
    with_tenant.ok(*SET, "--limit", "10.00")
    words = (
        "--tenant",
        "acme",
        "--unit",
        "charge",
        "--currency",
        "EUR",
        "--window",
        "week",
        "--limit",
        "3",
        "--id",
        "w",
    )
    assert with_tenant.ok("budgets", "replace", "b", *words, "--reason", "finer").out == "replaced budget w\n"
    listed = {each["budget_id"] for each in with_tenant.json("budgets", "list")}
    assert "w" in listed
    assert "b" not in listed


def test_a_file_is_applied_with_its_difference_shown_first(with_tenant: Commands, tmp_path: Path) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text("budgets: [{id: a, tenant: acme, unit: charge, currency: EUR, limit: 5}]")
    assert with_tenant.ok("budgets", "apply", str(file), "--dry-run").out == "+ a\nwould change 1 budget of 1\n"
    assert with_tenant.ok("budgets", "apply", str(file)).out == "+ a\nchanged 1 budget of 1\n"
    assert with_tenant.ok("budgets", "apply", str(file)).out == "= a\nchanged 0 budgets of 1\n"
    file.write_text("budgets: [{id: a, tenant: acme, unit: charge, currency: EUR, limit: 7.5}]")
    assert with_tenant.json("budgets", "apply", str(file), "--dry-run") == [
        {
            "budget_id": "a", "outcome": "changed", "dry_run": True, "windows_above": 0,
            "changed": {"limit_amount": {"before": "5", "after": "7.5"}},
        }
    ]  # fmt: skip
    assert with_tenant.ok("budgets", "apply", str(file)).out == "~ a: limit 5 -> 7.5\nchanged 1 budget of 1\n"
    assert "No such file" in with_tenant("budgets", "apply", str(tmp_path / "nothing.yaml")).line


def test_a_wrong_window_is_shown_and_rebuilt_with_a_reason(with_tenant: Commands) -> None:
    with_tenant.ok(*SET, "--limit", "10.00")
    assert with_tenant.ok("budgets", "rebuild", "--dry-run").out == "every window is what ledger and reservations say\n"
    with psycopg.connect(with_tenant.database.url, autocommit=True) as superuser:
        superuser.execute(
            "insert into quotas.windows (budget_id, group_key, window_start, tenant_id, currency, posted)"
            " select budget_id, '', first_window, tenant_id, currency, 0.000001 from quotas.budgets where budget_id = 'b'"
        )
    assert with_tenant("budgets", "rebuild", "b").line.startswith("--reason is needed")
    shown = with_tenant.ok("budgets", "rebuild", "b", "--dry-run").out
    assert "0.000001 -> 0" in shown
    assert shown.endswith("would rebuild 1 window\n")
    assert with_tenant.ok("budgets", "rebuild", "b", "--reason", "a page was lost").out.endswith("rebuilt 1 window\n")
    assert with_tenant.json("budgets", "rebuild", "b", "--dry-run") == []
    assert with_tenant("budgets", "rebuild", "nobody", "--dry-run").line == "there is no budget in force 'nobody'"
