"""The steps of a rollup, as dbt's materializations told them, run again without dbt.

What dbt runs for marts that are there is the same text each minute, while dbt itself takes longer over it than Postgres. So a
process that stays listens to a run of dbt's (`tell_steps` in dbt/macros/materialization.sql), and runs what it heard until
something is no longer as it was: then dbt runs again. Order, locks, transactions and watermarks are those of the texts; nothing here
knows what a mart is.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

_TOLD: Final = "tallystick steps "
# The class of SQLSTATE for what is not there, or not as it is named.
_NO_SUCH: Final = "42"
# Of every relation in the schema, by name, kind and columns.
_SHAPE: Final = """
select md5(string_agg(
    concat_ws(' ', c.relname, c.relkind, a.attname, a.atttypid, a.atttypmod), ',' order by c.relname, a.attnum
))
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = to_regnamespace('marts') and c.relkind in ('r', 'v')
"""


class StepsOutdated(Exception):
    """A statement no longer fits the database."""


@dataclass(frozen=True, slots=True)
class ModelSteps:
    """What a run does to one model, in one transaction."""

    model: str
    opening: Sequence[str]
    question: str | None
    """Asks whether there is anything to write; none is yes."""
    writing: str | None
    """None where there is never anything to do, such as for views."""
    closing: Sequence[str]


@dataclass(frozen=True, slots=True)
class StepRun:
    """What was done to one model."""

    model: str
    rows: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """A whole run: what is frozen, models in an order that their references allow, what is taken away at the end."""

    run_id: str
    """The run that was listened to, which its texts name."""
    begin: str
    models: Sequence[ModelSteps]
    end: str
    ancestors: Mapping[str, frozenset[str]]
    """By model, the models that it is made from, straight or by way of others."""
    shape: str

    def run(self, connection: psycopg.Connection) -> list[StepRun]:
        """Run the steps; where a model fails, those that are made from it are left out and the others run.

        Errors: StepsOutdated where a relation, column or function is not as it was; nothing of that model is written.
        """
        run_id = str(uuid.uuid4())
        done: list[StepRun] = []
        failed: set[str] = set()
        connection.execute(self.begin.replace(self.run_id, run_id).encode())
        try:
            for steps in self.models:
                if failed & self.ancestors[steps.model]:
                    failed.add(steps.model)
                    continue
                started = time.monotonic()
                try:
                    rows = _run_model(connection, steps, lambda text: text.replace(self.run_id, run_id).encode())
                except psycopg.Error as error:
                    if (error.sqlstate or "").startswith(_NO_SUCH):
                        raise StepsOutdated(str(error)) from error
                    failed.add(steps.model)
                    done.append(StepRun(steps.model, 0, time.monotonic() - started, str(error)))
                    if connection.closed:
                        break
                else:
                    done.append(StepRun(steps.model, rows, time.monotonic() - started))
        finally:
            if not connection.closed:
                connection.execute(self.end.replace(self.run_id, run_id).encode())
        return done


def _run_model(connection: psycopg.Connection, steps: ModelSteps, filled: Callable[[str], bytes]) -> int:
    if steps.writing is None:
        return 0
    with connection.transaction():
        for text in steps.opening:
            connection.execute(filled(text))
        rows = 0
        if steps.question is None or connection.execute(filled(steps.question)).fetchone() == (True,):
            rows = max(0, connection.execute(filled(steps.writing)).rowcount)
        for text in steps.closing:
            connection.execute(filled(text))
    return rows


def shape(connection: psycopg.Connection) -> str:
    """Return a digest of what relations the schema has, with which columns."""
    row = connection.execute(_SHAPE).fetchone()
    return str(row and row[0])


class Listener:
    """Hears what a run of dbt's does; `heard` is given to dbt's runner as a callback."""

    def __init__(self) -> None:
        self._run: dict[str, str] = {}
        self._models: dict[str, ModelSteps] = {}

    def heard(self, event: Any) -> None:
        if event.info.name != "JinjaLogDebug" or not event.data.msg.startswith(_TOLD):
            return
        told = json.loads(event.data.msg.removeprefix(_TOLD))
        if "model" in told:
            self._models[told["model"]] = ModelSteps(**told)
        else:
            self._run = told

    def steps(self, models: Sequence[str], manifest: Any, shape: str) -> Steps | None:
        """Return the steps for these models, in this order; none where one of them was made new, and told nothing."""
        if not self._run or not set(models) <= set(self._models):
            return None
        parents = {
            node.name: [manifest.nodes[each].name for each in node.depends_on.nodes if each in manifest.nodes]
            for node in manifest.nodes.values()
            if str(node.resource_type) == "model"
        }

        def above(name: str) -> frozenset[str]:
            direct = parents.get(name, [])
            return frozenset(direct).union(*(above(each) for each in direct))

        return Steps(
            run_id=self._run["run_id"],
            begin=self._run["begin"],
            models=[self._models[name] for name in models],
            end=self._run["end"],
            ancestors={name: above(name) for name in models},
            shape=shape,
        )
