"""Dead letters: what was acknowledged and could not be posted, to be read by a person."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from ledger.database import Connection
from ledger.errors import Unknown


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter without its bytes."""

    dead_letter_id: int
    reason: str
    detail: str
    origin: str
    byte_count: int | None
    """None once the bytes have expired."""
    first_at: datetime
    last_at: datetime
    repeats: int
    event_key: str | None
    first_hash: str | None
    second_hash: str | None
    batch_id: int
    owner: str | None
    note: str | None
    resolved_at: datetime | None


_COLUMNS = """
    dead_letter_id, reason, detail, origin, octet_length(bytes) as byte_count, first_at, last_at, repeats,
    event_key::text, first_hash::text, second_hash::text, batch_id, owner, note, resolved_at
"""


async def list_dead_letters(
    connection: Connection, *, reason: str | None = None, with_resolved: bool = False, limit: int = 50
) -> Sequence[DeadLetterRecord]:
    """List dead letters, the newest first."""
    async with connection.cursor(row_factory=class_row(DeadLetterRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from ledger.dead_letters"
            " where (resolved_at is null or %(with_resolved)s) and (%(reason)s::text is null or reason = %(reason)s)"
            " order by dead_letter_id desc limit %(limit)s",
            {"reason": reason, "with_resolved": with_resolved, "limit": limit},
        )
        return await cursor.fetchall()


async def count_by_reason(connection: Connection) -> dict[str, int]:
    """Return how many dead letters wait for a person, by reason, the most frequent first."""
    cursor = await connection.execute(
        "select reason, count(*) from ledger.dead_letters where resolved_at is null group by reason order by 2 desc, 1"
    )
    return dict(await cursor.fetchall())


async def find_dead_letter(connection: Connection, dead_letter_id: int) -> tuple[DeadLetterRecord, bytes | None]:
    """Return a dead letter and its bytes as they were received; None once they have expired."""
    async with connection.cursor(row_factory=class_row(DeadLetterRecord)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from ledger.dead_letters where dead_letter_id = %s", [dead_letter_id])
        record = await cursor.fetchone()
    if record is None:
        raise Unknown("dead letter", str(dead_letter_id))
    read = await connection.execute("select bytes from ledger.dead_letters where dead_letter_id = %s", [dead_letter_id])
    row = await read.fetchone()
    return record, None if row is None or row[0] is None else bytes(row[0])
