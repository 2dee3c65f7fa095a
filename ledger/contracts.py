"""Reviewed prices as YAML: contracts, plans, markups and node rates, read into cards.

A file names its source and the day on which it was checked, then its cards:

    source: Framework agreement 2026-014, annex B
    checked_on: 2026-11-20
    cards:
      - book: charge
        provider: openai
        model: gpt-4.1
        tenant_id: t-alpha            # left out: the plan
        currency: USD
        effective_at: 2026-12-01T00:00:00Z
        rates:
          uncached_input_tokens: 2.50 per 1000000
          visible_output_tokens: 10 per 1000000
          web_fetch_calls: free
        bands:
          - above: 200000             # or `from`, where the threshold itself is in the band
            rates: {uncached_input_tokens: 5 per 1000000, visible_output_tokens: 20 per 1000000}
        variants:
          - service_tiers: [batch]
            bands: []
            rates: {uncached_input_tokens: 1.25 per 1000000}

Every scalar is read as text, so that a price is the digits that stand in the file.
"""

import re
from collections.abc import Hashable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from ledger.errors import CardRefused
from ledger.meters import METERS
from ledger.money import parse_amount
from ledger.price_book import Band, Body, Card, Price, Variant, check_card
from ledger.times import parse_rfc3339

_RATE: Final = re.compile(r"(\S+) per ([\d_]+)", re.ASCII)
_FILE_FIELDS: Final = frozenset({"source", "checked_on", "cards"})
_CARD_FIELDS: Final = frozenset(
    {
        "book", "provider", "provider_account", "deployment", "model", "tenant_id", "currency", "effective_at",
        "is_withdrawal", "rates", "bands", "variants", "missing_component", "other_tiers", "is_free", "markup",
        "billing_rules", "is_high_price_confirmed", "replaces", "source", "checked_on",
    }
)  # fmt: skip
_VARIANT_FIELDS: Final = frozenset({"service_tiers", "regions", "hours", "rates", "bands"})
_BAND_FIELDS: Final = frozenset({"above", "from", "rates"})


class TextLoader(yaml.BaseLoader):
    """Reads every scalar as text, and refuses a key that stands twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice in the mapping at line {line}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Return what a file holds, each scalar as its text. Errors: ValueError saying what is not YAML about it."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=TextLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError("is not YAML: " + " ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("is not YAML that can be read: it is nested too deeply") from None


def load_contracts(path: Path) -> list[Card]:
    """Read the cards of a file; raise CardRefused naming file, card, field and rule for what is wrong first."""
    where = path.name
    try:
        document = read_yaml(path)
    except ValueError as error:
        _refuse(where, "file", str(error))
    whole = _mapping(where, "file", document, _FILE_FIELDS)
    for name in ("source", "checked_on", "cards"):
        if not whole.get(name):
            _refuse(where, name, "is missing")
    listed = _list(where, "cards", whole["cards"])
    return [_card(f"{where} no. {number}", each, whole) for number, each in enumerate(listed, 1)]


def _refuse(card: str, field: str, rule: str) -> NoReturn:
    raise CardRefused(card, field, rule)


def _mapping(card: str, field: str, value: object, known: frozenset[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(card, field, "is not a mapping of fields")
    for name in value:
        if known is not None and name not in known:
            _refuse(card, field if field == "file" else f"{field}.{name}", f"has the unknown field {name!r}")
    return value


def _list(card: str, field: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        _refuse(card, field, "is not a list")
    return value


def _text(card: str, field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        _refuse(card, field, "is not a text")
    return value


def _texts(card: str, field: str, value: object) -> tuple[str, ...]:
    return tuple(_text(card, field, each) for each in _list(card, field, value))


def _flag(card: str, field: str, value: object) -> bool:
    if value not in ("true", "false"):
        _refuse(card, field, f"is {value!r}; it takes true or false")
    return value == "true"


def _one_of(card: str, field: str, value: object, *allowed: str) -> Any:
    if value not in allowed:
        _refuse(card, field, f"is {value!r}; it takes {' or '.join(allowed)}")
    return value


def _day(card: str, field: str, value: object) -> date:
    try:
        return date.fromisoformat(_text(card, field, value))
    except ValueError:
        _refuse(card, field, f"is {value!r}; it takes a day such as 2026-11-20")


def _decimal(card: str, field: str, text: str) -> Decimal:
    try:
        return parse_amount(text)
    except ValueError as error:
        _refuse(card, field, str(error))


def _whole(card: str, field: str, value: object) -> int:
    text = _text(card, field, value).replace("_", "")
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        _refuse(card, field, f"is {value!r}; it takes a whole number")
    return int(text)


def _card(label: str, value: object, whole: Mapping[str, Any]) -> Card:
    raw = _mapping(label, "card", value, _CARD_FIELDS)
    label = f"{label} ({raw.get('provider', '?')} {raw.get('model', 'every model')})"
    for name in ("book", "provider", "currency", "effective_at"):
        if name not in raw:
            _refuse(label, name, "is missing")
    try:
        effective_at = parse_rfc3339(_text(label, "effective_at", raw["effective_at"]))
    except ValueError as error:
        _refuse(label, "effective_at", str(error))

    def optional(name: str) -> str | None:
        return _text(label, name, raw[name]) if name in raw else None

    rates = _rates(label, "rates", raw.get("rates", {}))
    bands = _bands(label, "bands", raw.get("bands", []))
    body = Body(
        rates=rates,
        bands=bands,
        variants=tuple(
            _variant(label, f"variants[{n}]", each, bool(bands))
            for n, each in enumerate(_list(label, "variants", raw.get("variants", [])), 1)
        ),
        missing_component=_one_of(
            label,
            "missing_component",
            raw.get("missing_component", "refuse"),
            "refuse",
            "use_input_rate",
            "use_side_rate",
        ),
        other_tiers=_one_of(label, "other_tiers", raw.get("other_tiers", "refuse"), "refuse", "use_base_rates"),
        is_free=_flag(label, "is_free", raw.get("is_free", "false")),
        markup=_decimal(label, "markup", _text(label, "markup", raw["markup"])) if "markup" in raw else None,
        billing_rules={
            name: _text(label, f"billing_rules.{name}", rule)
            for name, rule in _mapping(label, "billing_rules", raw.get("billing_rules", {})).items()
        },
        is_high_price_confirmed=_flag(label, "is_high_price_confirmed", raw.get("is_high_price_confirmed", "false")),
        replaces=optional("replaces"),
    )
    card = Card(
        book=_one_of(label, "book", raw["book"], "cost", "charge"),
        provider=_text(label, "provider", raw["provider"]),
        provider_account=optional("provider_account"),
        deployment=optional("deployment"),
        model=optional("model"),
        tenant_id=optional("tenant_id"),
        currency=_text(label, "currency", raw["currency"]),
        effective_at=effective_at,
        is_withdrawal=_flag(label, "is_withdrawal", raw.get("is_withdrawal", "false")),
        source_address=optional("source") or _text(label, "source", whole["source"]),
        checked_on=_day(label, "checked_on", raw.get("checked_on", whole["checked_on"])),
        body=body,
    )
    try:
        check_card(card)
    except CardRefused as refused:
        _refuse(label, refused.field, refused.rule)
    return card


def _rates(card: str, field: str, value: object) -> dict[str, Price]:
    rates = {}
    for meter, text in _mapping(card, field, value).items():
        here = f"{field}.{meter}"
        if text == "free":
            rates[meter] = Price(Decimal(0), 1, is_free=True)
            continue
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            _refuse(card, here, f"is {text!r}; it takes a price and its unit, such as 2.50 per 1000000, or free")
        rates[meter] = Price(_decimal(card, here, match[1]), _whole(card, here, match[2]))
    return rates


def _bands(card: str, field: str, value: object) -> tuple[Band, ...]:
    bands = []
    for number, each in enumerate(_list(card, field, value), 1):
        here = f"{field}[{number}]"
        raw = _mapping(card, here, each, _BAND_FIELDS)
        if ("above" in raw) == ("from" in raw):
            _refuse(card, here, "takes one of `above` and `from`")
        operator: Any = ">" if "above" in raw else ">="
        threshold = _whole(card, f"{here} threshold", raw.get("above", raw.get("from")))
        bands.append(Band(operator, threshold, _rates(card, f"{here}.rates", raw.get("rates", {}))))
    return tuple(bands)


def _variant(card: str, field: str, value: object, has_bands: bool) -> Variant:
    raw = _mapping(card, field, value, _VARIANT_FIELDS)
    rates = _rates(card, f"{field}.rates", raw.get("rates", {}))
    # Whoever writes a batch price beside a long-context price has to say what a long batch request costs.
    if has_bands and "bands" not in raw and any(m in METERS and METERS[m].unit == "token" for m in rates):
        _refuse(
            card, f"{field}.bands", "are missing; beside a card with bands a variant states its own, or `[]` for none"
        )
    hours = raw.get("hours")
    if hours is not None and (not isinstance(hours, str) or hours.count("-") != 1):
        _refuse(card, f"{field}.hours", f"are {hours!r}; they take a span in UTC such as 16:30-00:30")
    starts, _, ends = (hours or "").partition("-")
    return Variant(
        service_tiers=_texts(card, f"{field}.service_tiers", raw.get("service_tiers", [])),
        regions=_texts(card, f"{field}.regions", raw.get("regions", [])),
        hours=(starts, ends) if hours else None,
        rates=rates,
        bands=_bands(card, f"{field}.bands", raw.get("bands", [])),
    )
