"""Embedded brokers that are one cluster: real Kafkas in KRaft mode on loopback."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType

from kafka import KafkaAdminClient

from sluice.jvm.jars import JarSet
from sluice.kafka_io.client import OF_PERSONS, connect
from sluice_demo.broker import Broker, BrokerError, Node, Ports, new_uuid, remembered_ports
from sluice_demo.jars import BROKER_JARS
from sluice_proxy.java_server import Service

_HEAP_MIB = 384
_REPLICAS = 3
_KEPT = {"retention.bytes": "20000000", "segment.bytes": "10000000"}

PropertiesOf = Callable[[str, int], Mapping[str, str]]
"""Server properties of a broker, made from the bootstrap addresses, which are known before the start, and `node.id`."""


class Cluster(Service):
    """Brokers in a folder, as a context manager or by start and stop.

    Their data survives a restart, and they end with this process, as that of a `Broker` does. `plugins` are added to
    their class path. `brokers` answer JMX, and can be killed and started one by one. Each is a controller, too, unless
    there are separate `controllers`, which have the first numbers.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        properties: PropertiesOf = lambda *_: {},
        plugins: Sequence[Path] = (),
        controllers: int = 0,
        jars: JarSet = BROKER_JARS,
    ) -> None:
        self._folder = folder.absolute()
        self._size, self._controllers = size + controllers, controllers
        self._properties, self._plugins, self._jars = properties, plugins, jars
        self._cluster_id = new_uuid()  # of brokers that have data already, their own id counts
        self._ports: list[Ports] = []
        self._nodes: list[Broker] = []

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port` of each broker, with commas between."""
        return ",".join(f"127.0.0.1:{ports.client}" for ports in self._ports[self._controllers :])

    @property
    def brokers(self) -> list[Broker]:
        """All brokers, those that don't run included."""
        return self._nodes[self._controllers :]

    @property
    def alive(self) -> list[Broker]:
        """The brokers that run."""
        return [broker for broker in self.brokers if broker.alive]

    def start(self) -> None:
        """Start all brokers at once and return when they serve. Raises BrokerError, JavaError and JarError."""
        self._choose_ports()
        try:
            self._start()
        except BrokerError:
            before = self._ports
            self._choose_ports()
            if self._ports == before:  # no other process took one of them
                raise
            self._start()

    def stop(self) -> None:
        """Stop all brokers at once, because controllers among them would wait for each other; then the controllers."""
        for nodes in (self.brokers, self._nodes[: self._controllers]):
            with ThreadPoolExecutor(self._size) as pool:
                list(pool.map(Broker.stop, nodes))

    def _choose_ports(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ports = remembered_ports(self._folder / "ports.json", self._size)
        nodes = (Node(number, self._ports, self._cluster_id, self._controllers) for number in range(self._size))
        self._nodes = [
            Broker(
                self._folder / str(node.node_id),
                self._properties(self.bootstrap_servers, node.node_id),
                self._jars,
                plugins=self._plugins,
                node=node,
                heap_mib=_HEAP_MIB,
                jmx=True,
            )
            for node in nodes
        ]

    def _start(self) -> None:
        with ThreadPoolExecutor(self._size) as pool:
            starts = [pool.submit(node.start) for node in self._nodes]
            try:
                for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                    start.result()
            except BaseException:
                for node in self._nodes:  # one that waits for the others would go on waiting
                    node.kill()
                raise


def make_topic(
    servers: str, name: str, leaders: Sequence[int], configs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Create a topic as `create_topic` does, unless it is there."""
    with connect(KafkaAdminClient, OF_PERSONS | {"bootstrap.servers": servers}) as admin:
        if name not in admin.list_topics():
            create_topic(admin, name, leaders, configs)


def create_topic(
    admin: KafkaAdminClient, name: str, leaders: Sequence[int], configs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Create a topic; `leaders` are the numbers of partitions that each broker leads. It has up to three replicas.

    It keeps some 20 MB a partition, so that clients at full speed don't fill the disk.
    """
    brokers = len(leaders)
    led_by = [number for number, partitions in enumerate(leaders) for _ in range(partitions)]
    assignments = {
        partition: [1 + (leader + step) % brokers for step in range(min(brokers, _REPLICAS))]
        for partition, leader in enumerate(led_by)
    }
    admin.create_topics({name: {"assignments": assignments, "configs": {**_KEPT, **configs}}}, wait_for_metadata=True)
