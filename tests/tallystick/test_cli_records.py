"""Investigation by command: feeds, acts, sql, verify; what is shown cannot steer a terminal."""

from decimal import Decimal
from pathlib import Path

import pytest

from tallystick.commands.common import print_table, safe
from tallystick.commands.sql import split_statements
from tests.factories import make_event
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent
HOSTILE = b'{"id": "\x1b[2J\xe2\x80\xae\x07",\n\xff\xfe}'


@pytest.fixture
async def posted(commands: Commands, months_template: str) -> Commands:
    """A ledger with one entry and two dead letters."""
    ledger = Ledger(commands.database).add_tenant().add_source()
    try:
        await ledger.add_price(input="2.00", output="8.00")
        await ledger.post(make_event("e1"), make_event("e2", tenant_id="t-nobody"))
        await ledger.post_bytes(HOSTILE)
    finally:
        ledger.close()
    return commands


def test_a_feed_moves_forward_by_a_persons_word_only(posted: Commands) -> None:
    (feed,) = posted.json("feeds", "list")
    at = feed["next_position"]
    assert at == 2
    for position in (at - 1, at):
        line = posted("feeds", "start-here", feed["name"], str(position), "--reason", "r").line
        assert f"is at position {at} already" in line
    posted.ok("feeds", "start-here", feed["name"], str(at + 1), "--reason", "the log begins there")
    (moved,) = posted.json("feeds", "list")
    assert (moved["next_position"], moved["starts_here"], moved["epoch"]) == (at + 1, at + 1, feed["epoch"] + 1)


def test_verify_proves_and_heads_are_published(posted: Commands, tmp_path: Path) -> None:
    assert posted.ok("heads", "publish").out.startswith("1 head published to ")
    assert (tmp_path / "heads.jsonl").exists()
    proved = posted.json("verify")
    assert (proved["ok"], proved["checked"]["entries"]) == (True, 1)
    with posted.database.connect(autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("update ledger.entries set charge_amount = 0")
    broken = posted("verify")
    assert broken.code == 1
    assert "chain: " in broken.out
    assert broken.err.splitlines()[-1].startswith("tallystick: the ledger does not verify: chain")


def test_check_warns_of_a_share_of_few_events(posted: Commands) -> None:
    """One of two events is a dead letter: far above one in a hundred, but of too few to fail."""
    ran = posted.ok("check")
    assert "warn: dead_letters: " in ran.out
    assert "1 request looked at" in ran.out
    assert posted.json("check")["failed"] is False


def test_sql_reads_the_ledger_digit_for_digit(posted: Commands) -> None:
    statement = "select tenant_id, charge_amount, request_count, is_final, usage_flags, tags from entries"
    assert posted.json("sql", statement) == [
        {
            "tenant_id": "t-alpha",
            "charge_amount": "0.000280",
            "request_count": 1,
            "is_final": True,
            "usage_flags": "{}",
            "tags": None,
        }
    ]
    assert posted.ok("sql", statement, "--format", "csv").out.splitlines()[1] == "t-alpha,0.000280,1,t,{},"
    lines = posted.ok("sql", statement).out.splitlines()
    assert lines[0].split() == ["tenant_id", "charge_amount", "request_count", "is_final", "usage_flags", "tags"]
    assert lines[2].split() == ["t-alpha", "0.000280", "1", "yes", "{}"]


def test_sql_keeps_every_digit_and_every_column(commands: Commands) -> None:
    wide = "123456789012345678901234567890.123456789012345678901234567890"
    statement = f"select {wide}::numeric as a, 1 as a, '{{\"x\": 0.10}}'::jsonb as j, 'infinity'::timestamptz as t, '0044-03-15 BC'::date as d"
    assert commands.json("sql", statement) == [
        {"a": wide, "a_2": 1, "j": {"x": "0.10"}, "t": "infinity", "d": "0044-03-15 BC"}
    ]
    assert Decimal(commands.ok("sql", statement, "--format", "csv").out.splitlines()[1].split(",")[0]) == Decimal(wide)


def test_sql_shows_a_wide_row_as_lines(posted: Commands) -> None:
    lines = posted.ok("sql", "select * from entries").out.splitlines()
    assert lines[0] == "--- 1 ---"
    assert any(line.split() == ["charge_amount", "0.000280"] for line in lines)


def test_sql_shows_what_fits_and_gives_all_to_programs(commands: Commands) -> None:
    shown = commands.ok("sql", "select generate_series(1, 30) as n", "--rows", "10")
    assert shown.out.splitlines()[-1].strip() == "10"
    assert "the first 10 rows" in shown.err
    assert len(commands.json("sql", "select generate_series(1, 3000) as n")) == 3000
    assert commands.json("sql", "select 1 where false") == []
    empty = commands.ok("sql", "select 1 as n where false")
    assert (empty.out.split()[0], empty.err) == ("n", "no rows\n")
    assert commands.ok("sql", "set search_path = marts").err == "SET\n"


def test_sql_can_change_nothing(commands: Commands) -> None:
    for statement, line in (
        ("insert into ledger.acts (actor, act, detail) values ('a', 'b', '{}')", "read-only transaction"),
        ("create temp table t (n integer)", "read-only transaction"),
        ("select * from ledger.api_keys", "permission denied for table api_keys"),
        ("set transaction read write; delete from ledger.entries", "permission denied for table entries"),
        (
            "commit; set default_transaction_read_only = off; delete from ledger.entries",
            "permission denied for table entries",
        ),
        ("commit; set session_replication_role = replica", "permission denied to set parameter"),
    ):
        ran = commands("sql", statement)
        assert ran.code == 1, statement
        assert line in ran.err.splitlines()[-1], statement


def test_sql_escapes_what_could_steer_a_terminal(commands: Commands) -> None:
    shown = commands.ok("sql", "select E'\\x1b[2J\\nnext' as \"a\\\tb\"").out
    assert "\\x1b[2J\\nnext" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("select 1", [("select 1", False)]),
        (" select 1 ; ; select 2;", [("select 1", True), ("select 2", True)]),
        ("select ';' -- ;\n, 2", [("select ';' -- ;\n, 2", False)]),
        ("select '''; ' as \"a;\"; x", [("select '''; ' as \"a;\"", True), ("x", False)]),
        ("select e'\\';'; x", [("select e'\\';'", True), ("x", False)]),
        ("select '\\'; x", [("select '\\'", True), ("x", False)]),
        ("do $a$ begin; end $$ ; $a$; x", [("do $a$ begin; end $$ ; $a$", True), ("x", False)]),
        ("select $$;$$, a$b$c; x", [("select $$;$$, a$b$c", True), ("x", False)]),
        ("/* ; */ -- ;\n", []),
        ("select 'open; x", [("select 'open; x", False)]),
        ("", []),
    ],
)
def test_a_statement_ends_where_postgres_says(text: str, statements: list[tuple[str, bool]]) -> None:
    assert list(split_statements(text)) == statements


def test_a_table_that_does_not_fit_becomes_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["1", "x" * 150]], [0])
    assert capsys.readouterr().out.splitlines()[0].split() == ["a", "b"]
    print_table(["a", "b"], [["1", "x" * 250]], [0])
    assert capsys.readouterr().out == f"--- 1 ---\na  1\nb  {'x' * 250}\n"


def test_only_what_can_be_seen_is_printed() -> None:
    assert safe("Zürich 東京 ✓") == "Zürich 東京 ✓"
    assert safe("a\x00\x1b\x85\u202e\U000e0001\n") == "a\\x00\\x1b\\x85\\u202e\\U000e0001\\n"


def test_acts_say_who_changed_what_and_why(posted: Commands) -> None:
    posted.ok("entities", "add", "acme-gmbh", "--name", "Acme", "--actor", "ann")
    listed = posted.json("acts", "list", "--act", "entities", "--by", "ann")
    assert [(each["actor"], each["act"], each["detail"]["entity_id"]) for each in listed] == [
        ("ann", "entities.add", "acme-gmbh")
    ]
    assert posted.json("acts", "list", "--act", "entities", "--by", "bob") == []
    assert "acme-gmbh" in posted.ok("acts", "list").out
