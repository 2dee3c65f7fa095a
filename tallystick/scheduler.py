"""The scheduler: does what comes round. Nothing is wrong without it, only later: months ahead, marts, published heads."""

import asyncio
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg

from ledger.closing import close_partitions, seal_pending
from ledger.database import Connection, connect
from ledger.periods import ensure_partitions, ensure_periods
from ledger.sequences import take_sequences
from tallystick.addresses import Addresses
from tallystick.roles import ANALYST, OPERATOR, ROLLUP
from tallystick.settings import Settings

log = logging.getLogger("tallystick.scheduler")

Result = TypeVar("Result")

_LOCK: Final = 7_411_003
_WATCH_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = (1.0, 5.0, 15.0, 60.0)
_DAY_SECONDS: Final = 86_400.0
# Less than the ten seconds that `tallystick up` gives its children.
_STOP_SECONDS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Job:
    """Something that comes round. What it did is one line, or None where there is nothing to say."""

    name: str
    every_seconds: float
    do: Callable[[], Awaitable[str | None]]


def jobs(settings: Settings, found: Addresses) -> Sequence[Job]:
    """List the jobs; each opens the connections that it needs, so that none depends on another's."""

    async def months_ahead() -> str | None:
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            now = time.time_ns() // 1000
            partitions = await ensure_partitions(connection, now=now, months_ahead=settings.months_ahead)
            periods = await ensure_periods(
                connection, now=now, months_ahead=settings.months_ahead, grace_days=settings.grace_days
            )
        return f"{partitions} partitions and {periods} periods made" if partitions or periods else None

    async def grants() -> str | None:
        from quotas.granting import expire_due

        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            booked, moved = await expire_due(connection, "scheduler", now=time.time_ns() // 1000)
        return f"{booked} expired grants booked, {moved} prepaid limits moved" if booked or moved else None

    async def outbox() -> str | None:
        from quotas.webhooks import Rules, deliver_due

        rules = Rules(age_hours=settings.webhook_age_hours, allow_private=settings.webhooks_allow_private)
        sent = await deliver_due(found.url_for(OPERATOR), rules)
        for endpoint_id in sent.disabled:
            log.warning("endpoint %s is disabled: `tallystick webhooks list` says why", endpoint_id)
        if not (sent.delivered or sent.failed):
            return None
        return f"{sent.delivered} delivered, {sent.failed} failed, {sent.given_up} given up"

    async def expire() -> str | None:
        from ledger import expiry

        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            done = await expiry.expire(
                connection,
                now=time.time_ns() // 1000,
                raw_usage_months=settings.raw_usage_months,
                dead_letter_days=settings.dead_letter_days,
                open_dead_letter_days=settings.open_dead_letter_days,
                load_days=settings.load_days,
                actor="scheduler",
            )
        return done.line

    async def holds() -> str | None:
        from quotas import reservations

        total = 0
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            while True:
                swept = await reservations.expire(connection)
                total += swept.expired_count
                # Short transactions: while one has a window, nobody is admitted on it.
                if swept.expired_count < reservations.SWEEP_ROWS_MAX:
                    break
        return f"{total:,} expired" if total else None

    async def decisions() -> str | None:
        from quotas import reservations

        before = time.time_ns() // 1000 - settings.decision_days * 86_400_000_000
        total = 0
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            while forgotten := await reservations.forget(connection, before=before):
                total += forgotten
        return f"{total:,} decisions and closed reservations forgotten" if total else None

    async def rollup() -> str | None:
        from tallystick.rollup import run_rollup

        report = await _in_thread(lambda: run_rollup(found.url_for(ROLLUP), settings.home), "rollup")
        rows = sum(report.rows.values())
        if not rows and not report.start_seconds:
            return None
        start = f" after {report.start_seconds:.1f} s for dbt to start" if report.start_seconds else ""
        return f"{rows:,} rows in {report.seconds:.1f} s{start}"

    async def heads() -> str | None:
        from tallystick.verify import publish_heads

        moved = await _in_thread(lambda: publish_heads(found.url_for(OPERATOR), settings.published_heads), "heads")
        return f"{len(moved)} published" if moved else None

    async def standing() -> str | None:
        from tallystick.standing import prove

        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            turn = int(time.time() // settings.proof_seconds)
            done = await prove(connection, every_seconds=settings.proof_seconds, turn=turn)
        if done.difference_count:
            log.warning(
                "the standing proof found %d differences: `tallystick proofs show` says which", done.difference_count
            )
        return None

    async def arrived() -> str | None:
        from tallystick.check_page import write_page
        from tallystick.checks import note, run_checks
        from tallystick.expectations import read_expectations

        started_at = datetime.now(UTC)
        expected = read_expectations(settings.checks_file)
        report = await _in_thread(
            lambda: run_checks(found.url_for(ANALYST), hours=settings.check_hours, expectations=expected), "checks"
        )
        run = await note(
            found.url_for(OPERATOR), "schedule", report, started_at=started_at, every_seconds=settings.check_seconds
        )
        write_page(settings.checks_page, run, report.results)
        for finding in report.findings:
            if finding.severity == "fail":
                log.warning("check %s: %s", finding.check, finding.text)
        if not (run.warned_count or run.failed_count or run.broken_count):
            return None
        return f"{run.failed_count} failed, {run.warned_count} warn, {run.broken_count} broken: {settings.checks_page}"

    async def whole() -> str | None:
        from ledger.proofs import last_proofs
        from tallystick.refold import added, refold
        from tallystick.rollup import WarehouseMissing
        from tallystick.verify import note, verify

        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            last = [each.started_at for each in await last_proofs(connection) if each.kind == "whole"]
            if last and last[0] >= _last_time(settings.verify_hour, datetime.now(UTC)):
                return None
            heads_file = settings.published_heads if settings.published_heads.exists() else None
            proof = await _in_thread(lambda: verify(found.url_for(OPERATOR), heads=heads_file), "verify")
            try:
                folded = await _in_thread(lambda: refold(found.url_for(ROLLUP), settings.home), "refold")
                proof = added(proof, folded)
            except WarehouseMissing as error:
                # Where no rollup can run there is nothing to fold again; the proof of the rest counts all the same.
                proof.notes.append(f"the marts were not folded again: {error}")
            await note(connection, proof, every_seconds=_DAY_SECONDS)
        if not proof.ok:
            log.warning(
                "the ledger does not verify, %d failures: `tallystick proofs show` says which", len(proof.failures)
            )
            return None
        return f"everything holds: {proof.checked['entries']:,} entries in {proof.seconds:.1f} s"

    async def seals() -> str | None:
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            made = await seal_pending(connection)
            closed, _ = await close_partitions(connection)
        return f"{len(made)} seals made, {len(closed)} partitions closed" if made or closed else None

    async def counters() -> str | None:
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            taken = await take_sequences(connection)
        return f"{taken.number_count:,} sequences taken" if taken.number_count else None

    async def canary() -> str | None:
        from tallystick.canary import beat, set_up
        from tallystick.commands.canary import road_of

        road = road_of(settings)
        async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
            await set_up(
                connection, "scheduler", now=time.time_ns() // 1000, months_ahead=settings.months_ahead,
                grace_days=settings.grace_days,
            )  # fmt: skip
            done = await beat(connection, road, every_seconds=settings.canary_seconds)
        if done.failure is not None:
            log.warning("the canary failed: %s", done.failure)
            return None
        return f"an entry after {done.entry_seconds} s, its budget after {done.budget_seconds} s"

    return (
        # An hour is soon enough: months are made long before they begin.
        Job("months ahead", 3600.0, months_ahead),
        # Whoever closes a month seals it too: this finishes what was interrupted, or met a partition that was being read.
        Job("seals", 600.0, seals),
        # Limits of prepaid tenants follow the beginning and end of a grant within this.
        Job("grants", 60.0, grants),
        # Room that a crashed caller left held is given back within this, once the feeds are past it.
        Job("holds", 5.0, holds),
        Job("decisions", 3600.0, decisions),
        Job("outbox", settings.outbox_seconds, outbox),
        Job("rollup", settings.rollup_seconds, rollup),
        Job("age limits", 3600.0, expire),
        Job("heads", 60.0, heads),
        Job("counters", 60.0, counters),
        *([Job("standing proof", settings.proof_seconds, standing)] if settings.proof_seconds else []),
        *([Job("checks", settings.check_seconds, arrived)] if settings.check_seconds and _has_checks() else []),
        # Asks every ten minutes whether it is due, so that a restart neither skips a night nor proves one twice.
        *([Job("verify", 600.0, whole)] if settings.verify_hour >= 0 else []),
        *([Job("canary", settings.canary_seconds, canary)] if settings.canary_seconds else []),
    )


def _has_checks() -> bool:
    """Say whether the extra that checks need is installed: an image without it says so once, and not every quarter of an hour."""
    if importlib.util.find_spec("great_expectations") is not None:
        return True
    log.warning("nothing checks what arrives: great-expectations is not installed (extra `warehouse`)")
    return False


def _last_time(hour: int, now: datetime) -> datetime:
    """Return when it was last that hour of the day."""
    today = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    return today if today <= now else today - timedelta(days=1)


def run(settings: Settings, found: Addresses) -> None:
    """Run until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    asyncio.run(_until_stopped(schedule(found.url_for(OPERATOR), jobs(settings, found))))
    if _at_work:
        # What still runs in a thread may be killed at any point, and Python would wait for it.
        log.warning("stopped while %s was at work; it goes on from where it was next time", ", ".join(_at_work))
        logging.shutdown()
        os._exit(0)


async def _until_stopped(work: Any) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
    for _ in range(round(_STOP_SECONDS / 0.05)):
        if not _at_work:
            break
        await asyncio.sleep(0.05)
    log.info("stopped")


async def schedule(url: str, listed: Sequence[Job]) -> None:
    """Do the jobs for as long as this process holds the lock; wait for it while another does, or the database is away."""
    waits = False
    failures = 0
    while True:
        try:
            async with await connect(url, connect_timeout=10) as connection:
                failures = 0
                if await _is_ours(connection):
                    log.info("this is the scheduler now: %s", ", ".join(job.name for job in listed))
                    waits = False
                    await _work(connection, listed)
                elif not waits:
                    log.info("another scheduler is at work; waiting for its place")
                    waits = True
        except psycopg.Error as error:
            log.warning("the database is away (%s); again in a moment", _line(error))
            await asyncio.sleep(_pause_after(failures))
            failures += 1
            continue
        await asyncio.sleep(_WATCH_SECONDS)


async def _is_ours(connection: Connection) -> bool:
    # Asking again and again holds no snapshot, as a wait inside the database would.
    cursor = await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def _work(connection: Connection, listed: Sequence[Job]) -> None:
    """Repeat the jobs, each by its own clock, until the connection that holds the lock is lost."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_repeat(job)) for job in listed]
        try:
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                # The lock lives and dies with this connection.
                await connection.execute("select 1")
        except psycopg.Error as error:
            log.warning("the lock is lost (%s)", _line(error))
        finally:
            for task in tasks:
                task.cancel()


async def _repeat(job: Job) -> None:
    failures = 0
    while True:
        started = time.monotonic()
        try:
            done = await job.do()
        except Exception as error:
            # Whatever one job meets, the others go on.
            pause = min(_pause_after(failures), job.every_seconds)
            log.warning("%s failed, again in %g s: %s", job.name, pause, _line(error))
            failures += 1
            await asyncio.sleep(pause)
            continue
        failures = 0
        if done is not None:
            log.info("%s: %s", job.name, done)
        await asyncio.sleep(max(0.0, job.every_seconds - (time.monotonic() - started)))


def _pause_after(failures: int) -> float:
    return _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]


def _line(error: BaseException) -> str:
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        # The details of a refusal may quote a row.
        return f"{error.sqlstate}: {error.diag.message_primary}"
    return " ".join(str(error).split()) or type(error).__name__


_at_work: Final[list[str]] = []


async def _in_thread(work: Callable[[], Result], name: str) -> Result:
    """Run work that cannot be cancelled in a thread that nobody has to wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def target() -> None:
        result: Result | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        finally:
            _at_work.remove(name)
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    _at_work.append(name)
    threading.Thread(target=target, name=name, daemon=True).start()
    return await done
