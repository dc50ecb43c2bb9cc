"""The receiver in a real broker: records of real clients and of the broker itself, and pushes that nobody wants."""

import gzip
import itertools
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import confluent_kafka
import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from scripts.java.build import module
from scripts.java.compiler import compile_java
from sluice.jvm.jars import REPOSITORY, JarSet
from sluice.jvm.java import find_java
from sluice.jvm.plugin import KAFKA_REPORTER_CLASS, plugin_jar
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jars import KAFKA_RELEASE_JARS, NEW_BROKER_JARS, OLD_BROKER_JARS
from sluice_lab.testbed.jmx import beans
from sluice_telemetry.jars import OLD_RECEIVER_CLASS, RECEIVER_CLASS, telemetry_jar
from sluice_telemetry.records import BROKER_METRICS, TOPIC, BrokerRecord, ClientRecord, read_record
from sluice_telemetry.subscription import subscribe
from sluice_toolbox.machine import Jvm
from tests.broker_plugin import OLD_LOG
from tests.certificates import certificate
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

EXTRA = REPOSITORY / "extras" / "telemetry"
OTHER_RECEIVER = "sluice.telemetry.OtherReceiver"
PUSH = (EXTRA / "tests" / "data" / "java-consumer-4.4.push").read_bytes()
"""One push of a consumer of Kafka 4.4, as the subscription asks for."""
JVM = ("-XX:TieredStopAtLevel=4",)  # Java's optimizing compiler, as in production
GZIP = 1
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LOG = """
appender.stdout.type=Console
appender.stdout.name=stdout
rootLogger.level=INFO
rootLogger.appenderRef.stdout.ref=stdout
"""
CLIENTS, CONNECTIONS, INTERVAL_S = 1_000, 50, 30


OTHER_BROKERS = [
    (OLD_BROKER_JARS, OLD_RECEIVER_CLASS),
    *((KAFKA_RELEASE_JARS[release], OLD_RECEIVER_CLASS) for release in ("4.0", "4.1", "4.2")),
    *((jars, RECEIVER_CLASS) for jars in (KAFKA_RELEASE_JARS["4.2"], NEW_BROKER_JARS)),
    (NEW_BROKER_JARS, OLD_RECEIVER_CLASS),
]
BOUNDED = (BROKER_JARS, NEW_BROKER_JARS)
"""Brokers that refuse a compressed push of too many bytes; others unpack it."""


class TelemetryBroker:
    """A broker with these reporters, whose clients are asked to push."""

    def __init__(
        self, folder: Path, jars: JarSet, *reporters: str, interval_ms: int = 500, writes_to: str = "127.0.0.1:{port}"
    ) -> None:
        classes, self.pushes = folder / "classes", folder / "pushes"
        classes.mkdir(parents=True)
        self.pushes.mkdir()
        tests = sorted((EXTRA / "tests" / "java").rglob("*.java"))
        compile_java(tests, [*BROKER_JARS.paths(), telemetry_jar()], classes, 11)
        (classes / "log4j.properties").write_text(OLD_LOG)  # without it, brokers of 3.x write no log
        (log := folder / "log4j2.properties").write_text(LOG)  # nor those beside the jars of Kafka's own tests
        properties = {"metric.reporters": ",".join((KAFKA_REPORTER_CLASS, *reporters)), "test.pushes": str(self.pushes)}
        properties["sluice.bootstrap.servers"] = writes_to
        plugins, options = [telemetry_jar(), classes], (*JVM, f"-Dlog4j2.configurationFile={log}")
        self.broker = Broker(folder / "broker", properties, jars, plugins, jvm_options=options, jmx=True)
        self.broker.start()
        self.is_bounded = jars in BOUNDED
        self.servers = self.broker.bootstrap_servers
        with closing(KafkaAdminClient(bootstrap_servers=self.servers)) as admin:
            admin.create_topics({"orders": {"num_partitions": 1, "replication_factor": 1}})
        subscribe({"bootstrap_servers": self.servers}, interval_ms)
        with closing(Pusher(self.servers)) as pusher:
            eventually(lambda: pusher.subscription(uuid4().bytes)[1] == interval_ms)

    def records(self) -> Iterator[ClientRecord | BrokerRecord]:
        """All records of the topic, then new ones, for two minutes."""
        return records(bootstrap_servers=self.servers)

    def count(self, name: str) -> float:
        with Jvm() as jvm:
            (count,) = beans(jvm, self.broker.jmx_port).read("sluice:type=telemetry,*", name).values()
            return count


def records(**options: object) -> Iterator[ClientRecord | BrokerRecord]:
    """All records of the topic, then new ones, for two minutes; `options` are kafka-python's."""
    with closing(KafkaConsumer(TOPIC, auto_offset_reset="earliest", **options)) as consumer:
        until = monotonic() + 120
        while monotonic() < until:
            for polled in consumer.poll(timeout_ms=200).values():
                for record in polled:
                    if (read := read_record(record.value)) is not None:
                        yield read


class Pusher:
    """A connection on which any number of clients get their subscription and push, as the protocol has it."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self._socket, self._numbers = socket.create_connection((host, int(port)), timeout=60), itertools.count()

    def _ask(self, api: int, body: bytes) -> bytes:
        asked = struct.pack(">hhih3sb", api, 0, next(self._numbers), 3, b"raw", 0) + body
        self._socket.sendall(struct.pack(">i", len(asked)) + asked)
        return self._read(*struct.unpack(">i", self._read(4)))[5:]

    def _read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            read += self._socket.recv(size - len(read)) or pytest.fail("the broker has closed the connection")
        return read

    def subscription(self, instance: bytes) -> tuple[int, int]:
        """Its id, and how many ms there are between two pushes."""
        answer = self._ask(71, instance + b"\0")
        after_compressions = 26 + answer[26]
        return struct.unpack_from(">i", answer, 22)[0], struct.unpack_from(">i", answer, after_compressions)[0]

    def push(self, instance: bytes, subscription: int, metrics: bytes, compression: int = 0) -> int:
        """The broker's error code."""
        length, size = b"", len(metrics) + 1
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        head = instance + struct.pack(">i?b", subscription, False, compression) + length + bytes([size])
        return int(struct.unpack_from(">h", self._ask(72, head + metrics + b"\0"), 4)[0])

    def push_once(self, metrics: bytes, compression: int = 0) -> int:
        """The same of a new client."""
        instance = uuid4().bytes
        return self.push(instance, self.subscription(instance)[0], metrics, compression)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(
    scope="module",
    params=[
        (BROKER_JARS, RECEIVER_CLASS),
        *(pytest.param(each, marks=pytest.mark.long) for each in OTHER_BROKERS),
    ],
    ids=lambda param: f"{param[0].name}-{param[1].rpartition('.')[2]}",
)
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[TelemetryBroker]:
    jars, receiver = request.param
    made = TelemetryBroker(tmp_path_factory.mktemp("telemetry"), jars, receiver, OTHER_RECEIVER)
    yield made
    made.broker.stop()


def test_pushes_that_cant_be_copied_take_no_room_from_those_that_come_later(tmp_path: Path) -> None:
    tests = sorted((EXTRA / "tests" / "java").rglob("*.java"))
    jars = [*BROKER_JARS.paths(), telemetry_jar()]
    compile_java(tests, jars, tmp_path, 11)
    class_path = os.pathsep.join(map(str, [*jars, tmp_path]))
    command = [find_java()[0], "-cp", class_path, "sluice.telemetry.FailingPushes"]
    counts = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()

    assert [float(count) for count in counts] == [1_001, 1_000, 0]


def test_a_client_and_the_broker_say_of_themselves_what_the_page_promises(broker: TelemetryBroker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.servers, "client.id": "app"})
    client, own = None, None
    for record in broker.records():
        producer.produce("orders", bytes(1_000))
        producer.poll(0)
        if isinstance(record, BrokerRecord):
            own = record
        elif record.metrics.get("producer.request.latency.max", 0) > 0:
            client = record
        if client and own:
            break

    assert client
    assert own
    assert (client.client_id, client.user, client.broker) == ("app", "ANONYMOUS", own.broker)
    assert client.software.startswith("confluent-kafka-python ")
    assert {"producer.produce.throttle.time.avg", f"producer.node.request.latency.avg.{own.broker}"} < {*client.metrics}
    assert {"request_queue_size", "request_handler_idle", "mutes"} < {*own.metrics} <= {*BROKER_METRICS}
    eventually((broker.pushes / "app").exists)  # the receiver beside it got the same


def test_pushes_that_nobody_can_read_are_counted_and_the_next_one_is_written(broker: TelemetryBroker) -> None:
    with closing(Pusher(broker.servers)) as pusher:
        assert pusher.push_once(b"\xff" * 1_000) == 0
        assert pusher.push_once(b"\x0a\xff\xff\x7f") == 0  # a message that is longer than all of it
        assert pusher.push_once(bytes(400_000)) == 0
        packed = gzip.compress(bytes(64 << 20))
        assert not broker.is_bounded or pusher.push_once(packed, GZIP) != 0  # the broker refuses it, and tells nobody
        eventually(lambda: broker.count("pushes-unreadable") == 2)
        assert pusher.push_once(b"\x0a\x00") == 0

    assert any(isinstance(each, ClientRecord) and each.client_id == "raw" for each in broker.records())
    assert [broker.count(name) for name in ("pushes-too-large", "pushes-dropped", "errors")] == [1, 0, 0]


def test_pushes_that_cannot_be_written_fill_no_memory_and_no_client_waits_for_them(tmp_path: Path) -> None:
    made = TelemetryBroker(tmp_path, BROKER_JARS, RECEIVER_CLASS, writes_to="127.0.0.1:1")
    with closing(Pusher(made.servers)) as pusher:
        for _ in range(60):
            assert pusher.push_once(bytes(100_000)) == 0

    assert made.count("pushes") == 60
    assert made.count("pushes-dropped") == 60 - (4 << 20) // 100_000
    made.broker.stop()


def test_an_old_peak_of_a_broker_that_little_or_nothing_is_asked_of_is_no_figure_of_now() -> None:
    """Kafka's own percentile keeps the peak meanwhile."""
    name = "kafka.network:type=RequestMetrics,request=Produce,name=LocalTimeMs"
    with Jvm([*BROKER_JARS.paths(), telemetry_jar()]) as jvm:
        java = jvm.packages
        metric = java.com.yammer.metrics.core.MetricName("kafka.network", "RequestMetrics", "LocalTimeMs", "", name)
        local_ms = java.org.apache.kafka.server.metrics.KafkaYammerMetrics.defaultRegistry().newHistogram(metric, True)
        (make,) = java.java.lang.Class.forName("sluice.telemetry.BrokerFigures").getDeclaredConstructors()
        make.setAccessible(True)
        figures = make.newInstance(None)
        read = figures.getClass().getDeclaredMethod("read", None)
        read.setAccessible(True)

        def after(*values_ms: int) -> float | None:
            for value_ms in values_ms:
                local_ms.update(value_ms)
            found: float | None = read.invoke(figures, None).get("local_ms_p99.Produce")
            return found

        busy, silent, slight = after(*[600] * 300), after(), after(*[2] * 10)
        kept = local_ms.getSnapshot().get99thPercentile()

    assert (busy, silent, slight) == (600.0, None, 20.0)
    assert kept == 600.0


def test_the_receiver_logs_in_by_tls_with_the_least_rights_and_knows_a_client_by_its_own_login(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "broker", "broker")
    (store := tmp_path / "store.pem").write_bytes(key.read_bytes() + pem.read_bytes())
    login, listener = f"{PLAIN} username={{0}} password={{0}}", "listener.name.client."
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem)}
    own = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login.format("sluice") + ";"}
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{listener}sasl.enabled.mechanisms": "PLAIN",
        f"{listener}plain.sasl.jaas.config": f"{login.format('a')} user_a=a user_sluice=sluice user_alice=alice;",
        f"{listener}ssl.keystore.type": "PEM",
        f"{listener}ssl.keystore.location": str(store),
        **{f"{listener}{name}": value for name, value in trusted.items()},
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:a",  # the controller, the broker and its administrator
        "metric.reporters": RECEIVER_CLASS,
        "sluice.bootstrap.servers": "127.0.0.1:{port}",
        **{f"sluice.client.{name}": value for name, value in {**own, **trusted}.items()},
    }
    of_admin = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "ssl_cafile": str(pem)}
    of_admin |= {"sasl_plain_username": "a", "sasl_plain_password": "a"}
    with Broker(tmp_path / "broker", properties, plugins=[telemetry_jar()]) as broker:
        options = of_admin | {"bootstrap_servers": broker.bootstrap_servers}
        topic = ResourcePattern(ResourceType.TOPIC, TOPIC)
        with closing(KafkaAdminClient(**options)) as admin:
            rights = (ACLOperation.DESCRIBE, ACLOperation.WRITE, ACLOperation.CREATE)
            admin.create_acls([ACL("User:sluice", "*", each, ACLPermissionType.ALLOW, topic) for each in rights])
        subscribe(options, 500)
        client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": str(pem)}
        client |= {"sasl.username": "alice", "sasl.password": "alice", "bootstrap.servers": broker.bootstrap_servers}
        producer = confluent_kafka.Producer(client | {"client.id": "app"})
        found = next(each for each in records(**options) if isinstance(each, ClientRecord))
        producer.flush()

    assert (found.client_id, found.user) == ("app", "alice")


@pytest.mark.long
@pytest.mark.parametrize("release", ["4.0", "4.1"])
def test_the_class_for_older_brokers_needs_nothing_newer(tmp_path: Path, release: str) -> None:
    sources = [path for folder in module(EXTRA).sources for path in folder.rglob("*.java")]
    older = [source for source in sources if source.stem != RECEIVER_CLASS.rpartition(".")[2]]
    compile_java(older, [*KAFKA_RELEASE_JARS[release].paths(), plugin_jar()], tmp_path, 11)


@pytest.mark.long
@pytest.mark.alone
def test_a_thousand_clients_cost_a_fiftieth_of_a_core_and_20_mib(tmp_path: Path) -> None:
    """They push by the wire what a consumer of Kafka 4.4 pushes; the base is another receiver, which keeps files."""
    base, own = (_cost(tmp_path / each, each) for each in (OTHER_RECEIVER, RECEIVER_CLASS))
    print(f"\n{len(PUSH)} bytes a push; broker {base[0]:.3f} -> {own[0]:.3f} cores", end="")
    print(f", of which own threads {own[1]:.4f}; live heap {base[2]:.1f} -> {own[2]:.1f} MiB")

    assert own[1] < 0.02
    assert own[2] - base[2] < 20


def _cost(folder: Path, receiver: str) -> tuple[float, float, float]:
    """Cores of a broker and of the receiver's threads while clients push for a minute, and MiB of live objects then."""
    made = TelemetryBroker(folder, BROKER_JARS, receiver, interval_ms=10_000)  # brokers refuse pushes that come sooner
    pushers = [Pusher(made.servers) for _ in range(CONNECTIONS)]
    clients = [(pusher, uuid4().bytes) for _, pusher in zip(range(CLIENTS), itertools.cycle(pushers))]
    known = [(pusher, instance, pusher.subscription(instance)[0]) for pusher, instance in clients]
    began, before = monotonic(), (0.0, 0.0)
    for number, (pusher, instance, subscription) in enumerate(known * 3):
        if number == CLIENTS:
            before, began_s = _cpu_s(made.broker.pid), monotonic()
        sleep(max(0, began + number * INTERVAL_S / CLIENTS - monotonic()))
        assert pusher.push(instance, subscription, PUSH) == 0
    took_s, after = monotonic() - began_s, _cpu_s(made.broker.pid)
    jcmd = [str(Path(find_java()[0]).resolve().with_name("jcmd")), str(made.broker.pid), "GC.class_histogram"]
    shown = subprocess.run(jcmd, capture_output=True, text=True, check=True)
    made.broker.stop()
    live_mib = int(shown.stdout.split()[-1]) / (1 << 20)
    return (after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s, live_mib


def _cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its threads that are the receiver's or its producer's."""
    process = psutil.Process(pid)
    own = 0.0
    for thread in process.threads():
        name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text()
        own += (thread.user_time + thread.system_time) * name.startswith(("sluice-telemetr", "kafka-producer-"))
    return sum(process.cpu_times()[:2]), own
