"""Identities as 16-byte keys, and the hash that tells a duplicate from a conflict."""

import re
from hashlib import sha256
from typing import Final

EVENT: Final = b"event"
REQUEST: Final = b"request"
ACT: Final = b"act"

# Both cases are spelled out: a case-blind pattern takes twice the time, and every event passes here twice.
_UUID7: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}", re.ASCII
).fullmatch


def key_head(kind: bytes, tenant: str, source: str) -> str:
    """Return what all keys of one kind, tenant and source begin with: each part behind its length in bytes."""
    return f"{kind.decode()} {len(tenant.encode())}:{tenant} {len(source.encode())}:{source} "


def key_under(head: str, identity: str) -> str:
    """Return the key of an identity under a head, as the 36 characters in which Postgres prints a uuid.

    Each part goes in with its length, so that ("ab", "c") and ("a", "bc") differ. A UUIDv7 identity puts its own 48
    bits of time in front of 80 bits of SHA-256: keys that arrive together lie together, and the hot pages of a large
    index stay in memory.
    """
    length = len(identity) if identity.isascii() else len(identity.encode())
    digest = sha256(f"{head}{length}:{identity}".encode()).hexdigest()
    if length == 36 and identity[14] == "7" and _UUID7(identity):
        return f"{identity[:13].lower()}-{digest[:4]}-{digest[4:8]}-{digest[8:20]}"
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def key(kind: bytes, tenant: str, source: str, identity: str) -> str:
    """Return the key of an identity; who makes many of one kind, tenant and source keeps their head."""
    return key_under(key_head(kind, tenant, source), identity)


def event_key(tenant: str, source: str, identity: str) -> str:
    """Return the key of an event: what makes sending it repeatable."""
    return key(EVENT, tenant, source, identity)


def request_key(tenant: str, request_id: str) -> str:
    """Return the key of a request: one upstream attempt that somebody bills, whoever reports it."""
    return key(REQUEST, tenant, "", request_id)


def digest_uuid(content: bytes) -> str:
    """Return the first 16 bytes of SHA-256, printed as a uuid."""
    digest = sha256(content).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
