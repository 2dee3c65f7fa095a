"""The whole stack on this machine: Postgres, broker, worker, API, scheduler, as children that end with us."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from migrations.run import migrate
from tallystick.embedded import EmbeddedBroker, EmbeddedPostgres, free_port
from tallystick.processes import Children
from tallystick.roles import ANALYST, API, OPERATOR, ROLLUP, WRITER
from tallystick.settings import Settings, child_environment

POSTGRES: Final[Mapping[str, str]] = {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_connections": "100"}
MADE_BY_DEMO: Final = "made-by-demo"
"""A file in the home that says that its database holds a demo's data and nothing else."""
_READY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the parts of a running stack answer; other commands find them in `stack.json`."""

    api: str
    postgres: str
    kafka: str
    topic: str


def _file(home: Path) -> Path:
    return home / "stack.json"


def running(home: Path) -> Endpoints | None:
    """Return where the stack that runs in a home answers; None if none does."""
    try:
        found = Endpoints(**json.loads(_file(home).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    # A stack that was killed leaves its file behind; its API does not answer.
    return found if _answers(f"{found.api}/healthz") else None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Stack:
    """Runs the stack for as long as the block lasts. `say` hears of each step."""

    def __init__(
        self,
        settings: Settings,
        *,
        say: Callable[[str], None] = lambda _: None,
        api_port: int | None = None,
        with_scheduler: bool = True,
    ) -> None:
        self.settings = settings
        self.home = settings.home
        self._say = say
        self._api_port = settings.api_port if api_port is None else api_port
        self._with_scheduler = with_scheduler
        self._exits = ExitStack()
        self.postgres = EmbeddedPostgres(self.home, parameters=POSTGRES)
        self.broker = EmbeddedBroker(self.home)
        self.children = Children(self.home / "logs")
        self._endpoints: Endpoints | None = None

    @property
    def endpoints(self) -> Endpoints:
        assert self._endpoints is not None, "not started"
        return self._endpoints

    def url_for(self, role: str) -> str:
        return self.postgres.url_for(role)

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._say("starting Postgres")
            exits.enter_context(self.postgres)
            self._say("migrating")
            migrate(self.postgres.url)
            self._say("starting the broker")
            exits.enter_context(self.broker)
            self.broker.create_topic(self.settings.usage_topic, self.settings.usage_partitions)
            self.children.also_watch(self.postgres.child, self.broker.child)
            exits.enter_context(self.children)
            self._exits = exits.pop_all()
        return self

    def start_services(self) -> None:
        """Start worker, API and scheduler, and wait until the first two are ready."""
        port = self._api_port or free_port()
        self._endpoints = Endpoints(
            api=f"http://{self.settings.api_host}:{port}",
            postgres=self.postgres.url,
            kafka=self.broker.bootstrap,
            topic=self.settings.usage_topic,
        )
        # The embedded broker lets a group wait half a session for more members.
        environment = child_environment(
            home=str(self.home),
            kafka=self.broker.bootstrap,
            kafka_session_seconds="3",
            api_port=str(port),
            **{
                f"{role.removeprefix('tallystick_')}_url": self.url_for(role)
                for role in (WRITER, API, OPERATOR, ANALYST, ROLLUP)
            },
        )
        names = ["worker", "api", *(["scheduler"] if self._with_scheduler else [])]
        for name in names:
            self._say(f"starting the {name}")
            self.children.start(name, [sys.executable, "-m", "tallystick", name], environment=environment)
        self._wait("the API", lambda: _answers(f"{self.endpoints.api}/readyz"))
        self._wait("the worker", self._is_reading)
        written = _file(self.home).with_suffix(".new")
        written.write_text(json.dumps(asdict(self.endpoints)))
        written.replace(_file(self.home))

    def _wait(self, what: str, is_ready: Callable[[], bool]) -> None:
        self._say(f"waiting for {what}")
        deadline = time.monotonic() + _READY_SECONDS
        while not is_ready():
            self.children.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} was not ready within {_READY_SECONDS:g} seconds; see {self.children.logs}")
            time.sleep(0.05)

    def _is_reading(self) -> bool:
        """Say whether the worker has claimed every partition of this run's topic, whose feeds did not exist before."""
        with psycopg.connect(self.url_for(OPERATOR), autocommit=True) as connection:
            found = connection.execute(
                "select count(*) from ledger.feeds where kind = 'kafka' and name like %s",
                [f"kafka:{self.broker.cluster_id}:%"],
            ).fetchone()
        return found is not None and found[0] >= self.settings.usage_partitions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            _file(self.home).unlink()
        self._exits.close()
