"""The embedded broker: a real Kafka in KRaft mode on loopback, whose data survives a restart."""

import base64
import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple

from sluice.jvm.jars import JarSet
from sluice.jvm.java import find_java
from sluice.process.processes import dying_with_this_thread
from sluice.state.errors import SluiceError
from sluice_demo.jars import BROKER_CLASSES, BROKER_JARS
from sluice_proxy.java_server import JavaServer, last_error
from sluice_proxy.processes import free_ports, is_free
from sluice_reading.texts import property_line

_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=INFO")
_FEATURES, _KEPT = "*.checkpoint", "features"  # Kafka 4.4 has them in the folder of a partition
_CHECKSUM_BYTES = 32
_FORMATS = Lock()  # nodes that start at once, as those of a cluster do, wait for the first

_REPLICAS = 3  # of Kafka's own topics, where there are as many nodes
_ATTEMPTS = 2  # a free port may be taken before Kafka listens on it


class BrokerError(SluiceError):
    """The embedded Kafka broker can't be started, or ended by itself."""


class Ports(NamedTuple):
    """Ports of a node on loopback: for clients and other brokers, and for controllers."""

    client: int
    controller: int


@dataclass(frozen=True)
class Node:
    """A node of a cluster; `number` is the place of its ports in `cluster`.

    The first `controllers` nodes are only controllers; if there are none, each node is broker and controller.
    """

    number: int
    cluster: Sequence[Ports]
    cluster_id: str
    controllers: int = 0

    @property
    def node_id(self) -> int:
        """Its `node.id`: the first node has 1."""
        return self.number + 1

    def properties(self) -> dict[str, str]:
        """The server properties that follow from its place in the cluster."""
        ports, listeners = self.cluster[self.number], []
        if self.number >= self.controllers:
            listeners.append(("broker", f"CLIENT://127.0.0.1:{ports.client}"))
        if not self.controllers or self.number < self.controllers:
            listeners.append(("controller", f"CONTROLLER://127.0.0.1:{ports.controller}"))
        voters = enumerate(self.cluster[: self.controllers or None], 1)
        replicas = str(min(len(self.cluster) - self.controllers, _REPLICAS))
        return {
            "process.roles": ",".join(role for role, _ in listeners),
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{each.controller}" for number, each in voters),
            "listeners": ",".join(listener for _, listener in listeners),
            "advertised.listeners": listeners[0][1],
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
        }


_PROPERTIES = {
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "message.max.bytes": str(9 * 1024 * 1024),
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Broker(JavaServer):
    """One embedded Kafka broker, as a context manager or by start and stop.

    `folder`, which no other broker may use, holds its data, configuration and log (`broker.log`). `properties` override
    the server properties; `{port}` in one stands for the client port. Clients connect to the listener named CLIENT, so
    TLS or SASL is set by, for example, `listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT` and
    `listener.name.client.*`. `jars` are those of the Kafka to run, `plugins` more of its class path. A `node` is one of
    a cluster (`sluice_demo.cluster`). `jvm_options` come last, so they count. With `jmx` it answers on `jmx_port`.
    The broker ends with this process, even if this process is killed.
    """

    kind, error, started, start_s = "broker", BrokerError, "Kafka Server started", 120.0  # 3 s on an idle machine

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        jars: JarSet = BROKER_JARS,
        plugins: Sequence[Path] = (),
        *,
        node: Node | None = None,
        heap_mib: int = 256,
        jvm_options: Sequence[str] = (),
        jmx: bool = False,
    ) -> None:
        super().__init__(folder, "broker.log")
        self._properties = dict(properties or {})
        self._jars, self._plugins, self._node = jars, plugins, node
        self._jvm_options, self._jmx = (f"-Xmx{heap_mib}m", *_JVM_OPTIONS, *jvm_options), jmx
        self.jmx_port = 0
        self._port = 0

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port` of the last start."""
        return f"127.0.0.1:{self._port}"

    def choose_address(self) -> str:
        """The `bootstrap_servers` of the start to come, unless another process takes that port meanwhile."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (ports,) = remembered_ports(self._folder / "ports.json", 1)
        return f"127.0.0.1:{ports.client}"

    def start(self) -> None:
        """Start the broker and return when it serves; does nothing when it runs already.

        Raises BrokerError (with the reason from Kafka's log), JavaError and JarError.
        """
        if self.alive:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        java, _ = find_java()
        class_path = ":".join(map(str, [*self._jars.paths(), *self._plugins]))
        archived = BROKER_CLASSES.options() if self._jars == BROKER_JARS else ()
        command = [java, *archived, *self._jvm_options, "-cp", class_path]
        for attempt in range(1, _ATTEMPTS + 1):
            node = self.choose_node()
            properties = self.write_properties(node)
            self._format(node)
            self.jmx_port = free_ports(1)[0] if self._jmx else 0
            options = jmx_options(self.jmx_port) if self._jmx else []
            if self._run([java, *options, *command[1:], "kafka.Kafka", str(properties)]):
                return
            reason, has_ended = self._reason(), not self.alive
            self.kill()
            if self._node or attempt == _ATTEMPTS or not has_ended:
                raise BrokerError(f"the broker in {self._folder} doesn't start: {reason}; all of it: {self._log}")

    def choose_node(self) -> Node:
        """The node of the start to come; one of no cluster gets free ports, those of its last start if it can."""
        return self._node or Node(0, remembered_ports(self._folder / "ports.json", 1), new_uuid())

    def write_properties(self, node: Node) -> Path:
        """Write server.properties."""
        self._port = node.cluster[node.number].client
        properties = {**_PROPERTIES, **node.properties(), "log.dirs": str(self._data), **self._properties}
        given = {key: value.replace("{port}", str(self._port)) for key, value in properties.items()}
        return _written(self._folder / "server.properties", given)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _format(self, node: Node) -> None:
        """Make what Kafka needs in a new folder. Raises BrokerError and as `first_features`."""
        if (ids := self._data / "meta.properties").exists():
            return
        name, _, features = first_features(self._jars).partition(b"\n")
        own = {"version": "1", "cluster.id": node.cluster_id, "node.id": str(node.node_id), "directory.id": new_uuid()}
        try:
            file = self._data / name.decode()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(features)
            _written(ids.with_suffix(".new"), own).rename(ids)  # Kafka takes a folder with an empty one for formatted
        except OSError as error:
            raise BrokerError(f"{self._folder} can't be formatted: {error}") from error


def _written(file: Path, properties: Mapping[str, str]) -> Path:
    """The file with these properties. Java reads Latin-1: a folder's name may have other letters."""
    file.write_text("".join(f"{property_line(key, value)}\n" for key, value in properties.items()))
    return file


def first_features(jars: JarSet) -> bytes:
    """The features that a node of this Kafka begins with, by Kafka's own tool: a file's name, a line feed, its content.

    It takes a second, and all nodes have the same: they are kept beside the jars, behind their SHA-256. Raises
    BrokerError, JarError and JavaError.
    """
    paths, kept = jars.paths(), jars.folder / _KEPT
    with _FORMATS:
        with suppress(OSError):  # most often as there are none yet
            content = kept.read_bytes()
            checksum, features = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
            if sha256(features).digest() == checksum:  # a disk that was full keeps a part; no broker starts with that
                return features
        with TemporaryDirectory() as folder:
            features = _formatted(Path(folder), paths)
        with suppress(OSError):  # of jars that nobody may add to, as those of an image
            fresh = kept.with_name(f"{_KEPT}.{os.getpid()}")  # another process may do the same
            fresh.write_bytes(sha256(features).digest() + features)
            fresh.rename(kept)
        return features


def _formatted(folder: Path, jars: Sequence[Path]) -> bytes:
    """Name and content of the features in a folder that Kafka's tool formats. Raises BrokerError and JavaError."""
    node, (java, _) = Node(0, [Ports(1, 2)], new_uuid()), find_java()  # nothing listens on the ports
    file = _written(folder / "server.properties", {**_PROPERTIES, **node.properties(), "log.dirs": str(folder)})
    tool = ["kafka.tools.StorageTool", "format", "-c", str(file), "-t", node.cluster_id]
    command = dying_with_this_thread([java, *_JVM_OPTIONS, "-cp", ":".join(map(str, jars)), *tool])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    made = [*folder.rglob(_FEATURES)]
    if done.returncode != 0 or not made:
        raise BrokerError(f"Kafka's tool can't format a folder: {last_error(done.stdout)}")
    return bytes(made[0].relative_to(folder)) + b"\n" + made[0].read_bytes()


def remembered_ports(memory: Path, nodes: int) -> list[Ports]:
    """The ports of the last start, from the file; new ones if one is taken. Clients find the brokers again."""
    try:
        found = [Ports(*pair) for pair in json.loads(memory.read_text())]
    except (OSError, ValueError, TypeError):
        found = []
    if len(found) != nodes or not all(is_free(port) for pair in found for port in pair):
        ports = free_ports(2 * nodes)
        found = [Ports(*ports[2 * number : 2 * number + 2]) for number in range(nodes)]
    memory.write_text(json.dumps(found))
    return found


def jmx_options(port: int) -> list[str]:
    """Options with which a Java process answers JMX on this port of loopback."""
    options = ("host=127.0.0.1", f"port={port}", f"rmi.port={port}", "authenticate=false", "ssl=false")
    return [*(f"-Dcom.sun.management.jmxremote.{each}" for each in options), "-Djava.rmi.server.hostname=127.0.0.1"]


def new_uuid() -> str:
    """A Kafka UUID: 16 bytes in URL-safe base64 without padding; it must not start with - as an option does."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
