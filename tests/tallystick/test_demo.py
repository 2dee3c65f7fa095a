"""The demo begins from nothing, and takes nothing away from anybody."""

from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from tallystick.demo import _make_room
from tallystick.embedded import EmbeddedPostgres
from tallystick.processes import AlreadyOwned
from tallystick.stack import MADE_BY_DEMO
from tests.support.databases import postgres_binaries


@pytest.mark.parametrize("is_a_demos", [True, False])
def test_a_database_that_runs_stays_where_it_is(tmp_path: Path, is_a_demos: bool) -> None:
    with EmbeddedPostgres(tmp_path, binaries=postgres_binaries()) as server:
        if is_a_demos:
            (tmp_path / MADE_BY_DEMO).touch()
        with pytest.raises(AlreadyOwned):
            _make_room(tmp_path, Console(quiet=True))
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    assert (tmp_path / "postgres" / "data" / "PG_VERSION").exists()


def test_a_demos_database_is_thrown_away_and_anybody_elses_is_put_aside(tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "kept").write_text("by somebody")
    _make_room(tmp_path, Console(quiet=True))
    aside = list(tmp_path.glob("postgres-until-*"))
    assert [(folder / "data" / "kept").read_text() for folder in aside] == ["by somebody"]
    data.mkdir(parents=True)
    (tmp_path / MADE_BY_DEMO).touch()
    _make_room(tmp_path, Console(quiet=True))
    assert not (tmp_path / "postgres").exists()
    assert list(tmp_path.glob("postgres-until-*")) == aside
