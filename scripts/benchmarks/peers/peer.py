"""The peers: Kafka Streams (KafkaStreamsPeer.java), Quix Streams (quix_peer.py) and a plain loop (loop_peer.py)."""

import json
import os
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.benchmarks.driver import BenchError
from scripts.java.compiler import compile_java, java_compiler
from scripts.testbed.jars import PEER_JARS
from scripts.testbed.locked_python import locked_python
from scripts.testbed.processes import compiler_cpu_s
from sluice.jvm.java import OLDEST, find_java
from sluice.jvm.processes import Child, last_line

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
    classes.mkdir()
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
    command = [sys.executable, "-m", "scripts.benchmarks.peers.loop_peer"]
    return Processes(command, folder / "confluent-kafka-loop.log", is_single=True)
