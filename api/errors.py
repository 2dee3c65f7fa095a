"""What goes wrong, as a client sees it: one table of problems (RFC 9457), one of our errors and their problems.

Refusal
├── Unauthenticated         no key in force was presented
├── ScopeMissing            the key may not do this
├── TenantNotFound          no such tenant, or not this key's to see: one answer, so that nobody learns which
├── InvalidRequest          a parameter or a field of the body breaks a rule
├── MalformedBody           a body that is no JSON
├── ReservationNotFound     no such reservation of a tenant that the key may see
├── TenantInactive          the tenant is suspended, or has left
├── ReservationConflict     the id was used for another ask
├── ReservationOver         the id was used, and nothing is held under it any more
├── BudgetExhausted         a budget has no room for what was asked
├── PriceUnknown, EstimateMissing   a budget refuses what it cannot weigh
├── TooMuchToRead           a report takes longer than it may
├── EmptyBody, BodyTooLarge, TooManyEvents, UnsupportedMediaType
└── Unavailable             nothing was acknowledged; the same request may be sent again
    ├── QueueFull           the queue pushes back
    ├── DeadlinePassed      no answer from the ledger in time
    ├── DatabaseAway        the database cannot be reached
    ├── BudgetBusy          somebody else holds the tenant's windows
    ├── ReplicaFenced       another process with this name has taken the feed
    ├── NoAdministration    this replica has no connection as an operator
    └── Closing             this process is going away
"""

import logging
import re
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import msgspec
import psycopg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ledger.errors import ActRefused, AlreadyThere, Fenced, MonthMissing, Unknown
from quotas.errors import AskRefused

log = logging.getLogger("tallystick.api")

MEDIA_TYPE: Final = "application/problem+json"
_HERE: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Kind:
    """A problem type: what a client can rely on."""

    status: int
    title: str
    means: str
    headers: Mapping[str, str] = field(default_factory=dict)


_SOON: Final = {"retry-after": "1"}

PROBLEMS: Final[Mapping[str, Kind]] = {
    "malformed-body": Kind(400, "The body cannot be read", "It is no JSON, or not in UTF-8; the detail says where."),
    "empty-body": Kind(400, "The body holds no event", "Send at least one event."),
    "unauthenticated": Kind(
        401,
        "An API key is needed",
        "The Authorization header is missing, or is no key that is in force. Also the answer to a revoked key.",
        {"www-authenticate": 'Bearer realm="tallystick"'},
    ),
    "scope-missing": Kind(
        403,
        "The key may not do this",
        "The key is in force, but lacks the scope that `scope` names. Whoever made the key can make one that has it.",
    ),
    "tenant-inactive": Kind(
        403,
        "The tenant may use nothing more",
        "It is suspended, or has left: waiting does not help. What it uses all the same is recorded.",
    ),
    "tenant-not-found": Kind(
        404,
        "There is no such tenant",
        "The tenant does not exist, or the key may not see it; the answer does not say which.",
    ),
    "reservation-not-found": Kind(
        404, "There is no such reservation", "It was never admitted, is long over, or is another tenant's."
    ),
    "unknown-name": Kind(404, "There is nothing of that name", "The detail says what is not there."),
    "not-found": Kind(404, "There is nothing here", "No route has this path."),
    "method-not-allowed": Kind(405, "The method is not allowed here", "The Allow header names those that are."),
    "reservation-conflict": Kind(
        409,
        "The id was used for another call",
        "An id stands for one ask. Make a new one for each call, before its first try.",
    ),
    "reservation-over": Kind(
        409,
        "The reservation is over",
        "The id was admitted earlier, and `state` says where it stands: nothing is held for a new call. Ask under a new id.",
    ),
    "already-there": Kind(409, "There is one already", "Nothing was changed. The detail says what is there."),
    "act-refused": Kind(409, "The rules forbid it", "Nothing was changed. The detail says which rule."),
    "body-too-large": Kind(
        413,
        "The body is too large",
        "Nothing of it was read. Split it; the limit is in the detail.",
        {"connection": "close"},
    ),
    "too-many-events": Kind(413, "The body holds too many events", "Nothing of it was kept. Split it."),
    "unsupported-media-type": Kind(
        415,
        "The content type is not supported",
        "Structured CloudEvents only: single, batch, or one per line; UTF-8, not compressed.",
    ),
    "invalid-request": Kind(422, "A parameter breaks a rule", "`errors` names each parameter or field, and its rule."),
    "price-unknown": Kind(
        422,
        "Nobody knows the price of the call",
        "`budget` refuses calls whose price is not known. Waiting does not help: the model needs a price, or the budget another policy.",
    ),
    "estimate-missing": Kind(
        422,
        "The ask says too little",
        "`budget` refuses calls without an estimate. Send input_tokens and output_tokens, quantities, or amounts.",
    ),
    "budget-exhausted": Kind(
        429,
        "The budget has no room for the call",
        "`budget` is the one with the least left. Retry-After says when it has room at the earliest: its next window, or seconds where only "
        "reservations are in the way. Without Retry-After waiting alone never helps.",
    ),
    "too-much-to-read": Kind(422, "The report takes too long", "Ask for fewer days."),
    "internal-error": Kind(500, "A fault of ours", "Nothing was acknowledged. `reference` names the line in our log."),
    "queue-full": Kind(
        503, "Too much is waiting", "Nothing was kept. Send the same request again after Retry-After.", _SOON
    ),
    "deadline-passed": Kind(
        503,
        "The ledger did not answer in time",
        "Whether the events are stored is not known here. Send the same request again: what is stored counts once.",
        _SOON,
    ),
    "database-away": Kind(
        503,
        "The database cannot be reached",
        "Nothing was acknowledged. Send the same request again: what is stored counts once.",
        {"retry-after": "2"},
    ),
    "budget-busy": Kind(
        503,
        "The tenant's budgets are held by somebody else",
        "Nothing was decided. Ask again under the same id after Retry-After.",
        _SOON,
    ),
    "replica-fenced": Kind(
        503,
        "This replica no longer takes events",
        "Another process runs under its name. Nothing was kept; another replica takes the same request.",
        _SOON,
    ),
    "no-administration": Kind(
        503,
        "This replica does not administer",
        "It was started without TALLYSTICK_OPERATOR_URL. Nothing was changed; send the request to one that was.",
    ),
    "month-missing": Kind(
        503,
        "A month is not prepared",
        "Nothing was kept. An operator has to make the months ahead; then the same request goes in.",
        {"retry-after": "60"},
    ),
    "closing": Kind(503, "This replica is closing", "Nothing was kept; another replica takes the same request.", _SOON),
    "not-ready": Kind(503, "This replica is not ready", "`checks` says why.", _SOON),
}


def type_of(code: str) -> str:
    """Return the stable type of a problem: an address under which every replica explains it."""
    return f"/problems/{code}"


_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# One random number for each process and then a count: a random one for each request takes a call of the system.
_PROCESS: Final = uuid4().hex[:16]
_REQUESTS: Final = count(1)
request_id: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""The id of the request in hand: in its answer's header, in problems, and in what we log of it."""


def request_id_of(sent: str | None) -> str:
    """Return the caller's own id for a request if it is plain and short, else a new one."""
    return sent if sent is not None and _SANE.fullmatch(sent) else f"{_PROCESS}{next(_REQUESTS):016x}"


class Refusal(Exception):
    """A request that is answered with a problem."""

    code: ClassVar[str] = "internal-error"

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        self.detail, self.headers, self.more = detail, headers, more
        super().__init__(detail)


class Unauthenticated(Refusal):
    """No key in force was presented."""

    code = "unauthenticated"


class ScopeMissing(Refusal):
    """The key may not do this."""

    code = "scope-missing"


class TenantNotFound(Refusal):
    """No such tenant, or not this key's to see."""

    code = "tenant-not-found"


class InvalidRequest(Refusal):
    """A parameter or a field of the body breaks a rule."""

    code = "invalid-request"

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"{name} {rule}", errors=[{"name": name, "rule": rule}])


class ReservationNotFound(Refusal):
    """No such reservation of a tenant that the key may see."""

    code = "reservation-not-found"


class TenantInactive(Refusal):
    """The tenant is suspended, or has left."""

    code = "tenant-inactive"


class ReservationConflict(Refusal):
    """The id was used for another ask."""

    code = "reservation-conflict"


class ReservationOver(Refusal):
    """The id was used, and nothing is held under it any more."""

    code = "reservation-over"


class BudgetExhausted(Refusal):
    """A budget has no room for what was asked."""

    code = "budget-exhausted"


class PriceUnknown(Refusal):
    """A budget refuses calls whose price nobody knows."""

    code = "price-unknown"


class EstimateMissing(Refusal):
    """A budget refuses calls without an estimate."""

    code = "estimate-missing"


class TooMuchToRead(Refusal):
    """A report takes longer than it may."""

    code = "too-much-to-read"


class MalformedBody(Refusal):
    """A body that is no JSON."""

    code = "malformed-body"


class EmptyBody(Refusal):
    """A body without any event."""

    code = "empty-body"


class BodyTooLarge(Refusal):
    """A body above the limit in bytes."""

    code = "body-too-large"


class TooManyEvents(Refusal):
    """A body above the limit in events."""

    code = "too-many-events"


class UnsupportedMediaType(Refusal):
    """A body that is no CloudEvents JSON by its own header."""

    code = "unsupported-media-type"


class Unavailable(Refusal):
    """Nothing was acknowledged; the same request may be sent again."""


class QueueFull(Unavailable):
    """The queue pushes back."""

    code = "queue-full"


class DeadlinePassed(Unavailable):
    """No answer from the ledger in time."""

    code = "deadline-passed"


class DatabaseAway(Unavailable):
    """The database cannot be reached."""

    code = "database-away"


class BudgetBusy(Unavailable):
    """Somebody else holds the tenant's windows."""

    code = "budget-busy"


class ReplicaFenced(Unavailable):
    """Another process with this name has taken the feed."""

    code = "replica-fenced"


class NoAdministration(Unavailable):
    """This replica has no connection as an operator."""

    code = "no-administration"


class Closing(Unavailable):
    """This process is going away."""

    code = "closing"


# Errors from below and their problems, the first that fits; whatever is not here is a fault of ours. Without words of our own
# the detail is the error's: those of acts are lines for a person, and only operators' keys lead to them.
_BELOW: Final[tuple[tuple[type[Exception], str, str | None], ...]] = (
    (Fenced, "replica-fenced", "another process runs under this replica's name"),
    (MonthMissing, "month-missing", None),
    (Unknown, "unknown-name", None),
    (AlreadyThere, "already-there", None),
    (ActRefused, "act-refused", None),
    (psycopg.OperationalError, "database-away", "the database did not answer"),
    (psycopg.InterfaceError, "database-away", "the connection to the database was lost"),
)
_BY_STATUS: Final = {404: "not-found", 405: "method-not-allowed"}


class Problem(Response):
    """An answer with a problem."""

    media_type = MEDIA_TYPE

    def __init__(
        self, code: str, detail: str | None = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        kind = PROBLEMS[code]
        body = {"type": type_of(code), "title": kind.title, "status": kind.status, **more}
        if detail is not None:
            body["detail"] = detail
        if request := request_id.get():
            body["request_id"] = request
        super().__init__(msgspec.json.encode(body), kind.status, {**kind.headers, **(headers or {})})


def problem_of(error: Exception) -> Problem:
    """Return the answer to whatever a route raised; a fault of ours is logged by place and kind, never with its data."""
    if isinstance(error, Refusal):
        return Problem(error.code, error.detail, error.headers, **error.more)
    if isinstance(error, AskRefused):
        return problem_of(InvalidRequest(error.field, error.rule))
    for kind, code, detail in _BELOW:
        if isinstance(error, kind):
            return Problem(code, str(error) if detail is None else detail)
    if isinstance(error, HTTPException) and error.status_code in _BY_STATUS:
        return Problem(_BY_STATUS[error.status_code], headers=error.headers)
    reference = uuid4().hex
    log.error("fault %s of request %s: %s", reference, request_id.get() or "unknown", where(error))
    return Problem("internal-error", "see the reference", reference=reference)


def where(error: BaseException) -> str:
    """Return kind and place of an error in one line; its text stays out, since it may quote anybody's data."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_HERE)] or frames
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno} in {ours[-1].name}" if ours else ""
    state = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}{f' {state}' if state else ''}{place}"
