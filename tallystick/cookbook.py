"""The SQL cookbook: questions of finance and on-call as dbt analyses, read here so that they can be asked without dbt."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent.parent / "dbt" / "analyses"

_VARIABLE: Final = re.compile(r"\{\{ var\(\"([a-z_]+)\", \"([^\"]*)\"\) \}\}")
_REFERENCE: Final = re.compile(r"\{\{ ref\('([a-z0-9_]+)'\) \}\}")
_HEADER: Final = re.compile(r"-- question: (.+)\n-- asked by: (.+)\n-- one row per: (.+)\n")
# Where a value stands outside quotes, it is a number.
_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


class CookbookError(Exception):
    """A question cannot be asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, with what it takes."""

    name: str
    question: str
    asked_by: str
    grain: str
    variables: Mapping[str, str]
    """Names with their defaults."""


def questions() -> Sequence[Question]:
    """List the questions by name."""
    return [_read(file) for file in sorted(FOLDER.glob("*.sql"))]


def statement(name: str, given: Mapping[str, str]) -> str:
    """Return the statement of a question, with values for its variables.

    Errors: `CookbookError` for a question or a variable that is not there, and for a value that cannot stand where it would.
    """
    file = FOLDER / f"{name.replace('-', '_')}.sql"
    if not re.fullmatch(r"[a-z0-9_-]+", name) or not file.exists():
        raise CookbookError(f"there is no question {name}: `tallystick sql --list` names them")
    known = _read(file).variables
    for variable in given:
        if variable not in known:
            raise CookbookError(f"{name} takes no {variable}; it takes {', '.join(known)}")
    text = file.read_text()

    def value(match: re.Match[str]) -> str:
        chosen = given.get(match[1], match[2])
        if text[match.start() - 1] == "'":
            return chosen.replace("'", "''")
        if not _NUMBER.fullmatch(chosen):
            raise CookbookError(f"{match[1]} must be a number, not {chosen!r}")
        return chosen

    return _REFERENCE.sub(r"marts.\1", _VARIABLE.sub(value, text))


def _read(file: Path) -> Question:
    text = file.read_text()
    header = _HEADER.match(text)
    assert header is not None, file
    variables = {match[1]: match[2] for match in _VARIABLE.finditer(text)}
    return Question(file.stem.replace("_", "-"), header[1], header[2], header[3], dict(sorted(variables.items())))
