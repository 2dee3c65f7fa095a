"""Approvals: an act that needs a second person is asked for, and done once somebody else has said yes.

Whoever acts calls `second_person` first, inside the transaction of the act. Where it answers `Awaiting`, nothing may be
done and the transaction commits, since the question stands in it; after somebody else's yes the same call answers
`Approved`, once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.database import Connection, record_act
from ledger.entries import jsonb_text
from ledger.errors import ActRefused, Unknown
from ledger.keys import digest_uuid

State = Literal["requested", "approved", "refused", "used", "expired"]

ACTS: Final[dict[str, str]] = {
    "corrections.reverse": "negate everything that stands of a request or a fee",
    "corrections.adjust": "state other counts of a request, or a difference in money",
    "corrections.accept": "let the second content of a conflict, a proposal or a report that was kept count",
    "corrections.refuse": "say for good that a conflict or a proposal does not count",
    "backfill.commit": "post the rows of a load",
    "backfill.revert": "take back all that a load moved",
    "periods.reopen": "let a closed month take usage again",
    "invoices.issue": "issue an invoice",
    "invoices.void": "say that an invoice no longer counts",
    "credit-notes.issue": "give back something of an invoice",
    "reservations.release": "give back what is held for calls whose usage has not come",
}
"""The acts that a setting may ask a second person for."""

DAYS: Final = 7
"""After so long a question, or a yes that nobody used, expires: what was agreed to may no longer be what is there."""


@dataclass(frozen=True, slots=True)
class Approved:
    """The act may be done now."""

    second_person: str | None
    """Who agreed; None where the act needs nobody."""
    approval_id: int | None = None


@dataclass(frozen=True, slots=True)
class Awaiting:
    """The act waits for a second person; nothing may be done."""

    approval_id: int
    act: str
    requested_by: str
    expires_at: datetime

    @property
    def line(self) -> str:
        """One line for whoever asked."""
        return (
            f"{self.act} needs a second person: approval {self.approval_id} is asked for until"
            f" {self.expires_at:%Y-%m-%d %H:%M} UTC. Once somebody else has run `tallystick approvals approve"
            f" {self.approval_id}`, the same command does it"
        )


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a second person, and the answer."""

    approval_id: int
    act: str
    detail: Mapping[str, Any]
    reason: str
    state: State
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None
    used_at: datetime | None


def acts_of(setting: Sequence[str]) -> frozenset[str]:
    """Return the acts that a setting names, each whole (`corrections.reverse`) or by its noun (`corrections`).

    Errors: ActRefused for a name that is neither. A mistyped name would ask nobody, in silence.
    """
    found: set[str] = set()
    for name in setting:
        named = {act for act in ACTS if act == name or act.startswith(f"{name}.")}
        if not named:
            raise ActRefused(f"no act {name!r} can need a second person; known are {', '.join(sorted(ACTS))}")
        found |= named
    return frozenset(found)


async def second_person(
    connection: Connection,
    needed: Collection[str],
    act: str,
    detail: Mapping[str, Any],
    *,
    actor: str,
    reason: str | None,
) -> Approved | Awaiting:
    """Say whether an act may be done now, and use up the yes for it; in the transaction of the act.

    `needed` holds the acts that the settings ask a second person for. `detail` is what the second person agrees to: the
    same act with other values is another question. Errors: ActRefused where no reason is given.
    """
    found = await ask(connection, needed, act, detail, actor=actor, reason=reason)
    if isinstance(found, Approved) and found.approval_id is not None:
        await use(connection, found.approval_id)
    return found


async def ask(
    connection: Connection,
    needed: Collection[str],
    act: str,
    detail: Mapping[str, Any],
    *,
    actor: str,
    reason: str | None,
) -> Approved | Awaiting:
    """Do as `second_person` does, but leave the yes to be used by `use`, which may be in another transaction."""
    if act not in ACTS:
        raise LookupError(f"{act} is missing in ledger.approvals.ACTS")
    if act not in needed:
        return Approved(None)
    if not reason or not reason.strip():
        raise ActRefused(f"{act} needs a second person, who reads why: give a reason")
    digest = digest_uuid(f"{act} {jsonb_text(detail)}".encode())
    async with connection.transaction():
        # One question for each act and detail: two who ask at once wait here, and the later one finds the first's.
        await connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"approval {digest}"])
        await connection.execute(
            "update ledger.approvals set state = 'expired'"
            " where digest = %s and state in ('requested', 'approved') and expires_at <= clock_timestamp()",
            [digest],
        )
        cursor = await connection.execute(
            "select approval_id, state, requested_by, decided_by, expires_at from ledger.approvals"
            " where digest = %s and state in ('requested', 'approved') for update",
            [digest],
        )
        row = await cursor.fetchone()
        if row is None:
            cursor = await connection.execute(
                "insert into ledger.approvals (act, detail, digest, reason, requested_by, expires_at)"
                " values (%s, %s, %s, %s, %s, clock_timestamp() + %s)"
                " returning approval_id, state, requested_by, decided_by, expires_at",
                [act, Jsonb(dict(detail)), digest, reason, actor, timedelta(days=DAYS)],
            )
            row = await cursor.fetchone()
            assert row is not None
    approval_id, state, requested_by, decided_by, expires_at = row
    if state == "requested":
        return Awaiting(approval_id, act, requested_by, expires_at)
    if actor == decided_by:
        raise ActRefused(f"approval {approval_id} was given by {actor}, who cannot also do the act")
    return Approved(decided_by, approval_id)


async def use(connection: Connection, approval_id: int) -> None:
    """Use up a yes, in the transaction of what it was given for. Errors: ActRefused where it is no longer there."""
    cursor = await connection.execute(
        "update ledger.approvals set state = 'used', used_at = clock_timestamp()"
        " where approval_id = %s and state = 'approved' and expires_at > clock_timestamp()",
        [approval_id],
    )
    if cursor.rowcount != 1:
        raise ActRefused(f"approval {approval_id} has been used, or has expired")


async def decide(
    connection: Connection, approval_id: int, *, approve: bool, actor: str, reason: str | None
) -> Approval:
    """Answer a question as a second person, and write the answer down as an act.

    Errors: Unknown; ActRefused where it is answered already, has expired, or was asked by the same person.
    """
    async with connection.transaction():
        await connection.execute("select 1 from ledger.approvals where approval_id = %s for update", [approval_id])
        found = await find(connection, approval_id)
        if found.state != "requested":
            by = f" by {found.decided_by}" if found.decided_by else ""
            raise ActRefused(f"approval {approval_id} is {found.state}{by}")
        if found.requested_by == actor:
            raise ActRefused(f"approval {approval_id} was asked for by {actor}: somebody else has to answer it")
        if not approve and not (reason and reason.strip()):
            raise ActRefused("a refusal needs a reason: whoever asked will read it")
        await connection.execute(
            "update ledger.approvals set state = %s, decided_by = %s, decided_at = clock_timestamp(),"
            " decision_reason = %s where approval_id = %s",
            ["approved" if approve else "refused", actor, reason, approval_id],
        )
        detail = {"approval_id": approval_id, "act": found.act, **found.detail}
        await record_act(connection, actor, "approvals.approve" if approve else "approvals.refuse", detail, reason)
        return await find(connection, approval_id)


# What has run out says so at once, whether somebody has asked again since or not.
_COLUMNS: Final = """
    approval_id, act, detail, reason,
    case when state in ('requested', 'approved') and expires_at <= clock_timestamp() then 'expired' else state end as state,
    requested_by, requested_at, expires_at, decided_by, decided_at, decision_reason, used_at
"""


async def find(connection: Connection, approval_id: int) -> Approval:
    """Return one approval. Errors: Unknown."""
    async with connection.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from ledger.approvals where approval_id = %s", [approval_id])
        found = await cursor.fetchone()
    if found is None:
        raise Unknown("approval", str(approval_id))
    return found


async def list_approvals(connection: Connection, *, with_done: bool = False, limit: int = 50) -> Sequence[Approval]:
    """List approvals, the newest first: those that wait for an answer or for the act, or all."""
    async with connection.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from ledger.approvals"
            " where %(with_done)s or (state in ('requested', 'approved') and expires_at > clock_timestamp())"
            " order by approval_id desc limit %(limit)s",
            {"with_done": with_done, "limit": limit},
        )
        return await cursor.fetchall()
