"""Parties, prices, budgets and keys by command: what was said is there, and who said it."""

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tallystick.commands.common import cell, print_table
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent


def test_a_tenant_is_added_with_its_months(with_tenant: Commands) -> None:
    (tenant,) = with_tenant.json("tenants", "list")
    assert tenant["starts_at"] == "2026-08-31T22:00:00Z"
    assert (tenant["tenant_id"], tenant["status"], tenant["charge_currency"]) == ("acme", "active", "EUR")
    september, *_ = with_tenant.json("periods", "list", "--tenant", "acme")
    assert september == {
        "tenant_id": "acme",
        "posting_period": "2026-09-01",
        "starts_at": "2026-08-31T22:00:00Z",
        "ends_at": "2026-09-30T22:00:00Z",
        "grace_until": "2026-10-03T22:00:00Z",
        "state": "open",
        "close_number": 0,
        "closed_at": None,
        "is_sealed": False,
    }
    assert "acme" in with_tenant.ok("periods", "list").out


def test_periods_are_made_ahead_once(with_tenant: Commands) -> None:
    assert with_tenant.ok("periods", "ahead").out == "0 periods and 0 partitions made\n"
    assert with_tenant.ok("periods", "ahead", "--months", "5").out.startswith("2 periods and ")


def test_a_tenant_changes_at_the_start_of_a_month(with_tenant: Commands) -> None:
    said = with_tenant.ok(
        "tenants", "change", "acme", "--from", "2031-01", "--zone", "America/New_York", "--reason", "moved"
    )
    assert said.out == "tenant acme changes at 2030-12-31 23:00:00Z\n"
    shown = with_tenant.json("tenants", "show", "acme")
    assert shown["time_zone"] == "Europe/Berlin"
    assert [version["time_zone"] for version in shown["versions"]] == ["Europe/Berlin", "America/New_York"]
    assert "add a later one" in with_tenant("tenants", "change", "acme", "--from", "2030-12", "--currency", "USD").line
    assert "America/New_York" in with_tenant.ok("tenants", "show", "acme").out


def test_a_tenant_is_suspended_comes_back_and_leaves(with_tenant: Commands) -> None:
    with_tenant.ok("tenants", "change", "acme", "--from", "2031-01", "--zone", "UTC")
    for words, status in (
        (("suspend", "acme", "--reason", "unpaid"), "suspended"),
        (("resume", "acme"), "active"),
        (("leave", "acme", "--reason", "over"), "left"),
    ):
        with_tenant.ok("tenants", *words)
        shown = with_tenant.json("tenants", "show", "acme")
        assert shown["status"] == status
        assert shown["versions"][-1]["status"] == status, "a change that is recorded for later does not bring it back"
    assert shown["ends_at"] is not None
    assert with_tenant("tenants", "suspend", "acme", "--reason", "again").line == "tenant acme is left"


def test_tenants_are_merged(with_tenant: Commands) -> None:
    with_tenant.ok(
        "tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR", "--since", "2026-10-01"
    )
    with_tenant.ok("tenants", "merge", "b", "acme", "--at", "2026-11-15", "--reason", "bought")
    shown = with_tenant.json("tenants", "show", "b")
    assert (shown["merged_into"], shown["merged_at"]) == ("acme", "2026-11-15T00:00:00Z")
    assert "b is merged into acme already" in with_tenant("tenants", "merge", "b", "acme", "--reason", "r").line
    assert "b is itself merged into acme" in with_tenant("tenants", "merge", "acme", "b", "--reason", "r").line


def test_sources_speak_for_whom_they_may(with_tenant: Commands) -> None:
    with_tenant.ok("sources", "add", "gateway://eu-1", "--kind", "gateway", "--rank", "20", "--tenant", "acme")
    with_tenant.ok("sources", "add", "node://a", "--kind", "node", "--rank", "10", "--all-tenants")
    with_tenant.ok("tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR")
    assert (
        with_tenant.ok("sources", "allow", "gateway://eu-1", "acme", "b").out
        == "source gateway://eu-1 speaks for 1 more\n"
    )
    gateway, node = with_tenant.json("sources", "list")
    assert (gateway["tenant_ids"], node["speaks_for_all"]) == (["acme", "b"], True)
    assert "every tenant" in with_tenant.ok("sources", "list").out
    with_tenant.ok("sources", "end", "node://a", "--reason", "gone")
    assert len(with_tenant.json("sources", "list")) == 1
    assert len(with_tenant.json("sources", "list", "--ended")) == 2
    assert "there is no source 'node://a'" in with_tenant("sources", "allow", "node://a", "acme").line


def test_a_merge_is_ended(with_tenant: Commands) -> None:
    with_tenant.ok(
        "tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR", "--since", "2026-10-01"
    )
    with_tenant.ok("tenants", "merge", "b", "acme", "--at", "2026-11-15", "--reason", "bought")
    said = with_tenant.ok("tenants", "unmerge", "b", "--at", "2026-11-20", "--reason", "not bought").out
    assert said == "usage sent as b is its own again\n"
    shown = with_tenant.json("tenants", "show", "b")
    assert (shown["merged_into"], shown["unmerged_at"]) == ("acme", "2026-11-20T00:00:00Z")
    assert [each["act"] for each in shown["history"]] == ["tenants.add", "tenants.merge", "tenants.unmerge"]
    assert "not bought" in with_tenant.ok("tenants", "show", "b").out


def test_lists_fit_into_120_columns(with_tenant: Commands) -> None:
    for number in range(4):
        with_tenant.ok(
            "tenants", "add", f"customer-{number}", "--entity", "entity-1", "--zone", "America/Argentina/Buenos_Aires",
            "--currency", "EUR", "--since", "2026-10-01", "--name", "A name of some length, as customers have them",
        )  # fmt: skip
    with_tenant.ok("tenants", "leave", "customer-2", "--at", "2026-11-20", "--reason", "over")
    with_tenant.ok("tenants", "merge", "customer-3", "acme", "--at", "2026-11-20", "--reason", "bought")
    words = ["--tenant", "acme", *(word for n in range(4) for word in ("--tenant", f"customer-{n}"))]
    with_tenant.ok("sources", "add", "gateway://eu-central-1/blue", "--kind", "gateway", "--rank", "20", *words)
    tenants = with_tenant.ok("tenants", "list").out
    assert "customer-3" in tenants
    assert "2026-11-20" in tenants
    sources = with_tenant.ok("sources", "list").out
    assert "acme, customer-0 and 3 more" in sources
    for table in (tenants, sources):
        assert "--- 1 ---" not in table, "a table, not a list of rows"
        assert max(len(line) for line in table.splitlines()) <= 120


def test_a_tenant_begins_on_the_day_that_was_said(with_tenant: Commands) -> None:
    """In its own zone: midnight in Berlin is the evening before in UTC."""
    with_tenant.ok(
        "tenants", "add", "east", "--entity", "entity-1", "--zone", "Europe/Berlin", "--currency", "EUR",
        "--since", "2026-09-01",
    )  # fmt: skip
    line = next(line for line in with_tenant.ok("tenants", "list").out.splitlines() if line.startswith("east "))
    assert "2026-09-01" in line
    assert "2026-08-31" not in line


def test_a_long_list_goes_on_below_itself_and_takes_no_table_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """200 columns where nobody's window says how many; one record with many names beside one with none."""
    names = [f"name-{number:02}" for number in range(40)]
    rows = [["m-1", ", ".join(names)], ["m-2", ""]]
    print_table(["model", "aliases"], rows, (), (1,))
    out = capsys.readouterr().out
    assert "---" not in out
    assert all(len(line) <= 200 for line in out.splitlines())
    assert [name for name in names if name in out] == names
    print_table(["model", "aliases"], [["m-1", "x" * 300]], (), (1,))
    assert capsys.readouterr().out.startswith("--- 1 ---")


def test_what_stands_beside_a_name_has_no_marks_of_ours() -> None:
    assert (
        cell({"tenants": ["t-a", "t-b"], "route": None, "after": {"limit": "2"}})
        == 'tenants=t-a,t-b after={"limit": "2"}'
    )


def test_parties_show_their_history(with_tenant: Commands) -> None:
    with_tenant.ok("sources", "add", "node://a", "--kind", "node", "--rank", "10", "--tenant", "acme")
    assert (
        with_tenant.ok("sources", "rank", "node://a", "30", "--reason", "exact").out
        == "source node://a: rank 10 -> 30\n"
    )
    with_tenant.ok("tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR")
    with_tenant.ok("sources", "allow", "node://a", "b")
    said = with_tenant.ok("sources", "disallow", "node://a", "b", "--reason", "moved").out
    assert said == "source node://a speaks for 1 less\n"
    with_tenant.ok("sources", "end", "node://a", "--reason", "gone")
    with_tenant.ok("sources", "resume", "node://a", "--reason", "back", "--actor", "jane")
    shown = with_tenant.json("sources", "show", "node://a")
    assert (shown["rank"], shown["tenant_ids"], shown["ended_at"]) == (30, ["acme"], None)
    assert [each["act"].partition(".")[2] for each in shown["history"]] == [
        "add", "rank", "allow", "disallow", "end", "resume",
    ]  # fmt: skip
    assert shown["history"][-1]["actor"] == "jane"
    with_tenant.ok("entities", "rename", "entity-1", "Entity One Ltd", "--reason", "new form")
    entity = with_tenant.json("entities", "show", "entity-1")
    assert (entity["name"], len(entity["history"])) == ("Entity One Ltd", 2)
    with_tenant.ok("accounts", "add", "acc-1", "--provider", "openai", "--currency", "USD", "--tenant", "acme")
    assert with_tenant.json("accounts", "show", "acc-1")["tenant_id"] == "acme"
    with_tenant.ok("accounts", "change", "acc-1", "--ours", "--reason", "not theirs", "--actor", "jane")
    account = with_tenant.json("accounts", "show", "acc-1")
    assert (account["tenant_id"], account["history"][-1]["reason"]) == (None, "not theirs")
    with_tenant.ok("models", "add", "openai", "m-1", "--input-max", "10", "--output-max", "20")
    with_tenant.ok("models", "add", "openai", "m-1", "--no-input-max")
    limits = with_tenant.json("models", "show", "openai", "m-1")
    assert (limits["input_tokens_max"], limits["output_tokens_max"]) == (None, 20)
    with_tenant.ok("models", "add", "openai", "m-1", "--alias", "m-one")
    said = with_tenant.ok("models", "drop-alias", "openai", "m-one", "--reason", "another model").out
    assert said == "m-one is no name of model m-1 of openai any more\n"
    model = with_tenant.json("models", "show", "openai", "m-1")
    assert (model["aliases"], len(model["history"])) == ([], 4)
    for words in (
        ("entities", "show", "x"),
        ("sources", "show", "x"),
        ("accounts", "show", "x"),
        ("models", "show", "p", "x"),
    ):
        assert "there is no " in with_tenant(*words).line


def test_models_have_exact_names(commands: Commands) -> None:
    commands.ok("models", "add", "openai", "m-1", "--alias", "m-1-2026", "--input-max", "1000")
    commands.ok("models", "add", "openai", "m-1", "--alias", "m-one", "--output-max", "50")
    commands.ok("models", "add", "openai", "m-2")
    assert commands.json("models", "list", "--provider", "openai")[0] == {
        "provider": "openai",
        "model": "m-1",
        "input_tokens_max": 1000,
        "output_tokens_max": 50,
        "aliases": ["m-1-2026", "m-one"],
    }
    for name, line in (("m-one", "'m-one' is a name of model m-1"), ("m-1", "'m-1' is a name of model m-1")):
        assert line in commands("models", "add", "openai", "m-2", "--alias", name).line
    assert "'m-one' is a name of model m-1" in commands("models", "add", "openai", "m-one").line


def test_accounts_are_listed(commands: Commands) -> None:
    commands.ok("accounts", "add", "acc-1", "--provider", "openai", "--currency", "USD")
    assert commands.json("accounts", "list")[0]["provider_account"] == "acc-1"
    assert "already" in commands("accounts", "add", "acc-1", "--provider", "openai", "--currency", "USD").line


def test_prices_are_shown_before_they_are_added(commands: Commands) -> None:
    file = str(CHECKOUT / "data" / "prices" / "genai_prices_0.2.3.json.gz")
    assert "nothing is added yet: --accept adds" in commands.ok("prices", "import", file).out
    assert commands.json("prices", "list") == []
    added = commands.json("prices", "import", file, "--accept", "--reason", "first")
    assert added["source"] == "genai-prices 0.2.3"
    assert added["added"] == added["counts"]["new cards"] == len(added["cards"]) > 2000
    assert commands.ok("prices", "import", file, "--accept").out.endswith("added 0 cards\n")
    shown = commands.ok("prices", "show", "openai", "gpt-4o").out
    assert "uncached_input_tokens" in shown
    assert "https://" in shown
    (card, *_) = commands.json("prices", "list", "--provider", "openai", "--model", "gpt-4o")
    assert card["body"]["rates"]["uncached_input_tokens"] == {"price": "2.5", "per": 1000000}


def test_contracts_are_shown_before_they_are_added(with_tenant: Commands, tmp_path: Path) -> None:
    text = (CHECKOUT / "data" / "prices" / "example-contracts.yaml").read_text().replace("t-example", "acme")
    file = tmp_path / "contracts.yaml"
    file.write_text(text)
    assert "--accept adds 3 cards" in with_tenant.ok("prices", "contracts", str(file)).out
    assert with_tenant.ok("prices", "contracts", str(file), "--accept").out.endswith("added 3 cards\n")
    assert with_tenant.json("prices", "contracts", str(file), "--accept") == {"cards": [], "unchanged": 3, "added": 0}
    (card,) = with_tenant.json("prices", "list", "--tenant", "acme")
    assert card["book"] == "charge"


def test_a_budget_is_set_changed_and_ended(with_tenant: Commands) -> None:
    with_tenant.ok("models", "add", "openai", "m-1")
    words = (
        "budgets",
        "set",
        "--tenant",
        "acme",
        "--unit",
        "charge",
        "--currency",
        "EUR",
        "--model",
        "m-1",
        "--window",
        "week",
    )
    made = with_tenant.json(
        *words, "--limit", "10.00", "--threshold", "0.8", "--tag", "team=a", "--since", "2026-10-01"
    )
    assert made["outcome"] == "created"
    changed = with_tenant.ok(*words, "--limit", "12.50", "--tag", "team=a", "--reason", "asked for")
    assert changed.out == f"changed budget {made['budget_id']}: limit 10.00 -> 12.50\n"
    listed = {each["budget_id"]: each for each in with_tenant.json("budgets", "list", "--tenant", "acme")}
    budget = listed[made["budget_id"]]
    assert (budget["limit_amount"], budget["thresholds"], budget["tags"]) == ("12.50", ["0.8"], {"team": "a"})
    assert (budget["first_window"], budget["used"]["posted"]) == ("2026-09-28", "0")
    table = with_tenant.ok("budgets", "list").out
    assert "tenant=acme model=m-1 tag team=a" in table
    with_tenant.ok("budgets", "end", made["budget_id"], "--reason", "over")
    assert made["budget_id"] not in with_tenant.ok("budgets", "list").out
    assert made["budget_id"] in with_tenant.ok("budgets", "list", "--ended").out


def test_a_key_is_shown_once(with_tenant: Commands) -> None:
    made = with_tenant.json("keys", "create", "--tenant", "acme", "--note", "for tests")
    assert made["token"].startswith(made["key_id"])
    shown = with_tenant.ok("keys", "create", "--tenant", "acme")
    assert shown.out.startswith("tsk_")
    assert "only time" in shown.err
    assert made["token"] not in with_tenant.ok("keys", "list", "--format", "json").out
    with_tenant.ok("keys", "revoke", made["key_id"], "--reason", "lost")
    revoked = {each["key_id"]: each["revoked_at"] for each in with_tenant.json("keys", "list", "--tenant", "acme")}
    assert revoked[made["key_id"]] is not None


def test_an_operators_key_has_the_scopes_that_are_named(with_tenant: Commands) -> None:
    made = with_tenant.json(
        "keys", "create", "--operator", "--scope", "periods:write", "--scope", "budgets:read", "--expires", "2099-01-01"
    )
    shown = with_tenant.json("keys", "show", made["key_id"])
    assert (shown["tenant_id"], shown["source"], shown["is_in_force"]) == (None, None, True)
    assert (shown["scopes"], shown["expires_at"]) == (["budgets:read", "periods:write"], "2099-01-01T00:00:00Z")
    assert "operator" in with_tenant.ok("keys", "list").out
    assert "name at least one" in with_tenant("keys", "create", "--operator").line
    assert "only an operator's" in with_tenant("keys", "create", "--tenant", "acme", "--scope", "grants:write").line
    assert "in the future" in with_tenant("keys", "create", "--tenant", "acme", "--expires", "2020-01-01").line
    assert "no key" in with_tenant("keys", "show", "tsk_none").line


def test_every_change_says_who_made_it(with_tenant: Commands) -> None:
    with_tenant.ok("tenants", "suspend", "acme", "--reason", "unpaid", "--actor", "jane")
    with with_tenant.database.connect() as connection:
        rows = connection.execute("select actor, act, reason from ledger.acts order by act_id").fetchall()
    assert [act for _, act, _ in rows] == ["entities.add", "tenants.add", "tenants.status"]
    assert rows[-1] == ("jane", "tenants.status", "unpaid")
    assert rows[0][0], "the user of the machine"


def test_a_decimal_in_a_list_keeps_its_digits() -> None:
    from tallystick.commands.common import cell, plain

    assert plain(Decimal("1E-10")) == cell(Decimal("1E-10")) == "0.0000000001"
    assert plain({"a": [Decimal("0.10"), date(2026, 1, 1)]}) == {"a": ["0.10", "2026-01-01"]}
