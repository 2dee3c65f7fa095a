"""Commands that roll up, check and describe what is there."""

from pathlib import Path
from typing import Annotated

import typer

from tallystick.commands.common import (
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
)
from tallystick.roles import ANALYST, OPERATOR, ROLLUP

events = group("The usage event contract.")
heads = group("Chain heads: published where the database's administrator cannot write.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("rollup")(rollup)
    app.command("check")(check)
    app.command("verify")(verify)
    app.add_typer(heads, name="heads")
    app.add_typer(events, name="events")


def rollup(
    rebuild: Annotated[
        str | None, typer.Option("--rebuild", metavar="MODEL", help="Make this mart, or all, new out of the ledger.")
    ] = None,
    tests: Annotated[bool, typer.Option("--tests", help="Also hold the marts to their promises.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Add to each mart the batches that it has not consumed yet."""
    from tallystick import rollup as dbt
    from tallystick.addresses import addresses

    options = settings()
    with addresses(options) as found:
        url = found.url_for(ROLLUP)
        if rebuild is not None:
            report = dbt.rebuild(url, options.home, None if rebuild == "all" else rebuild)
        else:
            report = dbt.run_rollup(url, options.home, tests=tests)
    if format is Format.json:
        print_json(
            {"models": plain(report.models), "tests_passed": report.tests_passed, "seconds": f"{report.seconds:.3f}"}
        )
        return
    rows = [[run.name, f"{run.rows:,}", f"{run.seconds:.2f}"] for run in report.models]
    print_table(["mart", "rows", "seconds"], rows, [1, 2])
    say(f"{report.tests_passed} tests passed" if tests else "rolled up")


def check(
    hours: Annotated[
        float, typer.Option("--hours", min=0.01, max=87_600, help="What arrived in the last hours.")
    ] = 24.0,
    format: FormatOption = Format.table,
) -> None:
    """Look at what arrived: volume, delay, mix, prices, usage, dead letters; fail if somebody must act."""
    from tallystick.addresses import addresses
    from tallystick.checks import run_checks

    with addresses(settings()) as found:
        report = run_checks(found.url_for(ANALYST), hours=hours)
    if format is Format.json:
        print_json({**plain(report), "failed": report.failed})
    else:
        for finding in report.findings:
            say(f"{finding.severity}: {finding.text}")
        say(f"{counted(report.requests, 'request')} looked at, {counted(len(report.findings), 'finding')}")
    if report.failed:
        names = ", ".join(dict.fromkeys(each.check for each in report.findings if each.severity == "fail"))
        raise CommandError(f"the checks failed: {names}")


def verify(
    published: Annotated[
        Path | None,
        typer.Option("--heads", help="File of published heads; left out, the one that is set, if it is there."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what was recorded from this day (UTC) or RFC 3339 time on."),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Recompute chain, keys, requests, budgets and marts from the ledger; fail if anything differs."""
    from tallystick import verify as proofs
    from tallystick.addresses import addresses

    options = settings()
    default = options.published_heads
    # The standing file is there once heads have been published; one that is named must be there.
    file = published or (default if default.exists() else None)
    with addresses(options) as found:
        proof = proofs.verify(
            found.url_for(OPERATOR),
            heads=file,
            since=moment(since),
        )
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
