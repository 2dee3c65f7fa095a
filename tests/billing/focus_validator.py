"""The public validator of FOCUS, in an environment of its own: it needs Python 3.12, and a numpy and pyarrow that ours does not take."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.billing.focus_rules import SUPPORTED

REQUIREMENTS: Final = ("focus-validator==2.2.1", "numpy<2", "pyarrow<21")
PYTHON: Final = "TALLYSTICK_FOCUS_PYTHON"
"""Names a Python 3.12, or one of an environment that has the validator already."""
CRITERIA: Final = sorted(SUPPORTED | {"PRICING_BILLING_CURRENCY_DIFFERENCES_SUPPORTED"})

EXCEPTIONS: Final[Mapping[str, str]] = {
    "InvoiceId-C-004-C": "its condition is left out of the rule model, so it asks for null everywhere",
    "EffectiveCost-C-005-C": "asks for 0 on every Purchase; its sentence only on one that covers later charges, which our fees do not",
    **dict.fromkeys(
        ("ConsumedQuantity-C-004-C", "ConsumedQuantity-C-006-C"),
        "its statement reads CommitmentDiscountStatus, a column of providers with commitments: it fails for every file without it",
    ),
    **dict.fromkeys(
        ("ConsumedQuantity-C-000-C", "ConsumedQuantity-C-003-C", "ConsumedQuantity-C-005-C"),
        "a whole that the two before are part of",
    ),
}
"""Rules that fail in the validator for reasons of its own; `focus_rules` holds our rows to what their sentences say."""


@dataclass(frozen=True)
class Report:
    """What the validator said."""

    total: int
    passed: int
    failed: int
    skipped: int
    failures: frozenset[str]
    summary: str


def environment(folder: Path) -> Path:
    """Return the validator's program, installed into a folder once; skip the test, with the reason, where that cannot be."""
    program = folder / "bin" / "focus-validator"
    if program.exists():
        return program
    python = _python()
    if python is None:
        pytest.skip(f"the public validator needs Python 3.12: none is on the path, and {PYTHON} names none")
    beside = Path(python).with_name("focus-validator")
    if beside.exists():
        return beside
    for command in (
        [python, "-m", "venv", str(folder)],
        [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *REQUIREMENTS,
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            pytest.skip(f"the public validator cannot be installed here: {said}")
    return program


def _python() -> str | None:
    named = os.environ.get(PYTHON)
    if named:
        return named
    for candidate in ("python3.12", *sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python"), reverse=True)):
        found = shutil.which(str(candidate))
        if found and _version(found) == "3.12":
            return found
    return None


def _version(python: str) -> str:
    """Return which version answers; a shim of a version manager may be there and answer with an error."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def validate(program: Path, data: Path, log: Path) -> Report:
    """Hold a Parquet file to the validator's rules; its exit code says nothing, so its output is read."""
    # It opens a list of currencies relative to its own package's folder, and leaves a log where it runs.
    (packages,) = (program.parent.parent / "lib").glob("python3.*/site-packages")
    done = subprocess.run(
        [
            str(program), "--data-file", str(data), "--validate-version", "1.2.0.1", "--block-download",
            "--applicability-criteria", ",".join(CRITERIA),
        ],
        cwd=packages, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    counted = re.search(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)", done.stdout)
    assert counted is not None, f"the validator said nothing that can be read, see {log}"
    total, passed, failed, skipped = map(int, counted.groups())
    failures = frozenset(re.findall(r"(\S+): FAIL\b", done.stdout))
    assert len(failures) == failed
    return Report(total, passed, failed, skipped, failures, counted.group(0))
