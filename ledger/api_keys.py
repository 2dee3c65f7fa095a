"""API keys: made once, shown once, and kept as a hash."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Literal, get_args

import psycopg

from ledger.database import Connection, record_act
from ledger.errors import ActRefused, Unknown

PREFIX: Final = "tsk_"
"""In front of each token, so that scanners of source code and logs can recognise one."""
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY_ID_LENGTH: Final = len(PREFIX) + 2 * _ID_BYTES
_TOKEN_LENGTH: Final = _KEY_ID_LENGTH + 1 + 2 * _SECRET_BYTES

Scope = Literal[
    "events:write",
    "budgets:read",
    "reservations:write",
    "usage:read",
    "invoices:read",
    "budgets:write",
    "grants:write",
    "corrections:write",
    "parties:write",
    "periods:write",
    "dead-letters:write",
    "invoices:write",
    "webhooks:write",
]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
DEFAULT_SCOPES: Final[tuple[Scope, ...]] = SCOPES[:5]
"""What the key of a tenant or a source may do unless it is told otherwise, and the most that it can be told: the others
change things for everybody."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown once, to whoever made it."""

    key_id: str
    token: str = field(repr=False)
    scopes: tuple[Scope, ...] = ()
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in force, and whom it speaks for: one tenant, the tenants of one source, or, an operator's, everybody."""

    key_id: str
    secret_hash: bytes = field(repr=False)
    tenant_id: str | None
    source: str | None
    speaks_for_all: bool = False
    tenant_ids: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    seconds_left: Decimal | None = None
    """Until it expires, by the database's clock, when it was looked up; None: it does not."""

    @property
    def is_operators(self) -> bool:
        return self.tenant_id is None and self.source is None

    @property
    def actor(self) -> str:
        """Who acts, for the record."""
        return f"key {self.key_id}"

    def may_read(self, tenant_id: str) -> bool:
        return tenant_id == self.tenant_id or self.speaks_for_all or tenant_id in self.tenant_ids


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key as a list shows it."""

    key_id: str
    tenant_id: str | None
    source: str | None
    scopes: tuple[str, ...]
    note: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    is_in_force: bool


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
    """Return those of the keys that are in force, by id: neither revoked nor expired, and their source not ended."""
    cursor = await connection.execute(
        "select k.key_id, k.secret_hash, k.tenant_id, k.source,"
        " coalesce(s.speaks_for_all, k.tenant_id is null),"
        " array(select t.tenant_id from ledger.source_tenants as t where t.source = k.source),"
        " k.scopes, extract(epoch from k.expires_at - clock_timestamp())"
        " from ledger.api_keys as k"
        " left join ledger.sources as s on s.source = k.source"
        " where k.key_id = any(%s) and k.revoked_at is null and s.ended_at is null"
        " and (k.expires_at is null or k.expires_at > clock_timestamp())",
        [list(key_ids)],
    )
    return {
        row[0]: ApiKey(
            row[0], bytes(row[1]), row[2], row[3], row[4], frozenset(row[5]), frozenset(row[6]), seconds_left=row[7]
        )
        for row in await cursor.fetchall()
    }


def chosen_scopes(named: Iterable[str], *, is_operators: bool) -> tuple[Scope, ...]:
    """Return the scopes of a key to be, in their order: those named, or those that its kind has by default.

    Errors: `ActRefused` for a scope that there is not, for one of operators on a key of a tenant or source, and for an
    operator's key without any.
    """
    wanted = set(named)
    for name in sorted(wanted - set(SCOPES)):
        raise ActRefused(f"scope: there is none named {name!r}; there are {', '.join(SCOPES)}")
    if is_operators:
        if not wanted:
            raise ActRefused("scope: an operator's key has those that are named and no others: name at least one")
    else:
        for name in sorted(wanted - set(DEFAULT_SCOPES)):
            raise ActRefused(f"scope: {name} changes things for everybody, so only an operator's key may have it")
        wanted = wanted or set(DEFAULT_SCOPES)
    return tuple(scope for scope in SCOPES if scope in wanted)


async def create_key(
    connection: Connection,
    *,
    actor: str,
    tenant_id: str | None = None,
    source: str | None = None,
    is_operators: bool = False,
    scopes: Iterable[str] = (),
    expires_at: datetime | None = None,
    note: str | None = None,
) -> NewKey:
    """Make a key for one tenant, for one source or for an operator; the token in the answer can never be read again.

    Errors: `Unknown` for a tenant or source that is not there, `ActRefused` unless exactly one of the three is given, for
    a load's source, for scopes that it may not have, and for an end that has passed.
    """
    if (tenant_id is not None) + (source is not None) + is_operators != 1:
        raise ActRefused("a key belongs to one tenant, to one source, or to an operator")
    chosen = chosen_scopes(scopes, is_operators=is_operators)
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise ActRefused("expires: must be in the future")
    key_id, secret = PREFIX + secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    detail = {
        "key_id": key_id,
        "tenant_id": tenant_id,
        "source": source,
        "scopes": list(chosen),
        "expires_at": None if expires_at is None else expires_at.isoformat(),
    }
    try:
        async with connection.transaction():
            cursor = await connection.execute("select kind from ledger.sources where source = %s", [source])
            if await cursor.fetchone() == ("load",):
                raise ActRefused(f"source {source} is a load: nobody but its own feed speaks in its name")
            await connection.execute(
                "insert into ledger.api_keys (key_id, secret_hash, tenant_id, source, scopes, expires_at, note)"
                " values (%s, %s, %s, %s, %s, %s, %s)",
                [key_id, _hash_of(secret), tenant_id, source, list(chosen), expires_at, note],
            )
            await record_act(connection, actor, "keys.create", detail, note)
    except psycopg.errors.ForeignKeyViolation:
        raise Unknown("tenant" if source is None else "source", tenant_id or source or "") from None
    return NewKey(key_id, f"{key_id}_{secret}", chosen, expires_at)


async def revoke_key(connection: Connection, key_id: str, *, actor: str, reason: str | None = None) -> None:
    """End a key; the commit tells each API process, and one that does not hear it looks again after a few seconds.

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


async def note_use(connection: Connection, key_ids: Sequence[str]) -> None:
    """Write down that keys were used lately; what another process is writing down at this moment is left to it."""
    async with connection.transaction():
        # A session of the API only reads unless it says otherwise.
        await connection.execute("set transaction read write")
        await connection.execute(
            "update ledger.api_keys set last_used_at = clock_timestamp() where key_id in"
            " (select key_id from ledger.api_keys where key_id = any(%s) order by key_id for update skip locked)",
            [list(key_ids)],
        )


_LISTED: Final = (
    "select k.key_id, k.tenant_id, k.source, k.scopes, k.note, k.created_at, k.expires_at, k.revoked_at, k.last_used_at,"
    " k.revoked_at is null and s.ended_at is null and (k.expires_at is null or k.expires_at > clock_timestamp())"
    " from ledger.api_keys as k"
    " left join ledger.sources as s on s.source = k.source"
)


async def list_keys(
    connection: Connection, *, tenant_id: str | None = None, source: str | None = None
) -> list[ListedKey]:
    """Return all keys, or those of a tenant or source, the newest last; never a secret."""
    cursor = await connection.execute(
        _LISTED + " where (%(tenant)s::text is null or k.tenant_id = %(tenant)s)"
        " and (%(source)s::text is null or k.source = %(source)s)"
        " order by k.created_at, k.key_id",
        {"tenant": tenant_id, "source": source},
    )
    return [_listed(row) async for row in cursor]


async def show_key(connection: Connection, key_id: str) -> ListedKey:
    """Return what is known of a key; never its secret.

    Errors: `Unknown`.
    """
    row = await (await connection.execute(_LISTED + " where k.key_id = %s", [key_id])).fetchone()
    if row is None:
        raise Unknown("key", key_id)
    return _listed(row)


def _listed(row: Sequence[object]) -> ListedKey:
    key_id, tenant_id, source, scopes, *others = row
    return ListedKey(key_id, tenant_id, source, tuple(scopes), *others)  # type: ignore[arg-type]
