"""Commands that roll up, check and describe what is there."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    ROWS_MAX,
    CommandError,
    Format,
    FormatOption,
    counted,
    group,
    moment,
    note,
    plain,
    print_json,
    print_table,
    say,
    settings,
    show,
    with_connection,
)
from tallystick.roles import ANALYST, OPERATOR, ROLLUP

if TYPE_CHECKING:
    from ledger.check_runs import CheckResult, CheckRun
    from ledger.proofs import ProofRecord
    from tallystick.checks import CheckReport
    from tallystick.rollup import RollupReport
    from tallystick.verify import Proof

events = group("The usage event contract.")
proofs = group("Proofs: what was held against each other, when, and what differs.")
heads = group("Chain heads: published where the database's administrator cannot write.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("rollup")(rollup)
    app.command("check")(check)
    app.command("verify")(verify)
    app.add_typer(proofs, name="proofs")
    app.add_typer(heads, name="heads")
    app.add_typer(events, name="events")


def rollup(
    rebuild: Annotated[
        str | None, typer.Option("--rebuild", metavar="MODEL", help="Make this mart, or all, new out of the ledger.")
    ] = None,
    tests: Annotated[bool, typer.Option("--tests", help="Also hold the marts to their promises.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="SECONDS", min=1.0, help="Stay, and roll up again so often, as the scheduler does."
        ),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Add to each mart the batches that it has not consumed yet."""
    import time

    from tallystick import rollup as dbt
    from tallystick.addresses import addresses

    options = settings()
    if every is not None and rebuild is not None:
        raise CommandError("--every: a mart is made new once; leave out --rebuild or --every")
    if tests and rebuild is not None:
        raise CommandError("--tests: hold the marts to them after the rebuild, by `tallystick rollup --tests`")
    with addresses(options) as found:
        url = found.url_for(ROLLUP)
        while True:
            started = time.monotonic()
            if rebuild is not None:
                report = dbt.rebuild(url, options.home, None if rebuild == "all" else rebuild)
            else:
                report = dbt.run_rollup(url, options.home, tests=tests)
            if every is None:
                break
            _print_run(report, tests, format)
            time.sleep(max(0.0, every - (time.monotonic() - started)))
    if format is Format.table:
        rows = [[run.name, f"{run.rows:,}", f"{run.seconds:.2f}"] for run in report.models]
        print_table(["mart", "rows", "seconds"], rows, [1, 2])
    _print_run(report, tests, format)


def _print_run(report: "RollupReport", tests: bool, format: Format) -> None:
    if format is Format.json:
        print_json(
            {
                "models": plain(report.models),
                "tests_passed": report.tests_passed,
                "start_seconds": f"{report.start_seconds:.3f}",
                "seconds": f"{report.seconds:.3f}",
            }
        )
        return
    held = f", {report.tests_passed} tests passed" if tests else ""
    start = f" after {report.start_seconds:.1f} s for dbt to start" if report.start_seconds else ""
    say(f"rolled up {sum(report.rows.values()):,} rows in {report.seconds:.1f} s{start}{held}")


def check(
    hours: Annotated[
        float, typer.Option("--hours", min=0.01, max=87_600, help="What arrived in the last hours.")
    ] = 24.0,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Also write the results as a page, for a browser.")
    ] = None,
    last: Annotated[
        bool,
        typer.Option("--last", help="Check nothing: show what the last run found, which the schedule may have made."),
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """Look at what arrived: volume, delay, mix, prices, usage, dead letters; fail if somebody must act.

    Each result is a number, its bound, and what to do; what is too little to judge by is said, and is no pass. Results are written
    down (ledger.check_runs, ledger.check_results) without a value of any tenant.
    """
    if page is not None and page.is_dir():
        raise CommandError(f"--page: {page} is a folder, and a page is a file")
    if last:
        return _last_check(page, format)
    from tallystick.addresses import addresses
    from tallystick.checks import run_checks
    from tallystick.expectations import read_expectations

    options = settings()
    expected = read_expectations(options.checks_file)
    with addresses(options) as found:
        started_at = datetime.now(UTC)
        report = run_checks(found.url_for(ANALYST), hours=hours, expectations=expected)
        run = _noted_check(found.url_for(OPERATOR), started_at, report)
    if page is not None and run is not None:
        _write_page(page, run, report.results)
    if format is Format.json:
        print_json({**plain(report), "failed": report.failed})
    else:
        for finding in report.findings:
            say(f"{finding.severity}: {finding.check}: {finding.text}")
            say(f"      {finding.act}")
        unknown = sum(1 for each in report.results if each.outcome == "unknown")
        say(
            f"{counted(report.requests, 'request')} looked at: {counted(len(report.findings), 'finding')},"
            f" {sum(1 for each in report.results if each.outcome == 'passed')} results passed, {unknown} not enough to say"
        )
    if report.failed:
        names = ", ".join(dict.fromkeys(each.check for each in report.findings if each.severity == "fail"))
        raise CommandError(f"the checks failed: {names}")


def _noted_check(url: str, started_at: datetime, report: "CheckReport") -> "CheckRun | None":
    """Write a run down, and return it as it stands; where the database is a copy, say so."""
    import asyncio

    import psycopg

    from tallystick.checks import note as noted

    try:
        return asyncio.run(noted(url, "command", report, started_at=started_at, every_seconds=None))
    except psycopg.errors.ReadOnlySqlTransaction:
        note("this database takes no changes: the result is not written down")
        return None


def _last_check(page: Path | None, format: Format) -> None:
    """Show the results of the last run."""
    from ledger import check_runs
    from tallystick.check_words import bound_of, shown

    async def read(connection: Any) -> "tuple[CheckRun, list[CheckResult]] | None":
        runs = await check_runs.list_runs(connection, limit=1)
        return (runs[0], await check_runs.results_of(connection, runs[0].run_id)) if runs else None

    found = with_connection(read)
    if found is None:
        raise CommandError("nothing has been checked yet")
    run, results = found
    if page is not None:
        _write_page(page, run, results)
    if format is Format.json:
        print_json({"run": plain(run), "results": plain(results)})
        return
    rows = [
        [
            each.outcome if each.severity is None else each.severity,
            each.expectation,
            each.subject or each.kind,
            shown(each.observed, each.unit),
            "" if each.sample_count is None else f"{each.sample_count:,}",
            each.fault or bound_of(each),
        ]
        for each in results
    ]
    print_table(["outcome", "expectation", "of", "number", "sample", "expected"], rows, [3, 4])
    say(
        f"{run.kind}, {run.ended_at:%Y-%m-%d %H:%M:%S} UTC: {run.failed_count} failed, {run.warned_count} warn,"
        f" {run.broken_count} broken, {run.unknown_count} not enough to say, {run.passed_count} passed"
    )


def _write_page(file: Path, run: "CheckRun", results: "Sequence[CheckResult]") -> None:
    from tallystick.check_page import write_page

    write_page(file, run, results)
    note(f"written to {file}")


def verify(
    published: Annotated[
        Path | None,
        typer.Option("--heads", help="File of published heads; left out, the one that is set, if it is there."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what was recorded from this day (UTC) or RFC 3339 time on."),
    ] = None,
    refold: Annotated[
        bool,
        typer.Option("--refold", help="Fold every bucket of every additive mart again too, as is done each night."),
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """Recompute chain, keys, requests, budgets and marts from the ledger; fail if anything differs."""
    from tallystick import verify as proofs
    from tallystick.addresses import addresses

    if refold and since is not None:
        raise CommandError("--refold: marts hold everything; leave out --since")
    options = settings()
    default = options.published_heads
    if published is not None and not published.is_file():
        raise CommandError(f"--heads: {published}: there is no such file")
    # The standing file is there once heads have been published; one that is named must be there.
    file = published or (default if default.exists() else None)
    with addresses(options) as found:
        proof = proofs.verify(
            found.url_for(OPERATOR),
            heads=file,
            since=moment(since),
        )
        if refold:
            from tallystick import refold as folding

            proof = folding.added(proof, folding.refold(found.url_for(ROLLUP), options.home))
        if since is None:
            _note_whole(found.url_for(OPERATOR), proof)
    if format is Format.json:
        print_json({**plain(proof), "seconds": f"{proof.seconds:.3f}", "ok": proof.ok})
    else:
        print_table(
            ["held against each other", "count"], [[what, f"{count:,}"] for what, count in proof.checked.items()], [1]
        )
        for text in proof.notes:
            note(text)
        for failure in proof.failures:
            say(f"{failure.part}: {failure.text}")
    if not proof.ok:
        parts = ", ".join(dict.fromkeys(failure.part for failure in proof.failures))
        raise CommandError(f"the ledger does not verify: {parts}")
    if format is Format.table:
        say(f"everything holds, proved in {proof.seconds:.1f} s")


def _note_whole(url: str, proof: "Proof") -> None:
    """Write down a proof of everything, so that checks and metrics know of it; not where the database is a copy."""
    import asyncio

    import psycopg

    from ledger.database import connect
    from tallystick.verify import note as noted

    async def write() -> None:
        async with await connect(url) as connection:
            await noted(connection, proof)

    try:
        asyncio.run(write())
    except psycopg.errors.ReadOnlySqlTransaction:
        note("this database takes no changes: the result is not written down")


KindOption = Annotated[
    str | None, typer.Option("--kind", help="standing: totals, every minute; whole: everything, every night.")
]


@proofs.command("list")
def list_proofs(
    kind: KindOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 20,
    format: FormatOption = Format.table,
) -> None:
    """List proofs with what they found, the newest first."""
    columns: dict[str, Any] = {
        "kind": None,
        "started at": None,
        "ended at": None,
        "differences": lambda each: each.difference_count,
        "batches": lambda each: sum(each.up_to.values()),
    }
    show(_proofs(kind, limit), format, columns, empty="nothing has been proved yet")


@proofs.command("show")
def show_proofs(format: FormatOption = Format.table) -> None:
    """Say what the last proof of each kind found, in words; fail if anything differs."""
    found = [each for kind in ("standing", "whole") for each in _proofs(kind, 1)]
    if format is Format.json:
        print_json(plain(found))
    else:
        for proof in found:
            differing = counted(proof.difference_count, "difference")
            say(f"{proof.kind}: {differing}, {proof.ended_at:%Y-%m-%d %H:%M:%S} UTC")
            for text in proof.notes:
                note(text)
            for each in proof.differences:
                say(f"{each.part}: {each.text}")
        if not found:
            say("nothing has been proved yet")
    if any(proof.difference_count for proof in found):
        raise CommandError("not everything agrees")


@proofs.command("standing")
def prove_standing(
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget the sums that are kept, and make them from all entries.")
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """Hold the totals of budgets, ledger and marts against each other now, which the scheduler does every minute."""
    from tallystick.standing import prove

    done = with_connection(lambda connection: prove(connection, anew=anew))
    if format is Format.json:
        print_json(plain(done))
    else:
        for text in done.notes:
            note(text)
        for each in done.differences:
            say(f"{each.part}: {each.text}")
    if done.difference_count:
        differing = counted(done.difference_count, "total")
        raise CommandError(f"{differing} differ{'s' if done.difference_count == 1 else ''}")
    if format is Format.table:
        say(f"budgets, ledger and marts agree; {done.batch_count:,} new batches")


def _proofs(kind: str | None, limit: int) -> "Sequence[ProofRecord]":
    from typing import cast

    from ledger import proofs as kept

    if kind not in (None, "standing", "whole"):
        raise CommandError(f"--kind: standing or whole, not {kind!r}")
    return with_connection(
        lambda connection: kept.list_proofs(connection, kind=cast("kept.Kind | None", kind), limit=limit)
    )


@heads.command("publish")
def publish_heads(format: FormatOption = Format.table) -> None:
    """Append the heads that moved to the file, which the scheduler does every minute."""
    from tallystick.addresses import addresses
    from tallystick.verify import publish_heads as publish

    options = settings()
    with addresses(options) as found:
        moved = publish(found.url_for(OPERATOR), options.published_heads)
    if format is Format.json:
        print_json(moved)
    else:
        say(f"{counted(len(moved), 'head')} published to {options.published_heads}")


@events.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of usage events."""
    from ingest.usage_events import events_json_schema

    print_json(events_json_schema())
