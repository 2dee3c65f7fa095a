"""Executes the rule model of FOCUS 1.2 on a frame: our own reading, beside the public validator's."""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import polars as pl

from ledger.money import CURRENCIES

MODEL: Final = Path(__file__).parent / "focus" / "rules_1.2.0.1.json.gz"

SUPPORTED: Final = frozenset(
    {
        "ACCOUNT_NAMING_SUPPORTED",
        "NEGOTIATED_PRICING_SUPPORTED",
        "PUBLIC_PRICE_LIST_SUPPORTED",
        "REGION_SUPPORTED",
        "UNIT_PRICING_SUPPORTED",
        "USAGE_MEASUREMENT_SUPPORTED",
    }
)
"""What we are as a provider in FOCUS's words. Not: commitments, capacity reservations, sub accounts, provisioned resources, zones,
several pricing categories, tags in the file, a virtual currency."""

BINDING: Final = frozenset({"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "RECOMMENDED"})

EXCEPTIONS: Final[Mapping[str, str]] = {
    "InvoiceId-C-004-C": "its condition (not associated with an invoice) is left out of the model, so it asks for null everywhere; "
    "InvoiceId-C-003-C needs only one of this and InvoiceId-C-005-C",
    "EffectiveCost-C-005-C": "asks for 0 on every Purchase; its sentence only on one that covers later charges, which our fees do not",
}
"""Rules whose data say something else than their sentence, with how."""

# As FOCUS writes units: words with capitals, a count before them where there is one.
_UNIT: Final = re.compile(r"(\d+ )?[A-Z][A-Za-z]*( [A-Z][A-Za-z]*)*([-/][A-Z][A-Za-z]*)?")


@dataclass(frozen=True)
class Outcome:
    """What came of the rules, by their ids."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """With the reason."""


def rules() -> dict[str, Any]:
    with gzip.open(MODEL) as file:
        found: dict[str, Any] = json.load(file)["ModelRules"]
    return found


def check(frame: pl.DataFrame) -> Outcome:
    """Hold a frame to every rule that applies and can be executed."""
    checker = _Checker(frame, rules())
    passed, failed, skipped = [], {}, {}
    for rule_id, rule in checker.rules.items():
        reason = checker.reason_to_skip(rule)
        if reason is not None:
            skipped[rule_id] = reason
        elif checker.holds(rule_id):
            passed.append(rule_id)
        else:
            failed[rule_id] = rule["ValidationCriteria"]["MustSatisfy"]
    return Outcome(tuple(passed), failed, skipped)


class _Checker:
    def __init__(self, frame: pl.DataFrame, model: Mapping[str, Any]) -> None:
        self.frame = frame
        self.rules = model
        self._known: dict[str, bool] = {}
        self._wholes: dict[str, list[str]] = {}
        for rule_id, rule in model.items():
            for item in rule["ValidationCriteria"]["Requirement"].get("Items", []):
                if "ModelRuleId" in item:
                    self._wholes.setdefault(item["ModelRuleId"], []).append(rule_id)

    def reason_to_skip(self, rule: Mapping[str, Any]) -> str | None:
        criteria = rule["ValidationCriteria"]
        if rule["Type"] == "Dynamic" or not criteria["Requirement"]:
            return "about conduct over time or outside the file: the model has nothing to execute"
        if criteria["Keyword"] not in BINDING:
            return "allows something and asks for nothing"
        missing = set(rule["ApplicabilityCriteria"]) - SUPPORTED
        if missing:
            return f"not ours: {', '.join(sorted(missing))}"
        of_column = {rule["Reference"]} if rule["EntityType"] == "Column" else set()
        named = (of_column | set(_columns(criteria["Requirement"]))) - set(self.frame.columns)
        if named and rule["Function"] != "Presence":
            return f"of a column that is not in the file: {', '.join(sorted(named))}"
        return None

    def holds(self, rule_id: str) -> bool:
        """Say whether a rule holds where its own condition and those of the rules that it is part of do."""
        if rule_id not in self._known:
            asked = self._all(True)
            for condition in self._conditions(rule_id):
                asked &= self._rows(condition)
            met = self._rows(self.rules[rule_id]["ValidationCriteria"]["Requirement"])
            self._known[rule_id] = bool((~asked | met).all())
        return self._known[rule_id]

    def _conditions(self, rule_id: str) -> Iterator[Mapping[str, Any]]:
        condition = self.rules[rule_id]["ValidationCriteria"]["Condition"]
        if condition:
            yield condition
        for whole in self._wholes.get(rule_id, ()):
            yield from self._conditions(whole)

    def _rows(self, check: Mapping[str, Any]) -> pl.Series:
        """Return for each row whether a check holds."""
        name = check["CheckFunction"]
        if name in {"AND", "OR"}:
            parts = [self._rows(item) for item in check["Items"]]
            together = parts[0]
            for part in parts[1:]:
                together = together & part if name == "AND" else together | part
            return together
        if name == "CheckModelRule":
            part = check["ModelRuleId"]
            # A part that does not apply asks for nothing, and one that is excepted is named by itself.
            return self._all(
                part in EXCEPTIONS or self.reason_to_skip(self.rules[part]) is not None or self.holds(part)
            )
        return _CHECKS[name](self, check)

    def _all(self, holds: bool) -> pl.Series:
        return pl.repeat(holds, self.frame.height, eager=True, dtype=pl.Boolean)

    def column(self, check: Mapping[str, Any], name: str = "ColumnName") -> pl.Series:
        if check[name] not in self.frame.columns:
            # What is not in the file is null: conditions speak of columns of features that we lack.
            return pl.repeat(None, self.frame.height, eager=True, dtype=pl.String)
        return self.frame[check[name]]

    def equals(self, check: Mapping[str, Any]) -> pl.Series:
        column, value = self.column(check), check["Value"]
        if value is None:
            return column.is_null()
        if column.dtype.is_decimal():
            return (column == Decimal(str(value))).fill_null(False)
        return (column == value).fill_null(False)

    def same(self, check: Mapping[str, Any]) -> pl.Series:
        return self.column(check, "ColumnAName").eq_missing(self.column(check, "ColumnBName"))

    def of_type(self, check: Mapping[str, Any], test: Callable[[Any], bool]) -> pl.Series:
        return self._all(test(self.column(check).dtype))

    def each(self, check: Mapping[str, Any], test: Callable[[Any], bool]) -> pl.Series:
        return pl.Series([value is None or test(value) for value in self.column(check)], dtype=pl.Boolean)

    def one_for_each(self, check: Mapping[str, Any]) -> pl.Series:
        a, b = check["ColumnAName"], check["ColumnBName"]
        counts = self.frame.filter(pl.col(a).is_not_null()).group_by(a).agg(pl.col(b).n_unique().alias("count"))
        return self._all(bool((counts["count"] == check["ExpectedCount"]).all()))

    def product(self, check: Mapping[str, Any]) -> pl.Series:
        """To the last digit: both factors and the result are decimals."""
        triples = zip(
            self.column(check, "ColumnAName"), self.column(check, "ColumnBName"), self.column(check, "ResultColumnName"),
            strict=True,
        )  # fmt: skip
        return pl.Series(
            [a is None or b is None or _times(a, b) == result for a, b, result in triples], dtype=pl.Boolean
        )


def _times(a: Decimal, b: Decimal) -> Decimal:
    from ledger.money import EXACT

    return EXACT.multiply(a, b)


def _is_flat_object(text: str) -> bool:
    found = json.loads(text)
    return isinstance(found, dict) and not any(isinstance(value, dict | list) for value in found.values())


def _columns(check: Mapping[str, Any]) -> Iterator[str]:
    for name, value in check.items():
        if name in {"ColumnName", "ColumnAName", "ColumnBName", "ResultColumnName"}:
            yield value
    for item in check.get("Items", []):
        yield from _columns(item)


_CHECKS: Final[Mapping[str, Callable[[_Checker, Mapping[str, Any]], pl.Series]]] = {
    "ColumnPresent": lambda c, check: c._all(check["ColumnName"] in c.frame.columns),
    "CheckValue": lambda c, check: c.equals(check),
    "CheckNotValue": lambda c, check: ~c.equals(check),
    "CheckSameValue": lambda c, check: c.same(check),
    "CheckNotSameValue": lambda c, check: ~c.same(check),
    "CheckGreaterOrEqualThanValue": lambda c, check: (c.column(check) >= Decimal(check["Value"])).fill_null(True),
    "CheckDistinctCount": lambda c, check: c.one_for_each(check),
    "CheckDecimalValue": lambda c, check: c.of_type(check, lambda kind: kind.is_decimal()),
    "CheckNationalCurrency": lambda c, check: c.each(check, lambda code: code in CURRENCIES),
    "ColumnByColumnEqualsColumnValue": lambda c, check: c.product(check),
    "TypeString": lambda c, check: c.of_type(check, lambda kind: kind == pl.String),
    "TypeDecimal": lambda c, check: c.of_type(check, lambda kind: kind.is_decimal()),
    "TypeDateTime": lambda c, check: c.of_type(check, lambda kind: kind == pl.Datetime("us", "UTC")),
    "FormatDateTime": lambda c, check: c.of_type(check, lambda kind: kind == pl.Datetime("us", "UTC")),
    "FormatNumeric": lambda c, check: c.of_type(check, lambda kind: kind.is_decimal()),
    "FormatString": lambda c, check: c.each(check, lambda text: bool(text.strip())),
    "FormatUnit": lambda c, check: c.each(check, lambda text: _UNIT.fullmatch(text) is not None),
    "FormatKeyValue": lambda c, check: c.each(check, _is_flat_object),
    "FormatCurrency": lambda c, check: c.each(check, lambda code: re.fullmatch("[A-Z]{3}", code) is not None),
}
