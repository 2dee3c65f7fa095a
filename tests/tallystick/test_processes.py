"""Child processes: they end with their owner, and they stand and fall together."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.processes import (
    Child,
    ChildExited,
    ChildNotReady,
    Children,
    NotInMainThread,
    termination_as_interrupt,
)
from tests.support.processes import Owner, is_running, wait_until_gone

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_for_text(file: Path, text: str) -> None:
    deadline = time.monotonic() + 10
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < deadline, f"{text!r} never came into {file.name}"
        time.sleep(0.02)


def test_when_one_child_ends_its_last_lines_are_told_and_all_are_stopped(tmp_path):
    dying = python("print('reading'); print('FATAL: no topic'); print('bye'); raise SystemExit(3)")
    with Children(tmp_path) as children:
        sleeper = children.start("api", SLEEPER)
        children.start("worker", dying)
        with pytest.raises(ChildExited) as caught:
            children.watch()
    assert str(caught.value) == f"worker ended with code 3: FATAL: no topic (log: {tmp_path / 'worker.log'})"
    assert caught.value.last_lines == ("reading", "FATAL: no topic", "bye")
    assert not is_running(sleeper.pid)


def test_a_child_that_ends_well_but_too_early_counts_as_ended(tmp_path):
    with Children(tmp_path) as children:
        children.start("worker", python(""))
        with pytest.raises(ChildExited, match="worker ended with code 0: it wrote nothing"):
            children.watch()


def test_a_killed_child_is_named_with_its_signal(tmp_path):
    with Children(tmp_path) as children:
        os.kill(children.start("worker", SLEEPER).pid, signal.SIGKILL)
        with pytest.raises(ChildExited, match="worker ended with signal SIGKILL"):
            children.watch()


def test_the_last_lines_are_those_of_this_run(tmp_path):
    for line in ("yesterday", "today"):
        child = Child("worker", python(f"print({line!r})"), tmp_path / "worker.log")
        child.process.wait()
    assert child.last_lines() == ("today",)
    assert (tmp_path / "worker.log").read_text() == "yesterday\ntoday\n"


def test_watching_returns_when_the_time_is_over(tmp_path):
    with Children(tmp_path) as children:
        children.start("worker", SLEEPER)
        children.watch(0.1)


def test_children_are_stopped_the_last_started_first(tmp_path):
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def stop(number, frame):\n"
        "    time.sleep(0.1)\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1] + ' ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with Children(tmp_path) as children:
        for name in ("first", "second", "third"):
            children.start(name, [*python(code), name])
            wait_for_text(tmp_path / f"{name}.log", "ready")
    assert order.read_text() == "third second first "


def test_a_child_that_ignores_termination_is_killed_after_its_grace(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    started = time.monotonic()
    with Children(tmp_path, grace_seconds=0.2) as children:
        deaf = children.start("worker", python(code))
        wait_for_text(tmp_path / "worker.log", "deaf")
    assert not is_running(deaf.pid)
    assert time.monotonic() - started < 5


def test_a_child_that_is_never_ready_is_told_with_the_time_it_had(tmp_path):
    child = Child("worker", SLEEPER, tmp_path / "worker.log")
    with pytest.raises(ChildNotReady, match=r"worker was not ready after 0\.1 seconds: it wrote nothing"):
        child.wait_until(lambda: False, 0.1)
    child.kill()


def test_a_program_that_is_not_there_is_told_in_one_line(tmp_path):
    with pytest.raises(ChildExited, match="worker ended with code 127: no-such-program not found"):
        Child("worker", ["no-such-program"], tmp_path / "worker.log")


def test_a_child_is_not_started_from_a_side_thread_since_it_would_end_with_it(tmp_path):
    refused: list[Exception] = []

    def start():
        try:
            Child("worker", SLEEPER, tmp_path / "worker.log")
        except NotInMainThread as error:
            refused.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [type(error) for error in refused] == [NotInMainThread]


def test_an_owner_killed_with_9_leaves_neither_children_nor_their_children():
    code = """
    import sys, tempfile
    from pathlib import Path
    from tallystick.processes import Children
    logs = Path(tempfile.mkdtemp())
    inner = '''
    import sys
    from pathlib import Path
    from tallystick.processes import Child
    child = Child("inner", [sys.executable, "-c", "import time; time.sleep(60)"], Path(sys.argv[1]) / "inner.log")
    print(child.pid, flush=True)
    child.process.wait()
    '''
    with Children(logs) as children:
        outer = children.start("outer", [sys.executable, "-c", __import__("textwrap").dedent(inner), str(logs)])
        outer.wait_until(lambda: bool(outer.last_lines()), 10)
        print("ready", outer.pid, outer.last_lines()[0], flush=True)
        children.watch()
    """
    with Owner(code) as owner:
        outer, inner = (int(word) for word in owner.words)
        assert is_running(outer)
        assert is_running(inner)
        owner.kill()
        wait_until_gone(outer, inner)


def test_a_child_does_not_inherit_an_ignored_interrupt(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = Child("worker", SLEEPER, tmp_path / "worker.log")
    finally:
        signal.signal(signal.SIGINT, before)
    # Python is its own witness: it turns the interrupt into an exception only where it is not ignored.
    time.sleep(0.3)
    child.stop((signal.SIGINT, 5))
    assert "KeyboardInterrupt" in child.last_lines()[-1]


def receive(number: signal.Signals) -> None:
    with termination_as_interrupt():
        os.kill(os.getpid(), number)
        time.sleep(5)


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """Jobs that a shell starts in the background ignore an interrupt from their first moment on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_request_to_stop_arrives_as_an_interrupt(number):
    with pytest.raises(KeyboardInterrupt):
        receive(number)


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            subprocess.run(["true"], check=True)
    finally:
        signal.signal(signal.SIGHUP, before)
