"""House rules that can be checked: directions of imports, money without floats, pointers that lead somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from migrations.run import tables

CHECKOUT = Path(__file__).parent.parent
ROOMS = ("tallystick", "api", "ingest", "billing", "quotas", "ledger", "migrations")
TRACKED = [
    CHECKOUT / name
    for name in subprocess.run(
        ["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
]


def test_imports_go_down_only_and_pure_files_stay_pure() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_no_column_of_money_or_quantity_is_a_float() -> None:
    floats = [
        f"{table.fullname}.{column.name}"
        for metadata in tables()
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, sa.Float)
    ]
    assert floats == []


@pytest.mark.parametrize("room", ["ledger", "quotas", "billing"])
def test_no_float_is_made_where_money_is(room: str) -> None:
    """Neither a float literal nor a call of float() stands in the rooms that hold money."""
    for path in (CHECKOUT / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_literal = isinstance(node, ast.Constant) and isinstance(node.value, float)
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float"
            assert not is_literal, f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]
            assert not is_call, f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]


def test_every_room_has_a_page() -> None:
    for room in (*ROOMS, "dbt", "tests"):
        assert (CHECKOUT / room / "README.md").read_text().startswith("# "), room


def test_every_file_of_a_room_stands_on_its_pages() -> None:
    """Whoever opens a room for the first time finds there what each file is for."""
    missing = []
    for room in ("tallystick", "api", "ingest", "billing", "quotas", "ledger"):
        text = "".join(page.read_text() for page in (CHECKOUT / room).glob("*.md"))
        names = [path.name for path in TRACKED if path.suffix == ".py" and path.parent == CHECKOUT / room]
        missing += [f"{room}/{name}" for name in names if not name.startswith("__") and f"`{name}`" not in text]
    assert missing == []


def test_pointers_in_pages_lead_somewhere() -> None:
    for page in (path for path in TRACKED if path.suffix == ".md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(CHECKOUT)} points to {target}"


def test_dbt_is_no_package() -> None:
    """With an __init__.py there, `import dbt` would find our folder instead of the tool."""
    assert not (CHECKOUT / "dbt" / "__init__.py").exists()


def test_requirements_are_pinned_without_addresses() -> None:
    lines = [
        line for line in (CHECKOUT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]+==[0-9][A-Za-z0-9.+\-]*", line) for line in lines)
