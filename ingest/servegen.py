"""ServeGen's clients as data/servegen holds them: how much each asks per ten minutes, how irregularly, and how long.

Measured rates and length distributions, not requests; where they come from and what was cut stands in data/servegen/README.md.
"""

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WINDOW_SECONDS: Final = 600
WINDOWS: Final = 2016
"""Fourteen days of ten minutes."""
WINDOWS_PER_BLOCK: Final = 36
BLOCKS: Final = WINDOWS // WINDOWS_PER_BLOCK
"""Of six hours, the source's unit of length tables."""
QUANTILES: Final = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles of tokens, at QUANTILES."""

    input: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One client of the source: a tenant of ours."""

    model: str
    client_id: str
    rates: Sequence[float]
    """Requests per second by window; 0 where the source has none."""
    cvs: Sequence[float]
    """Coefficient of variation of the gaps between requests, by window."""
    patterns: str
    """`G` for Gamma or `W` for Weibull, by window; a blank where there were no requests."""
    lengths: Mapping[int, Lengths]
    """By block of six hours; some of them."""
    lengths_of: str | None
    """The client whose lengths stand in for missing ones."""

    @property
    def tenant_id(self) -> str:
        return f"synthetic-{self.model}-{self.client_id}"


def read_clients(folder: Path) -> Sequence[Client]:
    """Read the clients, those with the most requests first."""
    rates: dict[tuple[str, str], tuple[list[float], list[float], list[str]]] = {}
    for model, client_id, window, rate, cv, pattern in _rows(folder / "client_rates.csv.gz"):
        found = rates.setdefault((model, client_id), ([0.0] * WINDOWS, [1.0] * WINDOWS, [" "] * WINDOWS))
        at = int(window)
        found[0][at], found[1][at], found[2][at] = float(rate), float(cv), pattern
    tables: dict[tuple[str, str], dict[int, dict[str, tuple[int, ...]]]] = {}
    for model, client_id, block, field, *values in _rows(folder / "client_lengths.csv.gz"):
        fields = tables.setdefault((model, client_id), {}).setdefault(int(block), {})
        fields[field] = tuple(int(value) for value in values)
    order = sorted(rates, key=lambda key: (-sum(rates[key][0]), key))
    clients = []
    for key in order:
        lent = key if key in tables else _next_in_volume(key, order, tables)
        lengths = {
            block: Lengths(fields["input"], fields["output"])
            for block, fields in tables[lent].items()
            if len(fields) == 2
        }
        levels, cvs, patterns = rates[key]
        clients.append(Client(*key, levels, cvs, "".join(patterns), lengths, None if lent == key else lent[1]))
    return clients


def _next_in_volume(
    key: tuple[str, str], order: Sequence[tuple[str, str]], tables: Mapping[tuple[str, str], object]
) -> tuple[str, str]:
    """Return the client of the same model that is nearest in volume and has lengths."""
    place = order.index(key)
    able = [at for at, other in enumerate(order) if other[0] == key[0] and other in tables]
    return order[min(able, key=lambda at: (abs(at - place), at))]


def _rows(path: Path) -> Iterator[list[str]]:
    with io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        yield from rows
