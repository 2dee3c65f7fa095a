"""`make demo`: real traffic from bytes to bill, from nothing, with the proof that every store says the same."""

import asyncio
import json
import shutil
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from ingest.replay import Plan, events_of, load_plan, packs, send
from ledger.api_keys import create_key
from ledger.contracts import load_contracts
from ledger.database import connect
from ledger.price_import import accept_import, diff_import, read_genai_prices
from ledger.price_store import save_cards
from ledger.registry import add_entity, add_source, add_tenant, set_model
from ledger.times import local_midnight, micros
from quotas.budgets import Terms, set_budget
from tallystick.checks import CheckReport, run_checks
from tallystick.embedded import owned
from tallystick.processes import termination_as_interrupt
from tallystick.roles import ANALYST, OPERATOR, ROLLUP
from tallystick.rollup import run_rollup
from tallystick.settings import CHECKOUT, Settings
from tallystick.stack import MADE_BY_DEMO, Stack
from tallystick.verify import Proof, verify

if TYPE_CHECKING:
    from tallystick.month_end import MonthEnd

DATA: Final = CHECKOUT / "data"
TRACES: Final = (
    DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv.gz",
    DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz",
)
PRICES: Final = DATA / "prices" / "genai_prices_0.2.3.json.gz"
PRICES_VERSION: Final = "0.2.3"
PRICES_CHECKED_ON: Final = date(2026, 11, 1)
PACK_EVENTS: Final = 100
ACTOR: Final = "demo"
_PATIENCE_SECONDS: Final = 120.0

Answer = TypeVar("Answer")


class DemoFailed(Exception):
    """The demo's own proof did not hold; the message says where."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What each store says, asked by a query of its own; amounts are decimal strings."""

    events_sent: int
    entries: int
    duplicates: int
    dead_letters: int
    input_tokens: int
    output_tokens: int
    ledger_cost: str
    ledger_charge: str
    mart_charge: str
    budget_posted: str
    seconds: str
    events_per_second: str


def demo(settings: Settings, console: Console, *, with_month_end: bool = False) -> None:
    """Run the main job on real input and print what a person wants to see; write `demo-summary.json` into the home.

    With a month end, its invoices are PDFs in `month-end` of the home, with a FOCUS file beside them.
    Errors: DemoFailed where the stores disagree; EmbeddedError, RollupError and their like, each with one clear line.
    """
    started = time.monotonic()
    plan = load_plan(DATA / "demo" / "plan.json")
    with termination_as_interrupt(), _bars(console) as bars:
        step = bars.add_task("starting", total=1)
        _make_room(settings.home, console)

        def say(what: str) -> None:
            bars.update(step, description=what)

        with Stack(settings, say=say, api_port=0, with_scheduler=False) as stack:
            (settings.home / MADE_BY_DEMO).touch()
            say("loading prices, tenants and budgets")
            token = asyncio.run(set_up(stack.url_for(OPERATOR)))
            stack.start_services()
            bars.update(step, description="the stack is ready", completed=1)
            sent, seconds = _replay(stack, plan, bars)
            _timed(
                bars,
                "dbt adds the batches to the marts",
                lambda: run_rollup(stack.url_for(ROLLUP), settings.home),
            )
            checks = _timed(bars, "checking what arrived", lambda: run_checks(stack.url_for(ANALYST)))
            proof = _timed(bars, "proving that all stores agree", lambda: verify(stack.url_for(OPERATOR)))
            budgets = _ask_api(stack.endpoints.api, token, plan)
            with psycopg.connect(stack.url_for(OPERATOR), autocommit=True) as connection:
                summary = _summary(connection, sent, seconds)
                tables = [*_costs(connection)]
            ended = _month_end(stack, settings.home, bars) if with_month_end else None
            step = bars.add_task("stopping", total=1)
        bars.update(step, description="stopped", completed=1)
    written = settings.home / "demo-summary.json"
    written.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    _print(console, summary, tables, budgets, checks, proof, plan)
    if ended is not None:
        _print_month_end(console, ended)
    console.print(
        f"\n{time.monotonic() - started:.0f} seconds in all. The database stays: [bold]{_typed()} sql[/] opens it; figures in {_shown(written)}."
    )
    _refuse_disagreement(summary, checks, proof)
    if ended is not None:
        _refuse_false_invoices(ended)


# --- From nothing -----------------------------------------------------------------------------------------------------


def _make_room(home: Path, console: Console) -> None:
    """Begin with no database: a demo's own is thrown away, anybody else's is put aside; one that runs stays where it is.

    The heads that were published of it go with it, or they would be held against the next one.
    """
    home.mkdir(parents=True, exist_ok=True)
    folder, heads = home / "postgres", home / "heads.jsonl"
    if (folder / "data").exists():
        aside = home / f"postgres-until-{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
        with owned(home):
            if (home / MADE_BY_DEMO).exists():
                shutil.rmtree(folder)
                heads.unlink(missing_ok=True)
            else:
                folder.rename(aside)
                if heads.exists():
                    heads.rename(aside / heads.name)
                console.print(f"a database that no demo made was put aside as {_shown(aside)}")
    (home / "demo-summary.json").unlink(missing_ok=True)


async def set_up(url: str) -> str:
    """Load prices, parties and budgets by the functions that the commands call; return a token of the demo's gateway."""
    given = yaml.safe_load((DATA / "demo" / "setup.yaml").read_text())
    now = micros(datetime.now(UTC))
    connection = await connect(url)
    try:
        await add_entity(connection, ACTOR, given["entity"]["id"], given["entity"]["name"])
        for tenant_id, zone in given["tenants"].items():
            await add_tenant(
                connection,
                ACTOR,
                tenant_id,
                entity_id=given["entity"]["id"],
                time_zone=zone,
                charge_currency="USD",
                now=now,
                starts_at=local_midnight(zone, given["since"]),
            )
        source = given["source"]
        await add_source(connection, ACTOR, source["id"], kind=source["kind"], rank=source["rank"], speaks_for_all=True)
        await accept_import(
            connection,
            await diff_import(connection, read_genai_prices(PRICES, PRICES_VERSION, PRICES_CHECKED_ON), now),
            ACTOR,
        )
        for model in given["models"]:
            await set_model(connection, ACTOR, **model)
        await save_cards(connection, load_contracts(DATA / "demo" / "contracts.yaml"), ACTOR)
        for wanted in given["budgets"]:
            await set_budget(connection, ACTOR, _terms(wanted), now=now, since=given["since"], budget_id=wanted["id"])
        return (await create_key(connection, actor=ACTOR, source=source["id"], note="the demo's gateway")).token
    finally:
        await connection.close()


def _terms(wanted: Mapping[str, Any]) -> Terms:
    renamed = {"tenant": "tenant_id"}
    given = {renamed.get(name, name): value for name, value in wanted.items() if name != "id"}
    given["limit"] = Decimal(given["limit"])
    given["thresholds"] = tuple(Decimal(share) for share in given.get("thresholds", ()))
    return Terms(**given)


# --- The main job -----------------------------------------------------------------------------------------------------


def _replay(stack: Stack, plan: Plan, bars: Progress) -> tuple[int, float]:
    """Send both traces through the broker and wait until all is posted; return how many events, in how many seconds."""
    events = [event for path in TRACES for event in events_of(path, plan)]
    sending = bars.add_task("sending the traces", total=len(events))
    posting = bars.add_task("posting", total=len(events))
    started = time.monotonic()
    sent = send(
        stack.endpoints.kafka,
        stack.endpoints.topic,
        packs(events, PACK_EVENTS),
        lambda count: bars.update(sending, advance=count),
    )
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with psycopg.connect(stack.url_for(OPERATOR), autocommit=True) as connection:
        while (posted := _posted(connection)) < sent:
            bars.update(posting, completed=posted)
            stack.children.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"after {_PATIENCE_SECONDS:g} seconds {posted:,} of {sent:,} events are posted")
            time.sleep(0.05)
    seconds = time.monotonic() - started
    bars.update(posting, completed=sent)
    return sent, seconds


def _posted(connection: psycopg.Connection[Any]) -> int:
    return int(
        _one(
            connection,
            "select coalesce(sum(created_count + duplicate_count + evidence_count + conflict_count + dead_letter_count), 0)"
            " from ledger.batches",
        )
    )


def _one(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _summary(connection: psycopg.Connection[Any], sent: int, seconds: float) -> Summary:
    """Ask each store by a query of its own."""

    def amount(query: str) -> str:
        return f"{Decimal(_one(connection, query)).normalize():f}"

    return Summary(
        events_sent=sent,
        entries=int(_one(connection, "select count(*) from ledger.entries")),
        duplicates=int(_one(connection, "select coalesce(sum(duplicate_count), 0) from ledger.batches")),
        dead_letters=int(_one(connection, "select count(*) from ledger.dead_letters")),
        input_tokens=int(_one(connection, "select coalesce(sum(input_tokens), 0) from ledger.entries")),
        output_tokens=int(_one(connection, "select coalesce(sum(output_tokens), 0) from ledger.entries")),
        ledger_cost=amount("select coalesce(sum(cost_amount), 0) from ledger.entries"),
        ledger_charge=amount("select coalesce(sum(charge_amount), 0) from ledger.entries"),
        mart_charge=amount("select coalesce(sum(charge_amount), 0) from marts.fct_cost_daily"),
        budget_posted=amount("select coalesce(sum(posted), 0) from quotas.windows where budget_id = 'totals-charge'"),
        seconds=f"{seconds:.2f}",
        events_per_second=f"{sent / seconds:.0f}",
    )


def _month_end(stack: Stack, home: Path, bars: Progress) -> "MonthEnd":
    # Imported late: most demos set no page.
    from tallystick.month_end import month_end

    return _timed(
        bars,
        "closing, issuing, writing PDFs",
        lambda: asyncio.run(
            month_end(stack.url_for(OPERATOR), DATA / "demo" / "billing.yaml", home / "month-end", ACTOR)
        ),
    )


def _ask_api(address: str, token: str, plan: Plan) -> list[dict[str, Any]]:
    """Ask the API, over HTTP and with a key, what remained of each tenant's budgets at the time of the trace."""
    at = datetime(2023, 11, 16, 18, 45, tzinfo=UTC).timestamp() + plan.shift_days * 86_400
    moment = urllib.parse.quote(datetime.fromtimestamp(at, UTC).isoformat())
    found = []
    for tenant_id in plan.tenants:
        request = urllib.request.Request(
            f"{address}/v1/tenants/{urllib.parse.quote(tenant_id)}/budgets?at={moment}",
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found += [{"tenant_id": tenant_id, **budget} for budget in json.load(answer)["budgets"]]
    return found


# --- What a person wants to see ---------------------------------------------------------------------------------------


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield bars


def _timed(bars: Progress, what: str, work: Callable[[], Answer]) -> Answer:
    task: TaskID = bars.add_task(what, total=1)
    answer = work()
    bars.update(task, completed=1)
    return answer


_DIMENSIONS: Final = ("tenant_id", "feature", "language", "model")


def _costs(connection: psycopg.Connection[Any]) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
    for dimension in _DIMENSIONS:
        rows = connection.execute(
            (
                f"select {dimension}, sum(request_count), sum(input_tokens), sum(output_tokens), sum(cost_amount),"
                f" sum(charge_amount) from marts.fct_cost_daily group by 1 order by 6 desc"
            ).encode()
        ).fetchall()
        yield dimension, rows


def _print(
    console: Console,
    summary: Summary,
    tables: Iterable[tuple[str, Sequence[tuple[Any, ...]]]],
    budgets: Sequence[Mapping[str, Any]],
    checks: CheckReport,
    proof: Proof,
    plan: Plan,
) -> None:
    console.print(
        f"\nReal: arrival times and token counts of {summary.events_sent:,} requests (Azure LLM inference traces of 2023,"
        f" CC-BY), moved by {plan.shift_days} days. Assigned by the replayer: tenant, feature, language, model."
    )
    console.print(
        f"[bold]{int(summary.events_per_second):,}[/] events a second through broker and worker into the ledger:"
        f" {summary.entries:,} entries, {summary.input_tokens:,} tokens in, {summary.output_tokens:,} out,"
        f" {summary.duplicates:,} duplicates, {summary.dead_letters:,} dead letters.\n"
    )
    for dimension, rows in tables:
        numbers = (
            Column(name, justify="right") for name in ("requests", "tokens in", "tokens out", "cost USD", "charge USD")
        )
        table = Table(Column(dimension.removesuffix("_id"), min_width=18), *numbers, box=None, pad_edge=False)
        for name, requests, tokens_in, tokens_out, cost, charge in rows:
            table.add_row(
                str(name), f"{requests:,}", f"{tokens_in:,}", f"{tokens_out:,}", f"{cost:,.4f}", f"{charge:,.4f}"
            )
        console.print(table, "")
    _print_budgets(console, budgets)
    for finding in checks.findings:
        console.print(f"check ({finding.severity}): {finding.text}")
        if finding.check == "delay":
            console.print("  (as it must be: the traces are older than this ledger)")
    if not checks.findings:
        console.print("check: nothing to complain about in what arrived")
    _print_proof(console, summary, proof)


def _print_budgets(console: Console, budgets: Sequence[Mapping[str, Any]]) -> None:
    numbers = (Column(name, justify="right") for name in ("limit", "posted", "remaining"))
    table = Table("tenant", "budget", "window", *numbers, box=None, pad_edge=False)
    for budget in budgets:
        if budget["limit"] is None:
            continue
        unit = budget.get("currency") or budget["unit"].removeprefix("total_")
        remaining = Decimal(budget["remaining"])
        table.add_row(
            budget["tenant_id"],
            budget["budget_id"],
            _window(budget["window"]),
            f"{Decimal(budget['limit']):,f} {unit}",
            _rounded(Decimal(budget["posted"])),
            f"[red]{_rounded(remaining)}[/]" if remaining < 0 else _rounded(remaining),
        )
    console.print("What remains, asked of the API at the time of the trace:")
    console.print(table, "")


def _window(window: Mapping[str, str]) -> str:
    """Return a window as ISO 8601 writes a month, a week or a day: short enough for a row in 80 columns."""
    written = {"month": "%Y-%m", "week": "%G-W%V"}.get(window["kind"], "%Y-%m-%d")
    return date.fromisoformat(window["first_date"]).strftime(written)


def _rounded(amount: Decimal) -> str:
    return f"{amount:,.4f}" if amount % 1 else f"{amount:,.0f}"


def _print_proof(console: Console, summary: Summary, proof: Proof) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("charge by the ledger's entries", summary.ledger_charge)
    table.add_row("charge by the marts", summary.mart_charge)
    table.add_row("charge by the budgets", summary.budget_posted)
    console.print("The proof, in USD to the last digit:")
    console.print(table)
    if proof.ok:
        console.print(
            "[green]verified:[/] "
            + ", ".join(f"{count:,} {what}" for what, count in proof.checked.items())
            + " recomputed"
        )
    for failure in proof.failures:
        console.print(f"[red]{failure.part}:[/] {failure.text}")


def _print_month_end(console: Console, ended: "MonthEnd") -> None:
    numbers = (Column(name, justify="right") for name in ("usage, exactly", "other", "tax", "due USD"))
    table = Table("invoice", "tenant", "language", *numbers, box=None, pad_edge=False)
    for each in ended.invoices:
        usage = sum((line.exact_amount for line in each.lines if line.kind == "usage"), Decimal(0))
        other = sum((line.amount for line in each.lines if line.kind != "usage"), Decimal("0.00"))
        table.add_row(
            each.number, each.tenant_id, each.language, f"{usage.normalize():f}", f"{other:,f}", f"{each.tax_total:,f}", f"{each.amount_due:,f}"
        )  # fmt: skip
    console.print(f"\nMonth end: {ended.month:%B %Y} is closed, sealed and invoiced.")
    console.print(table, "")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("charge by the ledger's entries", f"{ended.ledger_charge.normalize():f}")
    table.add_row("usage lines of all invoices, exactly", f"{ended.invoiced_usage.normalize():f}")
    table.add_row("due on all invoices, with fees, discounts, minimums and tax", f"{ended.amount_due:f}")
    table.add_row("BilledCost of the FOCUS file", f"{ended.focus_billed.normalize():f}")
    console.print(table)
    for text in ended.parked:
        console.print(f"[red]parked:[/] {text}")
    console.print(
        f"PDFs and the FOCUS file are in [bold]{_shown(ended.folder)}[/]; docs/month-end.md says how a month is ended."
    )


def _typed() -> str:
    """Return our command as the reader typed it: in a checkout it is on no search path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "tallystick" else "tallystick"


def _shown(path: Path) -> str:
    """Return a path as the reader would type it, relative to where they are."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _refuse_disagreement(summary: Summary, checks: CheckReport, proof: Proof) -> None:
    if not proof.ok:
        raise DemoFailed(f"the proof does not hold: {proof.failures[0].text}")
    if not summary.ledger_charge == summary.mart_charge == summary.budget_posted:
        raise DemoFailed("ledger, marts and budgets differ")
    if checks.failed:
        raise DemoFailed("a check of what arrived failed")


def _refuse_false_invoices(ended: "MonthEnd") -> None:
    if ended.parked:
        raise DemoFailed(f"not invoiced: {ended.parked[0]}")
    if ended.invoiced_usage != ended.ledger_charge:
        raise DemoFailed("the usage lines of the invoices are not what the ledger charged")
    if ended.focus_billed != ended.amount_due:
        raise DemoFailed("the FOCUS file is not what the invoices come to")
