"""Identities as 16-byte keys, and the hash that tells a duplicate from a conflict."""

import re
from hashlib import sha256
from typing import Final

EVENT: Final = b"event"
REQUEST: Final = b"request"
ACT: Final = b"act"

_UUID7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def key(kind: bytes, tenant: str, source: str, identity: str) -> str:
    """Return the key of an identity, as the 36 characters in which Postgres prints a uuid.

    Each part goes in with its length, so that ("ab", "c") and ("a", "bc") differ. A UUIDv7 identity puts its own 48 bits
    of time in front of 80 bits of SHA-256: keys that arrive together lie together, and the hot pages of a large index
    stay in memory.
    """
    tenant_bytes, source_bytes, identity_bytes = tenant.encode(), source.encode(), identity.encode()
    digest = sha256(
        b"%b %d:%b %d:%b %d:%b"
        % (
            kind,
            len(tenant_bytes), tenant_bytes,
            len(source_bytes), source_bytes,
            len(identity_bytes), identity_bytes,
        )
    ).hexdigest()  # fmt: skip
    if len(identity) == 36 and identity[14] == "7" and _UUID7.fullmatch(identity):
        return f"{identity[:13].lower()}-{digest[:4]}-{digest[4:8]}-{digest[8:20]}"
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


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
