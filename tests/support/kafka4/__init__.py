"""Runs a real Apache Kafka 4 in KRaft mode on loopback, for the tests that must not rest on the embedded broker alone."""

import base64
import fcntl
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tallystick.embedded import accepts, create_topic, free_port
from tallystick.processes import Child

POM = Path(__file__).with_name("pom.xml")
# Small and quick to start: one core's collector, no second compiler.
JAVA = [
    "java",
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.apache.logging.log4j.level=WARN",
]

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
log.message.timestamp.type=LogAppendTime
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
controlled.shutdown.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""


def missing_tool() -> str | None:
    """Name the program without which Kafka cannot run here."""
    return next((f"{tool} is not installed" for tool in ("java", "mvn") if shutil.which(tool) is None), None)


def fetch_jars(cache: Path) -> Path:
    """Have Maven copy the jars into the cache, unless those of this very pom are there."""
    stamp = cache / "pom.xml"
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == POM.read_text():
            return cache
        shutil.rmtree(cache, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run([*command, f"-DoutputDirectory={cache}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"Maven could not fetch Kafka's jars:\n{done.stdout}{done.stderr}"
        shutil.copy(POM, stamp)
    return cache


class Kafka4:
    """A single broker and controller; what it acknowledged is there again after kill() and start()."""

    def __init__(self, folder: Path, jars: Path) -> None:
        self.folder = folder
        self.jars = jars
        self.port = free_port()
        self.properties = folder / "server.properties"
        self._child: Child | None = None
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        self.properties.write_text(PROPERTIES.format(port=self.port, controller_port=free_port(), data=data))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [
            *self._java(),
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "-c",
            self.properties,
        ]
        subprocess.run(command, capture_output=True, check=True)

    def _java(self) -> list[str]:
        return [*JAVA, "-cp", f"{self.jars}/*"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> None:
        self._child = Child("Kafka", [*self._java(), "kafka.Kafka", self.properties], self.folder / "kafka.log")
        self._child.wait_until(self._leads, 60)

    def _leads(self) -> bool:
        """Tell whether the broker is in the cluster and leads each partition, as it does some time after it answers."""
        if not accepts(self.bootstrap):
            return False
        try:
            found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [partition for topic in found.topics.values() for partition in topic.partitions.values()]
        return bool(found.brokers) and all(partition.leader >= 0 for partition in partitions)

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop((signal.SIGTERM, 10))
            self._child = None

    def kill(self) -> None:
        """End it as a crash would."""
        self.child.kill()
        self._child = None

    def create_topic(self, name: str, partitions: int) -> None:
        create_topic(self.bootstrap, name, partitions)
