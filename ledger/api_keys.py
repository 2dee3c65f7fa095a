"""API keys: made once, shown once, and kept as a hash."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Final

import psycopg

from ledger.database import Connection, record_act
from ledger.errors import ActRefused, Unknown

PREFIX: Final = "tsk_"
"""In front of each token, so that scanners of source code and logs can recognise one."""
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY_ID_LENGTH: Final = len(PREFIX) + 2 * _ID_BYTES
_TOKEN_LENGTH: Final = _KEY_ID_LENGTH + 1 + 2 * _SECRET_BYTES


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown once, to whoever made it."""

    key_id: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in force, and whom it speaks for: one tenant, or the tenants of one source."""

    key_id: str
    secret_hash: bytes = field(repr=False)
    tenant_id: str | None
    source: str | None
    speaks_for_all: bool = False
    tenant_ids: frozenset[str] = frozenset()

    def may_read(self, tenant_id: str) -> bool:
        return tenant_id == self.tenant_id or self.speaks_for_all or tenant_id in self.tenant_ids


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key as a list shows it."""

    key_id: str
    tenant_id: str | None
    source: str | None
    note: str | None
    created_at: datetime
    revoked_at: datetime | None


def split_token(token: str) -> tuple[str, str] | None:
    """Return (key id, secret) of a token, or None for what is none; says nothing of whether it is in force."""
    if len(token) != _TOKEN_LENGTH or not token.startswith(PREFIX) or token[_KEY_ID_LENGTH] != "_":
        return None
    if not token.isascii() or not token.replace("_", "").isalnum():
        return None
    return token[:_KEY_ID_LENGTH], token[_KEY_ID_LENGTH + 1 :]


def is_secret_of(secret: str, key: ApiKey) -> bool:
    """Say whether a secret is the key's, in a time that does not depend on how much of it is right."""
    return compare_digest(_hash_of(secret), key.secret_hash)


def _hash_of(secret: str) -> bytes:
    # 256 random bits cannot be guessed, so a fast hash is as good here as a slow one.
    return sha256(secret.encode()).digest()


async def find_keys(connection: Connection, key_ids: Sequence[str]) -> dict[str, ApiKey]:
    """Return those of the keys that are in force, by id: not revoked, and their source not ended."""
    cursor = await connection.execute(
        "select k.key_id, k.secret_hash, k.tenant_id, k.source, coalesce(s.speaks_for_all, false),"
        " array(select t.tenant_id from ledger.source_tenants as t where t.source = k.source)"
        " from ledger.api_keys as k"
        " left join ledger.sources as s on s.source = k.source"
        " where k.key_id = any(%s) and k.revoked_at is null and s.ended_at is null",
        [list(key_ids)],
    )
    return {
        row[0]: ApiKey(row[0], bytes(row[1]), row[2], row[3], row[4], frozenset(row[5]))
        for row in await cursor.fetchall()
    }


async def create_key(
    connection: Connection,
    *,
    actor: str,
    tenant_id: str | None = None,
    source: str | None = None,
    note: str | None = None,
) -> NewKey:
    """Make a key for one tenant or for one source; the token in the answer can never be read again.

    Errors: `Unknown` for a tenant or source that is not there, `ActRefused` unless exactly one of them is given.
    """
    if (tenant_id is None) == (source is None):
        raise ActRefused("a key belongs to one tenant or to one source")
    key_id, secret = PREFIX + secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    try:
        async with connection.transaction():
            await connection.execute(
                "insert into ledger.api_keys (key_id, secret_hash, tenant_id, source, note) values (%s, %s, %s, %s, %s)",
                [key_id, _hash_of(secret), tenant_id, source, note],
            )
            await record_act(
                connection, actor, "keys.create", {"key_id": key_id, "tenant_id": tenant_id, "source": source}, note
            )
    except psycopg.errors.ForeignKeyViolation:
        raise Unknown("tenant" if source is None else "source", tenant_id or source or "") from None
    return NewKey(key_id, f"{key_id}_{secret}")


async def revoke_key(connection: Connection, key_id: str, *, actor: str, reason: str | None = None) -> None:
    """End a key; each API process notices within the few seconds for which it remembers keys.

    Errors: `Unknown` for a key that is not there or has been revoked already.
    """
    async with connection.transaction():
        cursor = await connection.execute(
            "update ledger.api_keys set revoked_at = clock_timestamp() where key_id = %s and revoked_at is null"
            " returning key_id",
            [key_id],
        )
        if await cursor.fetchone() is None:
            raise Unknown("key in force", key_id)
        await record_act(connection, actor, "keys.revoke", {"key_id": key_id}, reason)


async def list_keys(
    connection: Connection, *, tenant_id: str | None = None, source: str | None = None
) -> list[ListedKey]:
    """Return all keys, or those of a tenant or source, the newest last; never a secret."""
    cursor = await connection.execute(
        "select key_id, tenant_id, source, note, created_at, revoked_at from ledger.api_keys"
        " where (%(tenant)s::text is null or tenant_id = %(tenant)s)"
        " and (%(source)s::text is null or source = %(source)s)"
        " order by created_at, key_id",
        {"tenant": tenant_id, "source": source},
    )
    return [ListedKey(*row) async for row in cursor]
