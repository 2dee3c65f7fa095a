"""The words of a document by language, and how that language writes numbers and days."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final

import yaml
from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_interval

from billing.errors import DocumentNotPrintable

_FOLDER: Final = Path(__file__).parent.parent / "words"
_NO_BREAK: Final = "\u00a0"
_RIGHT_TO_LEFT: Final = "\u200f"
_ISOLATE: Final = "\u2068"
_END_OF_ISOLATE: Final = "\u2069"


@dataclass(frozen=True, slots=True)
class Words:
    """One language: its words, its direction, and its way with numbers and days."""

    tag: str
    locale: Locale
    words: Mapping[str, str]
    meters: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.words[name]

    @property
    def direction(self) -> str:
        """`ltr` or `rtl`."""
        return str(self.locale.text_direction)

    def apart(self, text: str) -> str:
        """Return a text of somebody else's so that it runs in its own direction: an address in Latin letters on an Arabic page."""
        return f"{_ISOLATE}{text}{_END_OF_ISOLATE}" if self.direction == "rtl" else text

    def meter(self, name: str) -> str:
        """Return a meter in words; one that the language has no words for, by its name."""
        return self.meters.get(name, name.replace("_", " "))

    def number(self, value: Decimal, places: int | None = None) -> str:
        """Return a number with every digit that it has, at least `places` after the point; nothing is rounded.

        Source: separators and groups of the Unicode locale data, with the digits 0 to 9 in every language.
        """
        symbols = self.locale.number_symbols["latn"]
        first, following = self.locale.decimal_formats[None].grouping
        whole, _, fraction = f"{value.copy_abs():f}".partition(".")
        fraction = fraction.rstrip("0").ljust(places or 0, "0")
        groups = [whole[-first:]]
        whole = whole[:-first]
        while whole:
            groups.append(whole[-following:])
            whole = whole[:-following]
        text = symbols["group"].join(reversed(groups)) + (symbols["decimal"] + fraction if fraction else "")
        return f"{symbols['minusSign']}{text}" if value < 0 else text

    def money(self, value: Decimal, currency: str, places: int | None = None) -> str:
        """Return a number with its currency's code, on the side where the language writes it."""
        number = self.number(value, places)
        pattern = self.locale.currency_formats["standard"].pattern.partition(";")[0]
        if pattern.replace("\u200f", "").replace("\u200e", "").startswith("¤"):
            return f"{currency}{_NO_BREAK}{number}"
        # The mark keeps a code in Latin letters from drawing the number before it into its own direction.
        return f"{number}{_RIGHT_TO_LEFT if self.direction == 'rtl' else ''}{_NO_BREAK}{currency}"

    def country(self, code: str | None) -> str | None:
        """Return a country of ISO 3166-1 by its name; what is no code stands as it is."""
        return None if code is None else str(self.locale.territories.get(code.strip(), code))

    def day(self, value: date) -> str:
        """Return a day with its month in words."""
        return format_date(value, "long", locale=self.locale)

    def days(self, start: date, end: date) -> str:
        """Return the days from `start` until `end`, exclusive, with the last one named."""
        last = end - timedelta(days=1)
        return self.day(start) if last <= start else format_interval(start, last, "yMMMMd", locale=self.locale)


@cache
def languages() -> tuple[str, ...]:
    """Return the languages that there are words for."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yml")))


@cache
def words_of(tag: str) -> Words:
    """Return the words of a BCP 47 tag: the language's, with the region's way with numbers and days.

    Errors: DocumentNotPrintable where there are no words for the language.
    """
    primary = tag.replace("_", "-").split("-")[0].lower()
    if primary not in languages():
        raise DocumentNotPrintable(f"language {tag}: there are words for {', '.join(languages())} only")
    try:
        locale = Locale.parse(tag, sep="-" if "-" in tag else "_", resolve_likely_subtags=True)
    except (UnknownLocaleError, ValueError):
        locale = Locale.parse(primary)
    read = yaml.safe_load((_FOLDER / f"{primary}.yml").read_text(encoding="utf-8"))
    meters = read.pop("meters")
    return Words(tag, locale, read, meters)
