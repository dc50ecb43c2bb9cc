"""Peers: other ways to enforce the same quota, compared by their decisions, and then measured beside Sluice."""

import json
import os
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from kafka import KafkaAdminClient

from scripts.java.compiler import compile_java, java_compiler
from sluice.jvm.java import OLDEST, find_java
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import burst
from sluice_demo.job import Json
from sluice_lab.benchmarks.events import ONE_CHARGE, spread
from sluice_lab.benchmarks.latency import WARM_S, Latencies, add_latencies, steady
from sluice_lab.benchmarks.peers.decided import (
    CHECKS,
    ComparedDecision,
    check_requests,
    check_same,
    read_decisions,
    steady_per_s,
)
from sluice_lab.benchmarks.report import Findings, at_least
from sluice_lab.benchmarks.rig import BenchError, BenchmarkRig, Driver, Setup
from sluice_lab.benchmarks.scale import Scale, counted_runs
from sluice_lab.testbed.jars import PEER_JARS
from sluice_lab.testbed.locked_python import locked_python
from sluice_lab.testbed.processes import compiler_cpu_s
from sluice_proxy.processes import Child, last_line

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "KafkaStreamsPeer.java"
_LOCK = _FOLDER / "quix.lock"
_END_S = 60

GUARANTEE = "exactly_once_v2"
"""Kafka Streams' `processing.guarantee`: Sluice's."""


@dataclass(frozen=True, slots=True)
class Application:
    """Work of a peer: it reads the topic `requests`, writes the topic `decisions` and keeps its state in a folder.

    `name` is that of its consumer group and changelog. `limit` is in mutations/s, `burst` in mutations; both are known
    in advance, no quota is looked up. It has one thread or process for each of the topic's `partitions`.
    """

    name: str
    servers: str
    requests: str
    decisions: str
    state_folder: str
    partitions: int
    limit: float
    burst: float


class Peer(AbstractContextManager["Peer"]):
    """Runs one application at a time, in processes of its own, which end with the context."""

    @abstractmethod
    def start(self, application: Application) -> None:
        """Start the application; it goes on where its consumer group has stopped. Raises BenchError."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the application cleanly; does nothing if none runs. Raises BenchError."""

    def compiler_s(self) -> float:
        """CPU seconds that it has spent on compiling, over all applications: Java does so for minutes."""
        return 0.0

    def __exit__(self, *_: object) -> None:
        self.stop()


def compile_peer(folder: Path) -> Path:
    """The folder with the compiled peer in Kafka Streams. Raises JavaBuildError, JarError and JavaError."""
    classes = folder / "kafka-streams-classes"
    classes.mkdir(exist_ok=True)  # the measures `start` and `peers` of one bench both compile it
    compile_java([_SOURCE], PEER_JARS.paths(), classes, OLDEST, java_compiler)
    return classes


class KafkaStreams(Peer):
    """One Java process, which runs one application after another, so that it stays warm as Sluice's does."""

    def __init__(self, classes: Path, log: Path) -> None:
        java, _ = find_java()
        class_path = os.pathsep.join(map(str, [*PEER_JARS.paths(), classes]))
        command = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path, _SOURCE.stem]
        self._log = log
        with log.open("a") as output:
            # Ctrl-C is for the bench, which then closes the input.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True
            )

    def start(self, application: Application) -> None:
        """Start the application."""
        command = asdict(application)
        command["application"], command["threads"] = command.pop("name"), command.pop("partitions")
        self._command(action="start", guarantee=GUARANTEE, **command)

    def stop(self) -> None:
        """Stop the application cleanly."""
        self._command(action="stop")

    def compiler_s(self) -> float:
        """CPU seconds of its compiler so far."""
        return compiler_cpu_s(self._process.pid)

    def __exit__(self, *_: object) -> None:
        """Close the input, which ends the application and Java."""
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _command(self, **command: object) -> None:
        """Send a line of JSON and read the answer, another one."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise BenchError(f"Kafka Streams ended: {last_line(self._log)}") from None
        if error := answer.get("error"):
            raise BenchError(f"Kafka Streams can't {command['action']}: {error}")


def quix_python() -> Path:
    """The Python that has Quix Streams, which needs an older confluent-kafka than Sluice. Raises LockedPythonError."""
    return locked_python("quix", _LOCK)


class Processes(Peer):
    """A command that runs the application: a process for each partition in one consumer group, new ones at each start.

    With `is_single` there is one process.
    """

    def __init__(self, command: Sequence[str], log: Path, *, is_single: bool = False) -> None:
        self._command, self._log, self._is_single = command, log, is_single
        self._children: list[Child] = []

    def start(self, application: Application) -> None:
        """Start the processes."""
        command, count = [*self._command, json.dumps(asdict(application))], application.partitions
        self._children = [Child(command, self._log_of(number)) for number in range(1 if self._is_single else count)]

    def stop(self) -> None:
        """Stop the processes, each after its last commit."""
        children, self._children = self._children, []
        ended = [number for number, child in enumerate(children) if not child.alive]
        for child in children:
            if child.alive:
                os.kill(child.pid, signal.SIGTERM)  # to all at once: one alone would leave its partitions to the others
        for child in children:
            child.end(signal.SIGTERM, _END_S)
        if ended:
            raise BenchError(f"{self._log.stem} ended: {last_line(self._log_of(ended[0]))}")

    def _log_of(self, number: int) -> Path:
        return self._log.with_name(f"{self._log.stem}-{number}.log")


def quix_streams(python: Path, folder: Path) -> Processes:
    """Quix Streams, exactly-once; it logs into the folder."""
    return Processes([str(python), str(_FOLDER / "quix_peer.py")], folder / "quix-streams.log")


def plain_loop(folder: Path) -> Processes:
    """The loop of confluent-kafka."""
    command = [sys.executable, "-m", "sluice_lab.benchmarks.peers.loop_peer"]
    return Processes(command, folder / "confluent-kafka-loop.log", is_single=True)


SLUICE = "Sluice"
STREAMS = "Kafka Streams exactly-once"
QUIX = "Quix Streams exactly-once"
LOOP = "confluent-kafka loop"

_BARS = {STREAMS: at_least(1.0), QUIX: at_least(1.7)}
_RATE_PER_S = 1_000
_QUOTA = ONE_CHARGE.quotas[0]


class Sluice(Peer):
    """Sluice itself, in one Spark driver; an application's settings file is beside its state."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._compiler_s = 0.0
        self.batches: Sequence[Json] = ()

    def start(self, application: Application) -> None:
        """Start the enforce query."""
        self._driver.start("enforce", Path(application.state_folder).with_name("settings.yaml"))

    def stop(self) -> None:
        """Stop it, and keep its batches."""
        stopped = self._driver.stop()
        self.batches = stopped["batches"]
        self._compiler_s += stopped["compiler_cpu_s"]

    def compiler_s(self) -> float:
        """CPU seconds of the driver's compiler, of the applications until now."""
        return self._compiler_s

    def __exit__(self, *_: object) -> None:
        """Leave the driver to its owner."""


def measure_peers(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Decisions of the peers, then throughput and latency of Sluice and of them, in turns."""
    if scale.batch_events < CHECKS:
        raise BenchError(f"a micro-batch of {scale.batch_events} events is too small; give --batch-events {CHECKS}")
    classes, python = compile_peer(rig.folder), quix_python()
    with ExitStack() as stack:
        driver = stack.enter_context(rig.driver())
        driver.session(rig.setup("peers", "peers-requests", ONE_CHARGE.quotas).file)
        peers: dict[str, Peer] = {
            SLUICE: Sluice(driver),
            STREAMS: KafkaStreams(classes, rig.folder / "kafka-streams.log"),
            QUIX: quix_streams(python, rig.folder),
            LOOP: plain_loop(rig.folder),
        }
        for peer in peers.values():
            stack.enter_context(peer)
        end_ms = now_ms()
        backlog = ONE_CHARGE.backlog(spread(scale.events - CHECKS, scale.users), end_ms)
        rig.publish("peers-requests", chain(check_requests(end_ms), backlog))
        runs = counted_runs(scale, partial(_run, rig, scale, peers))
        add_throughput(findings, {name: [run[name]["per_s"] for run in runs] for name in peers})
        section = f"Peers: latency at {_RATE_PER_S} requests/s"
        add_latencies(findings, section, _measure_latency(rig, scale, peers), dict.fromkeys((50, 99)))


def application_of(setup: Setup) -> Application:
    """The application with which a peer decides as Sluice does with this setup."""
    settings = setup.settings
    return Application(
        name=setup.file.parent.name,
        servers=settings.kafka["bootstrap.servers"],
        requests=settings.topics.requests,
        decisions=settings.topics.decisions,
        state_folder=str(setup.file.parent / "state"),
        partitions=settings.topics.partitions,
        limit=_QUOTA.value,
        burst=burst(settings.quota.controller_window, _QUOTA.value),
    )


def _run(rig: BenchmarkRig, scale: Scale, peers: Mapping[str, Peer], number: int) -> dict[str, Json]:
    """Requests/s and compiling of each. Raises BenchError if a peer decides otherwise than Sluice, who is the first."""
    found: dict[str, Json] = {}
    expected: dict[str, ComparedDecision] = {}
    for place, (name, peer) in enumerate(peers.items()):
        setup, compiler_s = _stamped_setup(rig, scale, f"peers-{number}-{place}"), peer.compiler_s()
        peer.start(application_of(setup))
        read = read_decisions(rig.servers, setup.settings.topics.decisions, scale.events)
        peer.stop()
        expected = expected or read.decided
        check_same(name, read.decided, expected)
        per_s = _per_s(peer, scale, read.appended_ms)
        found[name] = {"per_s": per_s, "compiler_cpu_s": peer.compiler_s() - compiler_s}
    return found


def _per_s(peer: Peer, scale: Scale, appended_ms: list[int]) -> float:
    """Steady requests/s: of Sluice by its batches, of a peer by the times at which the broker has its decisions."""
    if isinstance(peer, Sluice):
        return scale.steady_events_per_s(peer.batches)
    return steady_per_s(appended_ms, scale.warm * scale.batch_events)


def _stamped_setup(rig: BenchmarkRig, scale: Scale, name: str) -> Setup:
    """A setup whose decisions the broker stamps, so that the speed is known without a reader beside it."""
    topic, stamped = f"{name}-decisions", {"message.timestamp.type": "LogAppendTime"}
    spec = {"num_partitions": os.cpu_count() or 1, "replication_factor": 1, "configs": stamped}
    with closing(KafkaAdminClient(bootstrap_servers=rig.servers)) as admin:
        admin.create_topics({topic: spec})
        admin.wait_for_topics([topic])
    batch = {"max_offsets_per_trigger": scale.batch_events}
    return rig.setup(name, "peers-requests", ONE_CHARGE.quotas, enforce=batch)


def _measure_latency(rig: BenchmarkRig, scale: Scale, peers: Mapping[str, Peer]) -> Mapping[str, Sequence[Latencies]]:
    found: dict[str, list[Latencies]] = {}
    for run in range(scale.runs + 1):
        for number, (name, peer) in enumerate(peers.items()):
            setup_name = f"peers-latency-{run}-{number}"
            setup = rig.setup(setup_name, f"{setup_name}-requests", ONE_CHARGE.quotas)
            start, warm_s = partial(peer.start, application_of(setup)), WARM_S if run else scale.warm_s
            latencies_ms = steady(rig, scale, setup, start, peer.stop, _RATE_PER_S, warm_s)
            if run:
                found.setdefault(name, []).append(latencies_ms)
    return found


def add_throughput(findings: Findings, per_s: Mapping[str, Sequence[float]]) -> None:
    """Add requests/s by name, and the ratio of Sluice's to each peer's."""
    section = "Peers: throughput, 1 charge a request"
    figures = {name: findings.add(section, name, "requests/s", values) for name, values in per_s.items()}
    sluice = figures.pop(SLUICE)
    for name, figure in figures.items():
        findings.compare(f"{SLUICE} / {name}, throughput", sluice, figure, _BARS.get(name))
