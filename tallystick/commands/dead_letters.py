"""Commands about dead letters: searched, shown, looked after, released as they are or mended."""

import csv
import dataclasses
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    BIGINT_MAX,
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    TableFormat,
    acting,
    cell,
    counted,
    group,
    moment,
    note,
    plain,
    print_json,
    print_lines,
    print_table,
    safe,
    say,
    settings,
    show_one,
    with_connection,
)
from tallystick.roles import OPERATOR, WRITER

if TYPE_CHECKING:
    from ingest.letters import Fix, Replayed
    from ledger.database import Connection
    from ledger.dead_letters import Accepted, DeadLetterRecord, LetterAct, Search

dead_letters = group("Dead letters: what was received and could not be posted, with its bytes and the reason.")

# A page is enough to see what is wrong; the whole is there with --raw.
_BYTES_SHOWN_MAX: Final = 4096
_TOLD_MAX: Final = 50


class State(StrEnum):
    open = "open"
    resolved = "resolved"
    all = "all"


Ids = Annotated[list[int], typer.Argument(metavar="ID...", max=BIGINT_MAX, help="As listed.")]
StateOption = Annotated[State, typer.Option("--state", help="open: nobody is done with it yet.")]
WhereReason = Annotated[str | None, typer.Option("--code", help="Of this reason code, such as unknown_tenant.")]
WhereOrigin = Annotated[str | None, typer.Option("--origin", help="Brought by this topic or key.")]
WhereTenant = Annotated[
    str | None, typer.Option("--tenant", help="Naming this tenant, where the bytes or the key say so.")
]
WhereSource = Annotated[
    str | None, typer.Option("--source", help="Naming this sender, where the bytes or the key say so.")
]
WhereOwner = Annotated[str | None, typer.Option("--owner", help="Looked after by; empty: by nobody.")]
WhereSince = Annotated[
    str | None, typer.Option("--since", help="Came last at or after: a date in UTC, or an RFC 3339 time.")
]
WhereUntil = Annotated[
    str | None, typer.Option("--until", help="Came first before: a date in UTC, or an RFC 3339 time.")
]
WhereText = Annotated[str | None, typer.Option("--text", help="With this in the detail, capitals or not.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(dead_letters, name="dead-letters")


def _search(
    state: State,
    code: str | None,
    origin: str | None,
    tenant: str | None,
    source: str | None,
    owner: str | None,
    since: str | None,
    until: str | None,
    text: str | None,
) -> "Search":
    from ledger.dead_letters import Search

    return Search(state.value, code, origin, tenant, source, owner, moment(since), moment(until), text)


# --- Searching --------------------------------------------------------------------------------------------------------


@dead_letters.command("list")
def list_dead_letters(
    code: WhereReason = None,
    origin: WhereOrigin = None,
    tenant: WhereTenant = None,
    source: WhereSource = None,
    owner: WhereOwner = None,
    since: WhereSince = None,
    until: WhereUntil = None,
    text: WhereText = None,
    state: StateOption = State.open,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", max=BIGINT_MAX, help="The next page: those before this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, the newest first.")] = 50,
    format: Annotated[TableFormat, typer.Option("--format", help="table for people, csv or json for programs.")] = (
        TableFormat.table
    ),
) -> None:
    """List dead letters, the newest first."""
    from ledger import dead_letters as letters

    search = _search(state, code, origin, tenant, source, owner, since, until, text)

    async def read(connection: "Connection") -> "tuple[list[DeadLetterRecord], dict[str, int]]":
        found = await letters.list_dead_letters(connection, search, before=before, limit=limit + 1)
        return list(found), await letters.count_by_reason(connection)

    found, counts = with_connection(read)
    has_more = len(found) > limit
    found = found[:limit]
    if format is TableFormat.json:
        print_json(found)
    elif format is TableFormat.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        names = [field.name for field in dataclasses.fields(letters.DeadLetterRecord)]
        writer.writerow(names)
        writer.writerows([[plain(getattr(each, name)) for name in names] for each in found])
    elif not found:
        say("no dead letters")
    else:
        headings = ["id", "reason", "detail", "origin", "tenant", "source", "last at", "repeats", "owner", "resolution"]
        rows = [
            [
                each.dead_letter_id, each.reason, each.detail, each.origin, each.sent_tenant_id, each.source, each.last_at,
                each.repeats, each.owner, each.resolution or ("resolved" if each.resolved_at else None),
            ]
            for each in found
        ]  # fmt: skip
        print_table(headings, [[cell(value) for value in row] for row in rows], {0, 7})
    if has_more:
        note(f"there are more: --before {found[-1].dead_letter_id}")
    if format is TableFormat.table and sum(counts.values()) > len(found):
        listed = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
        note(f"{sum(counts.values()):,} wait for a person: {listed}")


# --- Showing ----------------------------------------------------------------------------------------------------------


@dead_letters.command("show")
def show_dead_letter(
    letter: Annotated[int, typer.Argument(metavar="ID", max=BIGINT_MAX, help="As listed.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the bytes as received and nothing else.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Show a dead letter: its bytes decoded, the field at fault, what was accepted beside a conflict, what was done."""
    from ingest.letters import field_of, said_by, value_at
    from ledger import dead_letters as letters

    async def read(connection: "Connection") -> tuple[Any, ...]:
        record, body = await letters.find_dead_letter(connection, letter)
        accepted: Sequence[Accepted] = ()
        said = None
        if record.event_key is not None:
            accepted = await letters.accepted_under(connection, record.event_key)
            said = None if body is None else await said_by(connection, record, body)
        return record, body, accepted, said, await letters.acts_on(connection, letter)

    found = with_connection(read)
    record: DeadLetterRecord = found[0]
    body: bytes | None = found[1]
    accepted: Sequence[Accepted] = found[2]
    acts: Sequence[LetterAct] = found[4]
    if raw:
        if body is None:
            raise CommandError(f"the bytes of dead letter {letter} have expired")
        sys.stdout.buffer.write(body)
        return
    field = field_of(record.detail)
    stated = None if field is None or body is None else value_at(body, field)
    differences = _differences(accepted, found[3])
    if format is Format.json:
        text = None if body is None else _text(body)
        print_json(
            {
                **plain(record),
                "bytes": text,
                "bytes_hex": None if body is None or text is not None else body.hex(),
                "field": field,
                "differences": [{"field": name, "accepted": was, "this": now} for name, was, now in differences],
                "accepted": plain(accepted),
                "acts": plain(acts),
            }
        )
        return
    show_one(record, format)
    if accepted or differences:
        say("")
        print_table(
            ["field", "accepted", "this letter"],
            [
                ["content hash", record.first_hash or "", record.second_hash or ""],
                *[[name, cell(was), cell(now)] for name, was, now in differences],
            ],
        )
        say(f"accepted as {', '.join(f'{each.kind} {each.entry_id}' for each in accepted)}")
    if acts:
        say("")
        rows = [[cell(each.at), each.actor, each.act, cell(each.detail), cell(each.reason)] for each in acts]
        print_table(["at", "actor", "act", "detail", "reason"], [[safe(value) for value in row] for row in rows])
    say("")
    if body is None:
        note("its bytes have expired")
        return
    if field is not None:
        print_lines([("at fault", safe(field)), ("it says", _told(stated))])
        say("")
    _write_body(body)


def _told(value: Any) -> str:
    from msgspec import UNSET

    return "(nothing)" if value is UNSET else safe(repr(value) if isinstance(value, str) else str(value))


def _differences(accepted: "Sequence[Accepted]", said: dict[str, Any] | None) -> list[tuple[str, Any, Any]]:
    """Return (field, what was accepted, what this one says) where the two differ; counts are summed over parts."""
    from ledger.meters import COLUMN_METERS
    from ledger.statements import DIMENSIONS

    if not accepted or said is None:
        return []
    first = accepted[0].values
    # What was accepted and this letter leaves out differs as well.
    left_out = {name: None for name in DIMENSIONS if first.get(name) is not None and name not in said}
    said = {**said, **left_out, **{name: 0 for name in COLUMN_METERS if first.get(name) and name not in said}}
    was: dict[str, Any] = {name: first.get(name) for name in said}
    counts = {**first, **first.get("other_quantities", {})}
    for row in accepted[1:]:
        for name, value in {**row.values, **row.values.get("other_quantities", {})}.items():
            if isinstance(value, int) and name in counts:
                counts[name] += value
    for name, value in said.items():
        if isinstance(value, int) and not isinstance(value, bool):
            was[name] = counts.get(name, 0)
    differing = []
    for name, value in said.items():
        before = was[name]
        if name == "occurred_at" and before is not None:
            before, value = (datetime.fromisoformat(text).astimezone(UTC).isoformat() for text in (before, value))
        if before != value:
            differing.append((name, before, value))
    return differing


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _write_body(body: bytes) -> None:
    """Write bytes so that a person can read them and nothing steers the terminal: JSON laid out, other text, or hex."""
    from ingest.letters import pretty

    shown = body[:_BYTES_SHOWN_MAX]
    text = pretty(body) or _text(body) or (_text(shown) if len(shown) < len(body) else None)
    if text is None:
        for start in range(0, len(shown), 16):
            line = shown[start : start + 16]
            marks = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
            sys.stdout.write(f"{start:08x}  {line.hex(' '):<47}  {marks}\n")
    else:
        # A line break may stay one: nothing is printed after the bytes that it could be taken for.
        for each in text[:_BYTES_SHOWN_MAX].split("\n"):
            sys.stdout.write(safe(each) + "\n")
    if len(body if text is None else text) > _BYTES_SHOWN_MAX:
        note(f"the first {_BYTES_SHOWN_MAX:,} of {len(body):,} bytes; --raw writes them all")


# --- Looking after ----------------------------------------------------------------------------------------------------


@dead_letters.command("assign")
def assign(
    letter_ids: Ids,
    owner: Annotated[str, typer.Option("--owner", help="Who looks after them; empty: nobody.")],
    actor: ActorOption = None,
) -> None:
    """Say who looks after dead letters."""
    from ledger import dead_letters as letters

    who = owner.strip() or None
    if who is not None and not who.isprintable():
        raise CommandError("--owner must be a printable name")
    with_connection(lambda connection: letters.assign(connection, letter_ids, who, actor=acting(actor)))
    say(f"{counted(len(letter_ids), 'dead letter')} looked after by {who or 'nobody'}")


@dead_letters.command("note")
def write_note(
    letter: Annotated[int, typer.Argument(metavar="ID", max=BIGINT_MAX, help="As listed.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was found out.")],
    actor: ActorOption = None,
) -> None:
    """Write down what was found out about a dead letter, in place of what stood there."""
    from ledger import dead_letters as letters

    with_connection(lambda connection: letters.note(connection, letter, text, actor=acting(actor)))
    say(f"noted on dead letter {letter}")


@dead_letters.command("resolve")
def resolve(letter_ids: Ids, reason: NeededReason, actor: ActorOption = None) -> None:
    """Be done with dead letters of which nothing is to be posted."""
    from ledger import dead_letters as letters

    with_connection(lambda connection: letters.dismiss(connection, letter_ids, actor=acting(actor), reason=reason))
    say(f"{counted(len(letter_ids), 'dead letter')} resolved")


# --- Releasing --------------------------------------------------------------------------------------------------------


@dead_letters.command("replay")
def replay_letters(
    letter_ids: Annotated[list[int] | None, typer.Argument(metavar="ID...", max=BIGINT_MAX, help="As listed.")] = None,
    where: Annotated[
        bool, typer.Option("--where", help="All open ones that the options below choose, instead of ids.")
    ] = False,
    code: WhereReason = None,
    origin: WhereOrigin = None,
    tenant: WhereTenant = None,
    source: WhereSource = None,
    owner: WhereOwner = None,
    since: WhereSince = None,
    until: WhereUntil = None,
    text: WhereText = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=TEXT", help="Set a field to a text, or with := to JSON; repeatable."),
    ] = None,
    unsets: Annotated[
        list[str] | None, typer.Option("--unset", metavar="PATH", help="Take a field away; repeatable.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="The whole event, mended, instead of the bytes.")] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Mend the event in $EDITOR.")] = False,
    other_identity: Annotated[
        bool, typer.Option("--other-identity", help="Tenant, source or id may become others; needs --reason.")
    ] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Release dead letters to be posted: as they are once the cause is gone, or mended under the same identity."""
    from ingest.letters import replay
    from ledger import dead_letters as letters
    from tallystick.addresses import addresses

    search = _search(State.open, code, origin, tenant, source, owner, since, until, text)
    if where == bool(letter_ids):
        raise CommandError("name dead letters by id, or choose them with --where and its options")
    if where and search.is_everything():
        raise CommandError("--where needs an option that chooses, such as --code unknown_source")
    if not where and not search.is_everything():
        raise CommandError("dead letters that are named by id need no option that chooses")
    wanted = letter_ids or with_connection(lambda connection: letters.search_ids(connection, search))
    if (file is not None or edit) and len(wanted) != 1:
        raise CommandError("--file and --edit mend one dead letter")
    fix = _fix(wanted, sets or [], unsets or [], file, edit, other_identity)
    if fix is not None and not (reason or "").strip():
        raise CommandError("a dead letter that is mended needs --reason")

    import asyncio

    from ledger.database import connect

    async def run(operator_url: str, writer_url: str) -> "list[Replayed]":
        async with await connect(operator_url, connect_timeout=10) as connection:
            with bar("dead letters", "letters", len(wanted)) as move:
                return await replay(
                    connection,
                    writer_url,
                    wanted,
                    actor=acting(actor),
                    reason=reason,
                    fix=fix,
                    on_done=lambda _: move(1),
                )

    with addresses(settings()) as found:
        done = asyncio.run(run(found.url_for(OPERATOR), found.url_for(WRITER)))
    _tell(done, format)


def _fix(
    letter_ids: Sequence[int],
    sets: Sequence[str],
    unsets: Sequence[str],
    file: Path | None,
    edit: bool,
    other_identity: bool,
) -> "Fix | None":
    from msgspec import UNSET

    from ingest.letters import Fix, parse_set

    if sum((bool(sets or unsets), file is not None, edit)) > 1:
        raise CommandError("mend it by --set and --unset, by --file, or by --edit")
    if sets or unsets:
        return Fix([*map(parse_set, sets), *((path, UNSET) for path in unsets)], None, other_identity)
    if file is not None:
        return Fix((), file.read_bytes(), other_identity)
    if edit:
        return Fix((), _edited(letter_ids[0]), other_identity)
    if other_identity:
        raise CommandError("--other-identity goes with a mended event: --set, --unset, --file or --edit")
    return None


def _edited(letter: int) -> bytes:
    """Let a person mend an event in their editor, and return what they saved."""
    from ingest.letters import pretty
    from ledger import dead_letters as letters
    from tallystick.settings import editor

    _, body = with_connection(lambda connection: letters.find_dead_letter(connection, letter))
    if body is None:
        raise CommandError(f"the bytes of dead letter {letter} have expired: give the whole event with --file")
    shown = pretty(body) or body.decode("utf-8", "backslashreplace")
    with tempfile.TemporaryDirectory() as folder:
        # Only its owner may enter such a folder.
        path = Path(folder) / f"dead-letter-{letter}.json"
        path.write_text(shown)
        command = editor()
        try:
            ended = subprocess.run([*command, str(path)], check=False).returncode
        except OSError as error:
            raise CommandError(f"the editor {command[0]!r} cannot be run: {error.strerror}") from None
        if ended != 0:
            raise CommandError(f"the editor ended with {ended}: nothing is posted")
        saved = path.read_text()
    if saved == shown:
        raise CommandError("nothing was changed: nothing is posted")
    return saved.encode()


def _tell(done: "Sequence[Replayed]", format: Format) -> None:
    """Print what became of each, and fail where one of them is open still."""
    if format is Format.json:
        print_json(done)
    elif not done:
        say("no dead letters")
    else:
        counts = Counter(each.outcome for each in done)
        shown = done if len(done) <= _TOLD_MAX else [each for each in done if not each.is_done][:_TOLD_MAX]
        if shown:
            rows = [
                [
                    str(each.dead_letter_id),
                    each.outcome,
                    cell(each.reason),
                    cell(each.detail or each.results),
                    cell(each.batch_id),
                ]
                for each in shown
            ]
            print_table(["id", "outcome", "reason", "detail", "batch"], rows, {0, 4})
        say(", ".join(f"{outcome} {count:,}" for outcome, count in counts.most_common()))
    for each in done:
        if each.is_in_future and each.is_done:
            note(
                f"dead letter {each.dead_letter_id} is posted though its call ends in the future by its sender's clock"
            )
    left = [each for each in done if not each.is_done and each.outcome != "resolved"]
    if left:
        first = left[0]
        why = f": {first.detail}" if first.detail else ""
        raise CommandError(
            f"{counted(len(left), 'dead letter')} of {len(done):,} could not be posted; {first.dead_letter_id}"
            f" is {first.outcome} ({first.reason}){why}"
        )
