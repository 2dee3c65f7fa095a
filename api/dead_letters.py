"""Dead letters over HTTP: found, shown, looked after and released by an operator, as the commands do it."""

import base64
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import psycopg
from fastapi import APIRouter
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.bodies import WITHIN_YEARS
from api.documents import Room, operation, path_parameter, query_parameter
from api.errors import DatabaseAway, InvalidRequest, NoAdministration, where
from api.pages import limit_of
from api.services import services_of
from ingest.letters import Fix, field_of, replay
from ledger.database import Connection, connect
from ledger.dead_letters import (
    DeadLetterRecord,
    Search,
    State,
    assign,
    dismiss,
    find_dead_letter,
    list_dead_letters,
    note,
    read_dead_letters,
)
from ledger.errors import ActRefused
from ledger.times import from_micros, is_within_years, parse_rfc3339

router = APIRouter()

_SCOPE: Final = "dead-letters:write"
_ID_MAX: Final = 2**63 - 1


class DeadLetter(Struct):
    """What was received and could not be posted, without its bytes."""

    dead_letter_id: int
    reason: Annotated[str, Meta(description="A stable code, such as unknown_tenant.")]
    detail: Annotated[str, Meta(description="One line for a person: the field and the rule.")]
    origin: Annotated[str, Meta(description="The topic or the key that brought it.")]
    feed: Annotated[str, Meta(description="For Kafka with topic id and partition.")]
    position: Annotated[int | None, Meta(description="The offset of its message; null over HTTP.")]
    sent_tenant_id: Annotated[str | None, Meta(description="As far as the bytes, or the key, say so.")]
    source: str | None
    event_id: str | None
    sequence: int | None
    byte_count: Annotated[int | None, Meta(description="Null once the bytes have expired.")]
    first_at: datetime
    last_at: datetime
    repeats: Annotated[int, Meta(description="How often the same bytes came again.")]
    event_key: str | None
    first_hash: Annotated[str | None, Meta(description="Conflict: content hash of what was accepted.")]
    second_hash: Annotated[str | None, Meta(description="Conflict: content hash of this one.")]
    batch_id: int
    owner: str | None
    note: str | None
    resolved_at: datetime | None
    resolution: Annotated[
        str | None, Meta(description="created, duplicate, evidence, split, accepted or dismissed; null while open.")
    ]
    resolved_batch_id: int | None
    resolved_by: str | None


class DeadLettersReply(Struct):
    """Dead letters, the newest first, a page at a time."""

    dead_letters: list[DeadLetter]
    next: Annotated[int | None, Meta(description="The `before` of the next page; null on the last one.")]


class DeadLetterReply(Struct):
    """A dead letter with its bytes."""

    dead_letter: DeadLetter
    field: Annotated[
        str | None, Meta(description="The field at fault, such as data.model, where the detail names one.")
    ]
    text: Annotated[str | None, Meta(description="The bytes as text; null where they are none, or have expired.")]
    bytes_base64: Annotated[str | None, Meta(description="The bytes as received; null once they have expired.")]


Reason = Annotated[str, Meta(max_length=1000, pattern="^[^\\u0000]*$")]


class ReplayRequest(Struct, forbid_unknown_fields=True):
    """How a dead letter is released: as it is, with fields set, or with the whole event given."""

    reason: Annotated[Reason | None, Meta(description="Why, for the record; needed where it is mended.")] = None
    set: Annotated[
        dict[str, Any] | UnsetType, Meta(description="Values by path, such as data.model; null sets null.")
    ] = UNSET
    event: Annotated[Raw | UnsetType, Meta(description="The whole event, mended.")] = UNSET
    other_identity: Annotated[
        bool, Meta(description="Tenant, source or id may become others: that is another event.")
    ] = False


Letters = Annotated[list[Annotated[int, Meta(gt=0, le=_ID_MAX)]], Meta(min_length=1, max_length=1000)]


class AssignRequest(Struct, forbid_unknown_fields=True):
    """Who looks after dead letters from now on; null: nobody."""

    dead_letter_ids: Letters
    owner: Annotated[str, Meta(min_length=1, max_length=200)] | None


class NoteRequest(Struct, forbid_unknown_fields=True):
    """What was found out about a dead letter, in place of what stood there."""

    note: Annotated[str, Meta(min_length=1, max_length=10_000)]


class ResolveRequest(Struct, forbid_unknown_fields=True):
    """Of which nothing is to be posted, and why."""

    dead_letter_ids: Letters
    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class TendedReply(Struct):
    """Dead letters as they are now, in the order of the request."""

    dead_letters: list[DeadLetter]


class ReplayReply(Struct):
    """What has become of a dead letter."""

    dead_letter_id: int
    outcome: Annotated[
        str,
        Meta(
            description="created, duplicate, evidence, split: it is resolved. conflict, dead_letter: it stays open. resolved: it"
            " was before. kept: it was not posted, for the reason."
        ),
    ]
    reason: str | None
    detail: str | None
    batch_id: int | None
    results: Annotated[dict[str, int] | None, Meta(description="split: how many events of each outcome.")]
    is_in_future: Annotated[bool, Meta(description="Its call ends after now by its sender's clock.")]


_LETTER: Final = {
    "dead_letter_id": 7,
    "reason": "unknown_source",
    "detail": "source: 'gateway://new' is not registered",
    "origin": "llm-usage",
    "feed": "kafka:c1:t1:0",
    "position": 41,
    "sent_tenant_id": "t-alpha",
    "source": "gateway://new",
    "event_id": "ev-1",
    "sequence": None,
    "byte_count": 412,
    "first_at": "2026-01-15T10:01:00Z",
    "last_at": "2026-01-15T10:01:00Z",
    "repeats": 0,
    "event_key": None,
    "first_hash": None,
    "second_hash": None,
    "batch_id": 3,
    "owner": None,
    "note": None,
    "resolved_at": None,
    "resolution": None,
    "resolved_batch_id": None,
    "resolved_by": None,
}
_AT: Final = {"type": "string", "format": "date-time"}
_ID: Final = path_parameter("dead_letter_id", "As listed.", "7")

LIST_OPERATION: Final = operation(
    "listDeadLetters",
    "What could not be posted",
    tag="dead letters",
    scope=_SCOPE,
    description="The newest first; without `state` those that nobody is done with.",
    parameters=(
        query_parameter("state", "Absent: open.", {"type": "string", "enum": list(get_args(State))}),
        query_parameter("reason", "Of this code, such as unknown_tenant."),
        query_parameter("origin", "Brought by this topic or key."),
        query_parameter("tenant", "Naming this tenant, where the bytes or the key say so."),
        query_parameter("source", "Naming this sender, where the bytes or the key say so."),
        query_parameter("owner", "Looked after by; empty: by nobody."),
        query_parameter("since", "Came last at this instant or later.", _AT),
        query_parameter("until", "Came first before this instant.", _AT),
        query_parameter("text", "With this in the detail, capitals or not."),
        query_parameter("before", "The `next` of the page before.", {"type": "integer", "minimum": 1}),
        query_parameter("limit", "Letters on a page, up to the replica's limit.", {"type": "integer", "minimum": 1}),
    ),
    answer=DeadLettersReply,
    example={"dead_letters": [_LETTER], "next": None},
    is_act=True,
    problems=("invalid-request",),
)

SHOW_OPERATION: Final = operation(
    "getDeadLetter",
    "A dead letter with its bytes",
    tag="dead letters",
    scope=_SCOPE,
    parameters=(_ID,),
    answer=DeadLetterReply,
    example={"dead_letter": _LETTER, "field": "source", "text": "{}", "bytes_base64": "e30="},
    is_act=True,
    problems=("invalid-request",),
)

REPLAY_OPERATION: Final = operation(
    "replayDeadLetter",
    "Release a dead letter to be posted",
    tag="dead letters",
    scope=_SCOPE,
    description=(
        "Through the same reader and writer as every event, as the word of whoever sent it. The bytes stay as they came, and "
        "the identity is kept unless the request says otherwise. Sent again it is answered `resolved`. 200 whatever became of it."
    ),
    parameters=(_ID,),
    body=ReplayRequest,
    body_example={"reason": "the source is registered now"},
    answer=ReplayReply,
    example={
        "dead_letter_id": 7,
        "outcome": "created",
        "reason": None,
        "detail": None,
        "batch_id": 12,
        "results": None,
        "is_in_future": False,
    },
    is_act=True,
)


ASSIGN_OPERATION: Final = operation(
    "assignDeadLetters",
    "Say who looks after dead letters",
    tag="dead letters",
    scope=_SCOPE,
    body=AssignRequest,
    body_example={"dead_letter_ids": [7], "owner": "jane"},
    answer=TendedReply,
    example={"dead_letters": [{**_LETTER, "owner": "jane"}]},
    is_act=True,
)

NOTE_OPERATION: Final = operation(
    "noteDeadLetter",
    "Write down what was found out about a dead letter",
    tag="dead letters",
    scope=_SCOPE,
    parameters=(_ID,),
    body=NoteRequest,
    body_example={"note": "the gateway was not registered yet"},
    answer=TendedReply,
    example={"dead_letters": [{**_LETTER, "note": "the gateway was not registered yet"}]},
    is_act=True,
)

RESOLVE_OPERATION: Final = operation(
    "resolveDeadLetters",
    "Be done with dead letters of which nothing is to be posted",
    tag="dead letters",
    scope=_SCOPE,
    description="All of them or none: 409 where one of them is resolved already.",
    body=ResolveRequest,
    body_example={"dead_letter_ids": [7], "reason": "a test of the sender's"},
    answer=TendedReply,
    example={"dead_letters": [{**_LETTER, "resolved_at": "2026-01-15T11:00:00Z", "resolution": "dismissed"}]},
    is_act=True,
)


@router.get("/v1/dead-letters", openapi_extra=LIST_OPERATION, response_model=None)
async def get_dead_letters(request: Request) -> Response:
    """Answer with a page of dead letters."""
    await require(request, _SCOPE)
    query = request.query_params
    limit = limit_of(query.get("limit"), services_of(request).config.page_rows_max)
    before = None if query.get("before") is None else _id("before", query["before"])
    search = Search(
        state=_state(query.get("state")),
        reason=_text("reason", query.get("reason")),
        origin=_text("origin", query.get("origin")),
        tenant_id=_text("tenant", query.get("tenant")),
        source=_text("source", query.get("source")),
        owner=_text("owner", query.get("owner")),
        since=_at("since", query.get("since")),
        until=_at("until", query.get("until")),
        text=_text("text", query.get("text")),
    )
    found = await act(request, lambda connection: list_dead_letters(connection, search, before=before, limit=limit + 1))
    letters = [_letter(record) for record in found[:limit]]
    return answered(
        DeadLettersReply(letters, letters[-1].dead_letter_id if len(found) > limit else None), headers=_PRIVATE
    )


@router.get("/v1/dead-letters/{dead_letter_id}", openapi_extra=SHOW_OPERATION, response_model=None)
async def get_dead_letter(request: Request) -> Response:
    """Answer with one dead letter and its bytes."""
    await require(request, _SCOPE)
    letter_id = _id("dead_letter_id", request.path_params["dead_letter_id"])
    record, body = await act(request, lambda connection: find_dead_letter(connection, letter_id))
    text = None
    if body is not None:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = None
    reply = DeadLetterReply(
        _letter(record), field_of(record.detail), text, None if body is None else base64.b64encode(body).decode()
    )
    return answered(reply, headers=_PRIVATE)


_assign_decoder: Final = msgspec.json.Decoder(AssignRequest)
_note_decoder: Final = msgspec.json.Decoder(NoteRequest)
_resolve_decoder: Final = msgspec.json.Decoder(ResolveRequest)


@router.post("/v1/dead-letters:assign", openapi_extra=ASSIGN_OPERATION, response_model=None)
async def post_assign(request: Request) -> Response:
    """Say who looks after dead letters."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _assign_decoder)
    owner = None if asked.owner is None else _printable("owner", asked.owner)

    async def work(connection: Connection) -> TendedReply:
        await assign(connection, asked.dead_letter_ids, owner, actor=key.actor)
        return await _tended(connection, asked.dead_letter_ids)

    return answered(await act(request, work), headers=_PRIVATE)


@router.post("/v1/dead-letters/{dead_letter_id}:note", openapi_extra=NOTE_OPERATION, response_model=None)
async def post_note(request: Request) -> Response:
    """Write down what was found out about a dead letter."""
    key = await require(request, _SCOPE)
    letter_id = _id("dead_letter_id", request.path_params["dead_letter_id"])
    asked = await body_of(request, _note_decoder)
    text = _text("note", asked.note) or ""

    async def work(connection: Connection) -> TendedReply:
        await note(connection, letter_id, text, actor=key.actor)
        return await _tended(connection, [letter_id])

    return answered(await act(request, work), headers=_PRIVATE)


@router.post("/v1/dead-letters:resolve", openapi_extra=RESOLVE_OPERATION, response_model=None)
async def post_resolve(request: Request) -> Response:
    """Be done with dead letters of which nothing is to be posted."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _resolve_decoder)
    reason = (_text("reason", asked.reason) or "").strip()
    if not reason:
        raise InvalidRequest("reason", "must say why nothing of them is to be posted")

    async def work(connection: Connection) -> TendedReply:
        await dismiss(connection, asked.dead_letter_ids, actor=key.actor, reason=reason)
        return await _tended(connection, asked.dead_letter_ids)

    return answered(await act(request, work), headers=_PRIVATE)


async def _tended(connection: Connection, letter_ids: list[int]) -> TendedReply:
    records = await read_dead_letters(connection, letter_ids)
    return TendedReply([_letter(records[letter_id]) for letter_id in letter_ids])


def _printable(name: str, text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise InvalidRequest(name, "must be a printable name")
    return text.strip()


_replay_decoder: Final = msgspec.json.Decoder(ReplayRequest, float_hook=Decimal)


@router.post("/v1/dead-letters/{dead_letter_id}:replay", openapi_extra=REPLAY_OPERATION, response_model=None)
async def post_replay(request: Request) -> Response:
    """Release a dead letter and answer, after the commit, with what became of it."""
    key = await require(request, _SCOPE)
    letter_id = _id("dead_letter_id", request.path_params["dead_letter_id"])
    asked = await body_of(request, _replay_decoder)
    fix = _fix(asked)
    if fix is not None and not (asked.reason or "").strip():
        raise InvalidRequest("reason", "is needed where a dead letter is mended")
    config = services_of(request).config
    if config.operator_url is None:
        raise NoAdministration("this replica was started without TALLYSTICK_OPERATOR_URL")
    try:
        # Of its own: it holds a lock of its session, which must not come back to a pool.
        async with await connect(config.operator_url, connect_timeout=5) as connection:
            done = await _released(connection, config.writer_url, letter_id, key.actor, asked.reason, fix)
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"the database did not answer ({where(error)})") from None
    return answered(done)


async def _released(
    connection: Connection, writer_url: str, letter_id: int, actor: str, reason: str | None, fix: Fix | None
) -> ReplayReply:
    record, _ = await find_dead_letter(connection, letter_id)
    if record.reason == "kills_process":
        raise ActRefused(
            f"dead letter {letter_id} killed whoever read it, and would kill this replica:"
            " `tallystick dead-letters replay` releases it in a process of its own"
        )
    (told,) = await replay(connection, writer_url, [letter_id], actor=actor, reason=reason, fix=fix)
    return ReplayReply(
        told.dead_letter_id,
        told.outcome,
        told.reason,
        told.detail,
        told.batch_id,
        dict(told.results) if told.results is not None else None,
        told.is_in_future,
    )


def _fix(asked: ReplayRequest) -> Fix | None:
    if asked.set is not UNSET and asked.event is not UNSET:
        raise InvalidRequest("set", "stands beside event; one of them mends it")
    if asked.event is not UNSET:
        return Fix((), bytes(asked.event), asked.other_identity)
    if asked.set is not UNSET and asked.set:
        return Fix(list(asked.set.items()), None, asked.other_identity)
    if asked.other_identity:
        raise InvalidRequest("other_identity", "goes with set or event")
    return None


_PRIVATE: Final = {"cache-control": "private, no-store", "vary": "authorization"}


def _letter(record: DeadLetterRecord) -> DeadLetter:
    return DeadLetter(**{name: getattr(record, name) for name in DeadLetter.__struct_fields__})


def _id(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 0 < int(text) <= _ID_MAX):
        raise InvalidRequest(name, "must be a whole number above zero")
    return int(text)


def _text(name: str, text: str | None) -> str | None:
    if text is not None and "\0" in text:
        raise InvalidRequest(name, "holds U+0000")
    return text


def _state(text: str | None) -> Literal["open", "resolved", "all"]:
    for state in get_args(State):
        if text == state:
            return state  # type: ignore[no-any-return]
    if text is not None:
        raise InvalidRequest("state", f"must be one of {', '.join(get_args(State))}")
    return "open"


def _at(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = parse_rfc3339(text)
    except ValueError:
        raise InvalidRequest(name, "must be an RFC 3339 time such as 2026-12-31T00:00:00Z") from None
    if not is_within_years(at):
        raise InvalidRequest(name, WITHIN_YEARS)
    return from_micros(at)


ROOM: Final = Room(
    router,
    "dead letters",
    "What was received and could not be posted, for operators.",
    (
        DeadLettersReply, DeadLetterReply, ReplayRequest, ReplayReply, AssignRequest, NoteRequest, ResolveRequest, TendedReply,
    ),
)  # fmt: skip
