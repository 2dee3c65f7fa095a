"""What is expected of what arrives, as data: `arrivals/expectations.yml`, and a file of one's own that sets parts of it anew."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml

Severity = Literal["fail", "warn"]
Unit = Literal["share", "ratio", "count", "seconds", "hours"]

FOLDER: Final = Path(__file__).parent / "arrivals"
_SEVERITIES: Final[tuple[Severity, ...]] = ("warn", "fail")
_UNITS: Final[tuple[Unit, ...]] = ("share", "ratio", "count", "seconds", "hours")
_MEASURE: Final = re.compile(r"([a-z_]+)\.([a-z0-9_]+)")


class BadExpectations(Exception):
    """A file of expectations cannot be used; the message names the field and the rule."""


@dataclass(frozen=True, slots=True)
class Level:
    """From where on an expectation does not hold, and how much there must be before that is said."""

    least: float | None
    most: float | None
    sample_min: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """One number of what arrived, its bounds, why it is looked at and what to do."""

    name: str
    suite: str
    """The .sql file that it is read from."""
    column: str
    sample: str | None
    """The column that says how much there is to judge by; None where one row is enough."""
    unit: Unit
    what: str
    only: str | None
    """The kind of rows that it is about; None: each that the file has."""
    levels: Mapping[Severity, Level]
    why: str
    act: str


@dataclass(frozen=True, slots=True)
class Expectations:
    """All of them, and the limits that the statements count by."""

    limits: Mapping[str, int]
    listed: tuple[Expectation, ...]


def read_expectations(own: Path | None = None) -> Expectations:
    """Read what is expected, with what a file of one's own says otherwise.

    Errors: `BadExpectations`.
    """
    limits, listed = _shipped()
    limits, fields = dict(limits), {name: dict(each) for name, each in listed.items()}
    if own is not None:
        ours = _read(own)
        _refuse_unknown(own, "", ours, ("limits", "expectations"))
        given = _mapping(own, "limits", ours.get("limits") or {})
        _refuse_unknown(own, "limits.", given, limits)
        limits |= given
        for name, change in _mapping(own, "expectations", ours.get("expectations") or {}).items():
            if name not in fields:
                raise BadExpectations(f"{own}: expectations.{name}: there is none of this name")
            fields[name] |= _mapping(own, f"expectations.{name}", change)
    where = own or FOLDER / "expectations.yml"
    for name, value in limits.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadExpectations(f"{where}: limits.{name} must be a whole number, not {value!r}")
    return Expectations(limits, tuple(_expectation(where, name, each) for name, each in fields.items()))


@cache
def _shipped() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    read = _read(FOLDER / "expectations.yml")
    return read["limits"], read["expectations"]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        read = yaml.safe_load(file.read_text())
    except OSError as error:
        raise BadExpectations(f"{file}: {error.strerror}") from None
    except yaml.YAMLError as error:
        line = getattr(error, "problem_mark", None)
        where = f"line {line.line + 1}: " if line is not None else ""
        raise BadExpectations(f"{file}: {where}no YAML") from None
    return _mapping(file, "the file", read)


def _mapping(file: Path, name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadExpectations(f"{file}: {name} must be fields with values")
    return value


def _refuse_unknown(file: Path, before: str, given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            raise BadExpectations(f"{file}: {before}{name} is not known; known are {', '.join(known)}")


_FIELDS: Final = ("measure", "of", "only", "unit", "what", "warn", "fail", "why", "act")


def _expectation(file: Path, name: str, given: Mapping[str, Any]) -> Expectation:
    where = f"expectations.{name}"
    _refuse_unknown(file, f"{where}.", given, _FIELDS)
    measure = _MEASURE.fullmatch(str(given.get("measure")))
    if measure is None or not (FOLDER / f"{measure[1]}.sql").exists():
        raise BadExpectations(f"{file}: {where}.measure must be file.column of a file that is there")
    if given.get("unit") not in _UNITS:
        raise BadExpectations(f"{file}: {where}.unit must be one of {', '.join(_UNITS)}")
    for field in ("what", "why", "act"):
        if not isinstance(given.get(field), str):
            raise BadExpectations(f"{file}: {where}.{field} must be a text")
    levels = {
        severity: _level(file, f"{where}.{severity}", given[severity])
        for severity in _SEVERITIES
        if given.get(severity) is not None
    }
    return Expectation(
        name,
        measure[1],
        measure[2],
        given.get("of"),
        given["unit"],
        given["what"],
        given.get("only"),
        levels,
        given["why"],
        given["act"],
    )


def _level(file: Path, where: str, given: Any) -> Level:
    read = _mapping(file, where, given)
    _refuse_unknown(file, f"{where}.", read, ("least", "most", "sample"))
    for name, value in read.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise BadExpectations(f"{file}: {where}.{name} must be a number, not {value!r}")
    if "least" not in read and "most" not in read:
        raise BadExpectations(f"{file}: {where} must say least or most")
    return Level(read.get("least"), read.get("most"), int(read.get("sample", 0)))
