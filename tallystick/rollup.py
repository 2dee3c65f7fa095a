"""`tallystick rollup`: runs the dbt project in this process, which keeps the project once it has been read.

RollupError
├── WarehouseMissing        the extra `warehouse` is not installed
├── RollupBusy              another run holds the lock
└── RollupFailed            a model or a test failed; its name is in the message
"""

import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tallystick.addresses import libpq_url
from tallystick.steps import Listener, Steps, StepsOutdated, shape

PROJECT: Final = Path(__file__).parent.parent / "dbt"
_LOCK: Final = 7_411_002
# dbt reads its connection from the environment of the process, which all threads share.
_ONE_AT_A_TIME: Final = threading.Lock()


class RollupError(Exception):
    """The rollup cannot go on."""


class WarehouseMissing(RollupError):
    """A part of the extra `warehouse` is not installed."""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__(f"{part} is not installed: pip install 'tallystick[warehouse]' -c constraints.txt")


class RollupBusy(RollupError):
    """Another run holds the lock."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"another rollup has been running for the {seconds:g} s that we waited")


class RollupFailed(RollupError):
    """A model or a test failed; what other models added is committed, each with its watermark."""

    def __init__(self, name: str, reason: str, others: int = 0) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"rollup: {name}: {reason}" + (f" (and {others} more)" if others else ""))


@dataclass(frozen=True, slots=True)
class ModelRun:
    """What a run did to one model."""

    name: str
    rows: int
    """Rows that were added or moved."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RollupReport:
    """A run that succeeded."""

    models: list[ModelRun]
    tests_passed: int
    start_seconds: float
    """Importing dbt and reading the project, which a process does once; zero from its second run on."""
    seconds: float
    """The run itself."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows that were added or moved, by model."""
        return {run.name: run.rows for run in self.models}


def run_rollup(
    url: str, home: Path, *, tests: bool = False, select: tuple[str, ...] = (), wait_seconds: float = 600.0
) -> RollupReport:
    """Add to each mart the batches that it has not consumed; with `tests`, hold the marts to their promises too.

    `url` logs in as tallystick_rollup; dbt's files stay under `home`. Any number of partial runs equals one whole run. A
    run that fails or is killed has added what its finished models hold, each with its watermark, and nothing else. The
    process keeps the project as it was when it first ran it.
    """
    # Unit tests guard the project's code, not the data: the test run has them. Seeds are loaded where they differ.
    command = ["build", "--exclude-resource-type", "unit_test", "seed"] if tests else ["run"]
    if tests and select:
        # A test that holds two marts against each other needs both of them.
        command += ["--indirect-selection", "cautious"]
    return _invoke(url, _Kept(home, "target"), command, select, wait_seconds)


def rebuild(url: str, home: Path, model: str | None = None, *, wait_seconds: float = 600.0) -> RollupReport:
    """Make one mart, or each of them, new out of the whole ledger; readers see the old one until the new one is whole.

    For a change of a mart's columns or rules. The watermark starts from zero in the transaction that swaps the tables.
    """
    if model is not None and not list((PROJECT / "models" / "marts").rglob(f"{model}.sql")):
        raise RollupFailed(model, "there is no such mart")
    _check_nothing_retired(url)
    # The views over a table go with it, and are made again.
    views = "config.materialized:standing_view"
    strategies = ("additive", "recomputed")
    selected = (
        (model, f"{model}+,{views}")
        if model
        else (*(f"config.incremental_strategy:{name}" for name in strategies), views)
    )
    # Other variables make dbt read the whole project again; with a folder of its own a rebuild costs the next run nothing.
    return _invoke(url, _Kept(home, "rebuild", {"rebuild": True}), ["run", "--full-refresh"], selected, wait_seconds)


@dataclass(frozen=True, slots=True)
class FoldText:
    """What a mart must equal, as a select, and the columns of its key."""

    sql: str
    keys: Sequence[str]
    is_recomputed: bool
    """Its rows are made anew whole: none stays that says nothing, and null is not zero."""
    uncompared: Sequence[str]
    """Columns that say how a row came to be."""


def compiled_for_refold(url: str, home: Path) -> Mapping[str, FoldText]:
    """Return for each mart that is a fold of the ledger the select of its rows out of everything that it has consumed, by name."""
    # As if each were made from nothing; it is compiled, and no run is made of it.
    kept = _Kept(home, "refold", {"refold": True, "rebuild": True})
    _check_installed()
    with _ONE_AT_A_TIME, _connection_in_environment(url):
        _check_there(url)
        manifest = _MANIFESTS.get(_key(url, kept)) or _read(url, kept)
        strategies = ("additive", "recomputed")
        selected = [f"config.incremental_strategy:{name}" for name in strategies]
        outcome = _runner(manifest).invoke(["compile", "--select", *selected, *kept.options])
    _report(outcome, 0.0, 0.0)
    nodes = [result.node for result in outcome.result.results if str(result.node.resource_type) == "model"]
    return {
        node.name: FoldText(
            node.compiled_code,
            node.config.get("unique_key"),
            node.config.get("incremental_strategy") == "recomputed",
            node.config.meta.get("uncompared", []),
        )
        for node in sorted(nodes, key=lambda each: str(each.name))
        if node.config.get("incremental_strategy") in strategies and node.config.meta.get("is_fold", True)
    }


def _check_there(url: str) -> None:
    """Raise RollupFailed where Postgres does not answer or no ledger is there."""
    with _connected(url):
        pass


def _check_nothing_retired(url: str) -> None:
    """Raise RollupFailed while the rows of a month are not in the ledger: a mart made new would be without them."""
    with psycopg.connect(libpq_url(url), autocommit=True, connect_timeout=10) as connection:
        gone = connection.execute(
            "select string_agg(to_char(posting_period, 'YYYY-MM'), ', ' order by posting_period)"
            " from ledger.retired_months where not is_readable"
        ).fetchone()
    if gone is not None and gone[0] is not None:
        raise RollupFailed(
            "ledger",
            f"the rows of {gone[0]} have left it, and a mart made new would lack them: `tallystick retention restore`",
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where dbt keeps what it has read, and the variables that it was read with."""

    home: Path
    name: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        return [
            "--project-dir", str(PROJECT),
            "--profiles-dir", str(PROJECT),
            "--target-path", str(self.home / "dbt" / self.name),
            "--log-path", str(self.home / "logs"),
            "--log-level-file", "warn",
            # What went wrong is read from the results; nothing of dbt's own reaches the terminal.
            "--log-level", "none",
            "--no-send-anonymous-usage-stats",
            "--no-version-check",
            "--no-write-json",
            *(["--vars", json.dumps(self.variables)] if self.variables else []),
        ]  # fmt: skip


# The project as it was read, by its variables and for which database, whose name is part of each relation's.
_MANIFESTS: Final[dict[tuple[str, ...], Any]] = {}
_MANIFESTS_MAX: Final = 4
_JOINED_MAX: Final = 1000


# What dbt last did with the project as it was read, by what was selected.
_STEPS: Final[dict[tuple[tuple[str, ...], tuple[str, ...]], Steps]] = {}
_STEPS_MAX: Final = 16


def _invoke(url: str, kept: _Kept, command: list[str], select: tuple[str, ...], wait_seconds: float) -> RollupReport:
    _check_installed()
    with _ONE_AT_A_TIME, _connection_in_environment(url):
        if (manifest := _MANIFESTS.get(_key(url, kept))) is None:
            _check_there(url)
        started = time.monotonic()
        start_seconds = 0.0
        if manifest is None:
            manifest = _read(url, kept)
            start_seconds = time.monotonic() - started
        with _alone(url, wait_seconds) as connection:
            _load_seeds(connection, manifest, kept)
            started = time.monotonic()
            # Only what every run does is run again; tests and rebuilds are dbt's.
            key = (_key(url, kept), select) if command == ["run"] else None
            if key in _STEPS and (report := _again(connection, _STEPS[key], started)) is not None:
                return report
            listener = Listener()
            outcome = _runner(manifest, listener.heard).invoke(
                [*command, *(["--select", *select] if select else []), *kept.options]
            )
            seconds = time.monotonic() - started
            report = _report(outcome, start_seconds, seconds)
            if key is not None:
                _keep(key, listener.steps([run.name for run in report.models], manifest, shape(connection)))
    return report


def _again(connection: psycopg.Connection, steps: Steps, started: float) -> RollupReport | None:
    """Run what dbt ran before; none where the marts are not as they were, which is for dbt to look at."""
    try:
        if steps.shape != shape(connection):
            return None
        done = steps.run(connection)
    except StepsOutdated:
        return None
    except psycopg.Error as error:
        raise RollupFailed("connection", _one_line(str(error))) from None
    failures = [run for run in done if run.failure is not None]
    if failures:
        raise RollupFailed(failures[0].model, _one_line(str(failures[0].failure)), len(failures) - 1)
    models = [ModelRun(run.model, run.rows, run.seconds) for run in done]
    return RollupReport(models, 0, 0.0, time.monotonic() - started)


def _keep(key: tuple[tuple[str, ...], tuple[str, ...]], steps: Steps | None) -> None:
    _STEPS.pop(key, None)
    if steps is not None:
        while len(_STEPS) >= _STEPS_MAX:
            del _STEPS[next(iter(_STEPS))]
        _STEPS[key] = steps


def _key(url: str, kept: _Kept) -> tuple[str, ...]:
    return (str(PROJECT), kept.name, str(conninfo_to_dict(libpq_url(url)).get("dbname")))


def _read(url: str, kept: _Kept) -> Any:
    """Read the project, and keep it."""
    outcome = _runner(None).invoke(["parse", *kept.options])
    if not outcome.success:
        raise RollupFailed("dbt", _one_line(str(outcome.exception or "the project cannot be read")))
    while len(_MANIFESTS) >= _MANIFESTS_MAX:
        del _MANIFESTS[next(iter(_MANIFESTS))]
    _MANIFESTS[_key(url, kept)] = outcome.result
    return outcome.result


_LOADED_SEEDS: Final = """
create table marts.loaded_seeds (
    name text primary key,
    sha256 text not null,
    loaded_at timestamptz not null default now()
);
comment on table marts.loaded_seeds is 'One row per seed: which text of its file the table of its name holds.';
comment on column marts.loaded_seeds.name is 'Of the seed, and of its table.';
comment on column marts.loaded_seeds.sha256 is 'Of the file, as dbt counts it.';
comment on column marts.loaded_seeds.loaded_at is 'When the table was last filled.';
"""


def _load_seeds(connection: psycopg.Connection, manifest: Any, kept: _Kept) -> None:
    """Load the seeds whose file is not what was last loaded; models read them like any mart."""
    seeds = {node.name: node.checksum.checksum for node in manifest.nodes.values() if str(node.resource_type) == "seed"}
    if not seeds:
        return
    if connection.execute("select to_regclass('marts.loaded_seeds') is null").fetchone() == (True,):
        connection.execute(_LOADED_SEEDS)
    loaded: dict[str, str] = dict(
        connection.execute(
            "select name, sha256 from marts.loaded_seeds where to_regclass('marts.' || name) is not null"
        )
    )
    differing = [name for name, checksum in seeds.items() if loaded.get(name) != checksum]
    if not differing:
        return
    outcome = _runner(manifest).invoke(["seed", "--full-refresh", "--select", *differing, *kept.options])
    _report(outcome, 0.0, 0.0)
    for name in differing:
        connection.execute(
            "insert into marts.loaded_seeds (name, sha256) values (%s, %s)"
            " on conflict (name) do update set sha256 = excluded.sha256, loaded_at = now()",
            [name, seeds[name]],
        )


def _check_installed() -> None:
    """Raise WarehouseMissing where the extra is not installed; `dbt/` in the checkout is no package."""
    for module, part in (("dbt.cli", "dbt-core"), ("dbt.adapters.postgres", "dbt-postgres")):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise WarehouseMissing(part)


def _runner(manifest: Any, *callbacks: Callable[[Any], None]) -> Any:
    # The import alone takes two seconds, so it waits until somebody rolls up.
    from dbt.cli.main import dbtRunner

    from dbt import compilation

    if not isinstance(compilation.inject_ctes_into_sql, _JoinedOnce):
        compilation.inject_ctes_into_sql = _JoinedOnce(compilation.inject_ctes_into_sql)
    for node in manifest.nodes.values() if manifest is not None else ():
        if getattr(node, "extra_ctes_injected", False):
            # What a run compiled is noted in the project, and a second run would take a model for done whose ephemeral
            # parents it has not put in again.
            node.extra_ctes_injected, node.extra_ctes = False, []
    return dbtRunner(manifest=manifest, callbacks=list(callbacks))


class _JoinedOnce:
    """dbt's joining of a model with the models without a table that it reads, once for each text.

    dbt parses the whole SQL of each model in Python to find its `with`: most of a run that has little to add, and the same
    in each run.
    """

    def __init__(self, join: Callable[[str, list[Any]], str]) -> None:
        self.join = join
        self.known: dict[tuple[str, ...], str] = {}

    def __call__(self, sql: str, ctes: list[Any]) -> str:
        key = (sql, *(cte.sql for cte in ctes))
        if key not in self.known:
            if len(self.known) >= _JOINED_MAX:
                self.known.clear()
            self.known[key] = self.join(sql, ctes)
        return self.known[key]


@contextmanager
def _alone(url: str, wait_seconds: float) -> Iterator[psycopg.Connection]:
    """Hold one advisory lock of the database for the block, so that two runs never interleave their models."""
    with _connected(url) as connection:
        connection.execute("select set_config('lock_timeout', %s, false)", [f"{max(1, int(wait_seconds * 1000))}ms"])
        try:
            connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        except psycopg.errors.LockNotAvailable:
            raise RollupBusy(wait_seconds) from None
        connection.execute("reset lock_timeout")
        yield connection


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection]:
    """Give a connection to a ledger; where there is none, say which is missing."""
    try:
        connection = psycopg.connect(libpq_url(url), autocommit=True, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise RollupFailed("connection", _one_line(str(error))) from None
    with connection:
        row = connection.execute("select to_regclass('ledger.batch_digests') is not null").fetchone()
        if row is None or not row[0]:
            raise RollupFailed("ledger", "its tables are not there: run `tallystick migrate`")
        yield connection


@contextmanager
def _connection_in_environment(url: str) -> Iterator[None]:
    """Tell dbt/profiles.yml where Postgres is, for the length of the block: dbt takes a connection from nowhere else."""
    parts = conninfo_to_dict(libpq_url(url))
    told = {
        "TALLYSTICK_DBT_HOST": parts.get("host", "localhost"),
        "TALLYSTICK_DBT_PORT": parts.get("port", "5432"),
        "TALLYSTICK_DBT_USER": parts.get("user", "tallystick_rollup"),
        "TALLYSTICK_DBT_DATABASE": parts.get("dbname", "tallystick"),
        "TALLYSTICK_DBT_SSLMODE": parts.get("sslmode", "prefer"),
        # With this prefix dbt keeps the value out of logs and artifacts.
        "DBT_ENV_SECRET_TALLYSTICK_PASSWORD": parts.get("password", ""),
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _report(outcome: Any, start_seconds: float, seconds: float) -> RollupReport:
    results = list(getattr(outcome.result, "results", None) or [])
    models: list[ModelRun] = []
    tests_passed = 0
    failures: list[tuple[str, str]] = []
    for result in results:
        name, kind, status = result.node.name, str(result.node.resource_type), str(result.status)
        if status in {"error", "fail", "runtime error"}:
            failures.append((name, _reason(result)))
        elif kind == "model" and status == "success":
            # Of a view that was made there are -1.
            rows = max(0, int((result.adapter_response or {}).get("rows_affected", 0)))
            models.append(ModelRun(name, rows, result.execution_time))
        elif kind == "test" and status == "pass":
            tests_passed += 1
    if failures:
        raise RollupFailed(*failures[0], len(failures) - 1)
    if not outcome.success or outcome.exception is not None:
        raise RollupFailed("dbt", _one_line(str(outcome.exception or "stopped before it was done")))
    return RollupReport(models, tests_passed, start_seconds, seconds)


def _reason(result: Any) -> str:
    if str(result.status) == "fail":
        return f"{result.failures} rows break it (dbt/{result.node.original_file_path})"
    return _one_line(str(result.message or result.status))


def _one_line(text: str) -> str:
    """Return what a message of several lines says, without where dbt put its compiled files and which macro called which."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    around = (
        "compiled code at",
        "Database Error in",
        "Runtime Error in",
        "Compilation Error in",
        "> in macro",
        "> called by",
    )
    said = [line for line in lines if not line.startswith(around)]
    return " ".join(said or lines)[:500]
