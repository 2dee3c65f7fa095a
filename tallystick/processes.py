"""Child processes that cannot outlive us: started, watched, stopped, with their logs.

EmbeddedError
├── OtherSystem
├── NotInMainThread
├── ChildExited
├── ChildNotReady
├── FolderUnusable
├── PartMissing          (from here down: raised by embedded.py)
├── AlreadyOwned
├── FirstStartFailed
├── PortTaken
└── TopicRefused
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

LOG_BYTES_MAX = 20_000_000
LAST_LINES_COUNT = 15
POLL_SECONDS = 0.02


class EmbeddedError(Exception):
    """The embedded stack cannot go on."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)
        super().__init__((type(self).__doc__ or "").format(**values))

    last_lines: tuple[str, ...] = ()


class OtherSystem(EmbeddedError):
    """The embedded stack runs on Linux only; this is {system}."""

    system: str


class NotInMainThread(EmbeddedError):
    """Child process {name} was to start from a side thread; its life would end with that thread's."""

    name: str


class ChildExited(EmbeddedError):
    """{name} ended with {how}: {last_line} (log: {log})"""

    name: str
    how: str
    code: int
    last_line: str
    log: Path


class ChildNotReady(EmbeddedError):
    """{name} was not ready after {seconds:g} seconds: {last_line} (log: {log})"""

    name: str
    seconds: float
    last_line: str
    log: Path


class FolderUnusable(EmbeddedError):
    """Folder {folder} cannot be used: {reason}"""

    folder: Path
    reason: str


class PartMissing(EmbeddedError):
    """The embedded {part} is not installed; in a checkout: pip install -c constraints.txt '.[embedded]'"""

    part: str


class AlreadyOwned(EmbeddedError):
    """The embedded Postgres in {home} already belongs to the running process {pid}."""

    home: Path
    pid: int | None


class FirstStartFailed(EmbeddedError):
    """A new database could not be made in {folder}: {last_line}"""

    folder: Path
    last_line: str


class PortTaken(EmbeddedError):
    """Port {port} on 127.0.0.1 is taken by another program."""

    port: int


class TopicRefused(EmbeddedError):
    """The broker refused to create topic {topic}: {reason}"""

    topic: str
    reason: str


def telling_line(lines: Sequence[str]) -> str:
    """Pick the line that says why: the last one that names an error, else the last one."""
    words = ("FATAL", "PANIC", "ERROR", "error:", "Error", "panicked")
    naming = [line for line in lines if any(word in line for word in words)]
    return (naming or list(lines) or ["it wrote nothing"])[-1].strip()


def private_folder(folder: Path) -> Path:
    """Make a folder that only we can enter, or say why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=error.strerror or str(error)) from None
    return folder


class Child:
    """One running child process with its log file; the kernel sends it `death_signal` when we end, however we end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
        user: tuple[int, int] | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Start the command; `environment` None hands down ours, `keep_open` are file descriptors that it shares.

        SIGKILL on our death by default: whoever is killed so had no time to wait for others either, and it reaches the
        children of children, if they too were started here.
        """
        if not sys.platform.startswith("linux"):
            raise OtherSystem(system=sys.platform)
        # The kernel takes the thread that forked for the parent, and sends the signal when that thread ends.
        if threading.current_thread() is not threading.main_thread():
            raise NotInMainThread(name=name)
        program = shutil.which(str(command[0]))
        if program is None:
            raise ChildExited(name=name, how="code 127", code=127, last_line=f"{command[0]} not found", log=log)
        self.name = name
        self.log = log
        private_folder(log.parent)
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        starter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py"))]
        becoming = [str(os.getpid()), str(int(death_signal)), "" if user is None else f"{user[0]}:{user[1]}"]
        with log.open("ab") as output:
            self._log_start = output.tell()
            self.process = subprocess.Popen(
                [*starter, *becoming, program, *(str(part) for part in command[1:])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=keep_open,
                # Keeps Ctrl-C from the children: the owner hears it and stops them in their order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def last_lines(self, count: int = LAST_LINES_COUNT) -> tuple[str, ...]:
        """Read the last lines that this run wrote."""
        try:
            with self.log.open("rb") as written:
                end = written.seek(0, os.SEEK_END)
                written.seek(min(end, max(self._log_start, end - 64_000)))
                text = written.read().decode("utf-8", "replace")
        except OSError:
            return ()
        return tuple([line for line in text.splitlines() if line.strip()][-count:])

    def check(self) -> None:
        """Raise ChildExited if it is no longer running."""
        code = self.process.poll()
        if code is None:
            return
        how = f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        lines = self.last_lines()
        raise ChildExited(
            name=self.name, how=how, code=code, last_line=telling_line(lines), log=self.log, last_lines=lines
        )

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()`; an exit in between raises ChildExited, `seconds` gone by raise ChildNotReady."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            if ready():
                return
            if time.monotonic() > deadline:
                lines = self.last_lines()
                raise ChildNotReady(
                    name=self.name, seconds=seconds, last_line=telling_line(lines), log=self.log, last_lines=lines
                )
            time.sleep(POLL_SECONDS)

    def stop(self, *signals: tuple[signal.Signals, float]) -> int:
        """Send each signal and wait its seconds, then SIGKILL to the whole session; returns the exit code."""
        for number, seconds in signals:
            if self.process.poll() is not None:
                break
            self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        if self.process.poll() is None:
            self.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Kill it, and what it started in its session, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Children:
    """Several children that stand and fall together: when one ends, all are stopped, the last started first."""

    def __init__(self, logs: Path, *, grace_seconds: float = 10.0) -> None:
        self.logs = logs
        self.grace_seconds = grace_seconds
        self._ours: list[Child] = []
        self._watched: list[Child] = []

    def start(self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> Child:
        """Start a child that logs into `<logs>/<name>.log`."""
        child = Child(name, command, self.logs / f"{name}.log", environment=environment)
        self._ours.append(child)
        return child

    def also_watch(self, *children: Child) -> None:
        """Watch children that another object starts and stops: the embedded Postgres and broker."""
        self._watched.extend(children)

    def check(self) -> None:
        """Raise ChildExited for the first child that has ended; none is meant to."""
        # The servers first: when Postgres is gone the worker may go too, and the cause should be named.
        for child in [*self._watched, *self._ours]:
            child.check()

    def watch(self, seconds: float | None = None) -> None:
        """Stay until `seconds` are over (None: for ever), or raise ChildExited as soon as a child has ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            self.check()
            left = 0.1 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.1, left))

    def stop(self) -> None:
        """Stop all that were started here, the last first: SIGTERM, `grace_seconds`, SIGKILL."""
        while self._ours:
            self._ours[-1].stop((signal.SIGTERM, self.grace_seconds))
            self._ours.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP arrive as KeyboardInterrupt, as Ctrl-C does: `with` blocks then stop what they started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: nohup ignores SIGHUP on purpose.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
