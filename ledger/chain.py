"""The hash chain: each batch names its predecessor's hash, so that a changed row shows.

A digest is SHA-256 over a batch's COPY lines of one posting period, in entry_id order; a batch hash is SHA-256 over the
text below. Both can be recomputed from the tables alone, by anybody, in any language. Beside a digest stands the CRC-32 of
each row: the digest proves that something differs, the marks say where.
"""

import struct
from collections.abc import Mapping, Sequence
from datetime import date
from hashlib import sha256
from typing import Final, Literal
from zlib import crc32

HASH_VERSION: Final = 1
HASH_VERSION_WITH_WINDOWS: Final = 2
"""Of a batch that brought windows of nodes: one more line, their digest. All others have the bytes that they always had."""


def digest(lines: bytes) -> bytes:
    """Return the digest of COPY lines, each with its newline."""
    return sha256(lines).digest()


def row_marks(lines: Sequence[bytes]) -> bytes:
    """Return the CRC-32 of each COPY line, four bytes each, big-endian, in their order."""
    return struct.pack(f">{len(lines)}I", *map(crc32, lines))


def first_difference(lines: Sequence[bytes], marks: bytes) -> tuple[Literal["changed", "missing", "added"], int] | None:
    """Return what happened to the first row that is not what was posted, and its index among the lines.

    A missing row is named by the index of the one that stands in its place, which may be one behind the last. None where
    every mark fits: then whoever changed a row changed its mark too, and only the digest shows it.
    """
    stated = [mark for (mark,) in struct.iter_unpack(">I", marks)]
    found = [crc32(line) for line in lines]
    for index, mark in enumerate(found):
        if index >= len(stated):
            return "added", index
        if mark != stated[index]:
            if found[index + 1 :] == stated[index + 1 :]:
                return "changed", index
            if found[index : index + 1] == stated[index + 1 : index + 2]:
                return "missing", index
            if found[index + 1 : index + 2] == stated[index : index + 1]:
                return "added", index
            return "changed", index
    return ("missing", len(found)) if len(stated) > len(found) else None


def hash_version(windows: bytes | None) -> int:
    """Return how the hash of a batch is made, by the digest of its windows or None."""
    return HASH_VERSION if windows is None else HASH_VERSION_WITH_WINDOWS


def batch_hash(
    *,
    feed: str,
    number: int,
    previous_hash: bytes,
    first_position: int | None,
    next_position: int | None,
    counts: Mapping[str, int],
    digests: Mapping[date, bytes],
    windows: bytes | None = None,
) -> bytes:
    """Return the hash of a batch; `windows` is the digest of the node windows that it brought, where it brought any.

    Shape: lines `name value`, sorted where there are several, each ended by a newline, as ASCII with JSON-free values.
    """
    lines = [
        f"version {hash_version(windows)}",
        f"feed {feed}",
        f"number {number}",
        f"previous {previous_hash.hex()}",
        f"positions {'-' if first_position is None else first_position} {'-' if next_position is None else next_position}",
        *(f"count {name} {counts[name]}" for name in sorted(counts)),
        *(f"digest {period.isoformat()} {digests[period].hex()}" for period in sorted(digests)),
        *([] if windows is None else [f"windows {windows.hex()}"]),
    ]
    return sha256("".join(f"{line}\n" for line in lines).encode()).digest()
