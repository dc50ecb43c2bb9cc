"""The embedded broker: a real Kafka in KRaft mode, one node on loopback, whose data survives a restart.

    python -m scripts.testbed.broker --folder FOLDER [--fresh]

prints the bootstrap address and runs until Ctrl-C.
"""

import base64
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, Self

import typer
from filelock import FileLock, Timeout

from scripts.command import interrupt_on_signals, run_command
from scripts.testbed.broker_jars import BROKER_JARS
from scripts.testbed.jmx import jmx_options
from scripts.testbed.processes import Child
from sluice.jvm.jars import JarSet
from sluice.jvm.java import find_java
from sluice.state.errors import SluiceError

_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=INFO")
_STARTED = "Kafka Server started"
_START_SECONDS = 120  # 3 s on an idle machine
_STOP_SECONDS = 30
_REPLICAS = 3  # of Kafka's own topics, where there are so many nodes
_ATTEMPTS = 3  # a free port may be taken before Kafka listens on it


class BrokerError(SluiceError):
    """The embedded Kafka broker can't be started."""


class Ports(NamedTuple):
    """Ports of a node on loopback: for clients and other brokers, and for controllers."""

    client: int
    controller: int


@dataclass(frozen=True)
class Node:
    """A node among those of a cluster, which all know each other: the number is where its ports are in `cluster`.

    The first `controllers` nodes are nothing but controllers; if there are none, each node is broker and controller.
    """

    number: int
    cluster: Sequence[Ports]
    cluster_id: str
    controllers: int = 0

    @property
    def ports(self) -> Ports:
        """Its own ports."""
        return self.cluster[self.number]

    @property
    def node_id(self) -> int:
        """Its `node.id`: the first node has 1."""
        return self.number + 1

    @property
    def roles(self) -> list[str]:
        """Its `process.roles`."""
        if not self.controllers:
            return ["broker", "controller"]
        return ["controller" if self.number < self.controllers else "broker"]


class Broker:
    """One embedded Kafka broker, as a context manager or by start and stop.

    `folder` holds its data, configuration and log (`broker.log`); `fresh` deletes the data first. `properties` override
    the server properties; `{port}` in one stands for the client port. Clients connect to the listener named CLIENT, so
    TLS or SASL is set by, for example, `listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT` and
    `listener.name.client.*`. `jars` are those of the Kafka to run, `plugins` more of its class path. A `node` is one of
    a cluster (`scripts.testbed.cluster`). With `jmx` it answers JMX on `jmx_port`. `jvm_options` come after its
    own, which make Java start quickly. The broker ends with this process, even if this process is killed.
    """

    def __init__(
        self,
        folder: Path,
        fresh: bool = False,
        properties: Mapping[str, str] | None = None,
        jars: JarSet = BROKER_JARS,
        plugins: Sequence[Path] = (),
        *,
        node: Node | None = None,
        heap_mib: int = 256,
        jmx: bool = False,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._folder = folder.absolute()
        self._fresh = fresh
        self._properties = dict(properties or {})
        self._jars = jars
        self._plugins = list(plugins)
        self._node = node
        self._jvm_options = (f"-Xmx{heap_mib}m", *_JVM_OPTIONS, *jvm_options)
        self._jmx = jmx
        self.jmx_port = 0
        self._child: Child | None = None
        # Not bound to a thread: one thread may start the broker and another one stop it.
        self._lock = FileLock(self._folder / "lock", timeout=0, thread_local=False)
        self._port = 0
        self._cluster_id = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port` of the last start."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the broker's Java virtual machine. Raises BrokerError when it isn't started."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start the broker and return when it serves; does nothing when it runs already.

        Raises BrokerError (with the reason from Kafka's log), JavaError and JarError.
        """
        if self.alive:
            return
        self._lock_folder()
        try:
            if self._fresh:
                self._wipe()
                self._fresh = False  # a restart of this broker keeps its data
            self._start_on_free_ports()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM, then SIGKILL after 30 s); does nothing when it isn't running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL); a later start recovers its data."""
        self._end(signal.SIGKILL)

    def wait(self) -> NoReturn:
        """Block while the broker runs. Raises BrokerError when it ends by itself."""
        while True:
            self.check()
            time.sleep(0.2)  # not a blocking wait, which a signal to another thread would not interrupt

    def check(self) -> None:
        """Raises BrokerError when the broker has ended by itself, or is not started."""
        if not self._running().alive:
            raise BrokerError(f"the broker ended by itself: {self._last_words()}; all of it: {self._log}")

    def _running(self) -> Child:
        if self._child is None:
            raise BrokerError(f"the broker in {self._folder} is not started")
        return self._child

    def _end(self, sign: signal.Signals) -> None:
        self._end_child(sign)
        self._lock.release(force=True)  # a start after the broker ended by itself has acquired it twice

    def _end_child(self, sign: signal.Signals) -> None:
        if self._child is not None:
            self._child.end(sign, _STOP_SECONDS)
            self._child = None

    def _lock_folder(self) -> None:
        """Lock the folder: two brokers on one folder would corrupt each other's data."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise BrokerError(f"a broker runs in {self._folder} already; stop it or choose another folder") from error
        except OSError as error:
            raise BrokerError(f"the broker can't write to {self._folder} ({error}); choose another folder") from error

    def _wipe(self) -> None:
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        (self._folder / "ports.json").unlink(missing_ok=True)

    def _start_on_free_ports(self) -> None:
        java, _ = find_java()
        class_path = [*self._jars.paths(), *self._plugins]
        command = [java, *self._jvm_options, "-cp", ":".join(map(str, class_path))]
        for attempt in range(1, _ATTEMPTS + 1):
            self._configure()
            self._format_once(command)
            self._child = Child([*self._with_jmx(command), "kafka.Kafka", str(self._server_properties)], self._log)
            if self._wait_until_started(self._child):
                return
            reason = self._last_words()
            self._end_child(signal.SIGKILL)
            if self._node or attempt == _ATTEMPTS or "Address already in use" not in reason:
                raise BrokerError(f"the broker in {self._folder} doesn't start: {reason}; all of it: {self._log}")

    def _with_jmx(self, command: Sequence[str]) -> list[str]:
        if not self._jmx:
            return list(command)
        self.jmx_port = free_ports(1)[0]
        return [command[0], *jmx_options(self.jmx_port), *command[1:]]

    @property
    def _server_properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _configure(self) -> None:
        node = self._node or Node(0, remembered_ports(self._folder / "ports.json", 1), new_cluster_id())
        self._port = node.ports.client
        self._cluster_id = node.cluster_id
        properties = _server_properties(self._folder / "data", node) | self._properties
        lines = [f"{key}={value}\n".replace("{port}", str(self._port)) for key, value in properties.items()]
        self._server_properties.write_text("".join(lines))

    def _format_once(self, command: Sequence[str]) -> None:
        if (self._folder / "data" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(self._server_properties)]
        with self._log.open("w") as log:
            formatted = subprocess.run([*command, *tool], stdout=log, stderr=subprocess.STDOUT, check=False)
        if formatted.returncode != 0:
            raise BrokerError(f"{self._folder} can't be formatted: {self._last_words()}; all of it: {self._log}")

    def _wait_until_started(self, child: Child) -> bool:
        """Whether the log reports that Kafka has started; an open port alone might belong to another process."""
        deadline = time.monotonic() + _START_SECONDS
        while child.alive and time.monotonic() < deadline:
            if _STARTED in self._log.read_text(errors="replace"):
                return True
            time.sleep(0.05)
        return False

    def _last_words(self) -> str:
        return last_error(self._log.read_text(errors="replace"))


def last_error(log: str) -> str:
    """The most informative line of a Kafka log: the last innermost cause, else the last error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("\tat ")]
    for sign in (r"^Caused by: |^(Exception in thread \S+ )?[\w.$]+(Exception|Error): ", r"\b(ERROR|FATAL)\b"):
        for line in reversed(lines):
            if re.search(sign, line):
                return line.removeprefix("Caused by: ")
    return lines[-1] if lines else "it printed nothing"


def _server_properties(data: Path, node: Node) -> dict[str, str]:
    replicas = str(min(len(node.cluster) - node.controllers, _REPLICAS))
    controllers = node.cluster[: node.controllers or None]
    voters = (f"{number}@127.0.0.1:{ports.controller}" for number, ports in enumerate(controllers, 1))
    of_roles = {
        "broker": f"CLIENT://127.0.0.1:{node.ports.client}",
        "controller": f"CONTROLLER://127.0.0.1:{node.ports.controller}",
    }
    listeners = [of_roles[role] for role in node.roles]
    return {
        "process.roles": ",".join(node.roles),
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join(listeners),
        "advertised.listeners": listeners[0],
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": str(data),
        "message.max.bytes": str(9 * 1024 * 1024),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def remembered_ports(memory: Path, nodes: int) -> list[Ports]:
    """The ports of the last start, which the file has; new ones if one is taken. Clients find the brokers again."""
    try:
        found = [Ports(*pair) for pair in json.loads(memory.read_text())]
    except (OSError, ValueError, TypeError):
        found = []
    if len(found) != nodes or not all(_free(port) for pair in found for port in pair):
        ports = free_ports(2 * nodes)
        found = [Ports(*ports[2 * number : 2 * number + 2]) for number in range(nodes)]
    memory.write_text(json.dumps(found))
    return found


def _free(port: int) -> bool:
    if port == 0:
        return False
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Kafka does: closed connections don't block the port
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Different TCP ports of loopback that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def new_cluster_id() -> str:
    """A Kafka UUID: 16 bytes in URL-safe base64 without padding, not starting with - as an option does."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


@dataclass(frozen=True)
class BrokerOptions:
    """Run one embedded broker until Ctrl-C or SIGTERM; prints its bootstrap address."""

    folder: Annotated[Path, typer.Option(help="Folder for the broker's data, configuration and log.")]
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the data that the folder holds.")] = False


def run_broker(options: BrokerOptions) -> int:
    """Run the broker; 0 after Ctrl-C or SIGTERM."""
    interrupt_on_signals()
    try:
        with Broker(options.folder, options.fresh) as broker:
            print(broker.bootstrap_servers, flush=True)
            broker.wait()
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(run_command("broker", BrokerOptions, run_broker))
