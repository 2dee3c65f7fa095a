"""The public validator finds nothing wrong with our FOCUS files but what is a fault of its own, by name and reason."""

from pathlib import Path

import polars as pl
import pytest

from billing.exports.focus import to_parquet
from tests.billing import focus_validator
from tests.billing.test_focus import everything, frame_of

# Not in the tests' own folder: it is installed once and serves until somebody removes it.
FOLDER = Path(__file__).parent.parent.parent / ".tallystick" / "focus-validator"


@pytest.fixture(scope="module")
def program() -> Path:
    return focus_validator.environment(FOLDER)


def report_on(program: Path, folder: Path, frame: pl.DataFrame) -> focus_validator.Report:
    data = folder / "focus.parquet"
    data.write_bytes(to_parquet(frame))
    return focus_validator.validate(program, data, folder / "validator.txt")


def test_the_public_validator_fails_nothing_but_what_is_listed(program: Path, tmp_path: Path) -> None:
    report = report_on(program, tmp_path, frame_of(*everything()))
    assert report.failures == focus_validator.EXCEPTIONS.keys()
    assert report.passed >= 241
    assert report.total == 578


def test_the_public_validator_sees_what_is_wrong(program: Path, tmp_path: Path) -> None:
    """Else a report that nobody can read would pass for a good one."""
    frame = frame_of(*everything()).with_columns(pl.lit("Refund").alias("ChargeCategory"))
    assert "ChargeCategory-C-003-M" in report_on(program, tmp_path, frame).failures
