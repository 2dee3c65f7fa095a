"""The hash chain: each batch names its predecessor's hash, so that a changed row shows.

A digest is SHA-256 over a batch's COPY lines of one posting period, in entry_id order; a batch hash is SHA-256 over the
text below. Both can be recomputed from the tables alone, by anybody, in any language.
"""

from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from typing import Final

HASH_VERSION: Final = 1


def digest(lines: bytes) -> bytes:
    """Return the digest of COPY lines, each with its newline."""
    return sha256(lines).digest()


def batch_hash(
    *,
    feed: str,
    number: int,
    previous_hash: bytes,
    first_position: int | None,
    next_position: int | None,
    counts: Mapping[str, int],
    digests: Mapping[date, bytes],
) -> bytes:
    """Return the hash of a batch.

    Shape: lines `name value`, sorted where there are several, each ended by a newline, as ASCII with JSON-free values.
    """
    lines = [
        f"version {HASH_VERSION}",
        f"feed {feed}",
        f"number {number}",
        f"previous {previous_hash.hex()}",
        f"positions {'-' if first_position is None else first_position} {'-' if next_position is None else next_position}",
        *(f"count {name} {counts[name]}" for name in sorted(counts)),
        *(f"digest {period.isoformat()} {digests[period].hex()}" for period in sorted(digests)),
    ]
    return sha256("".join(f"{line}\n" for line in lines).encode()).digest()
