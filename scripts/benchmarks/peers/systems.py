"""The systems that the bench compares: how each is started on a setup of the bench, and stopped."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from gateways.kafka.build import compile_java
from scripts.benchmarks.events import ONE_CHARGE
from scripts.benchmarks.peers.streams_jars import STREAMS_JARS
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Setup
from scripts.testbed.processes import Child, last_line
from state.quotas.kinds import QuotaKind
from streaming.java.java import find_java

_HERE = Path(__file__).resolve().parent
_WORK = Path(".work")
_STOP_SECONDS = 60


class System(Protocol):
    """Decides the requests of a setup's topic, from where it stopped before, while `running` is entered."""

    name: str

    def running(self, setup: Setup) -> Iterator[None]:
        """A generator that starts the system, yields once, and stops it."""


class Sluice:
    """The enforce query, in a Spark driver of its own."""

    name = "Sluice"

    def __init__(self, rig: BenchmarkRig) -> None:
        self._rig = rig

    def running(self, setup: Setup) -> Iterator[None]:
        """Start the driver and the query, and stop both."""
        with self._rig.driver() as driver:
            driver.session(setup)
            driver.start("enforce", setup)
            yield
            driver.stop()


class KafkaStreams:
    """`StreamsQuota.java` with a thread for each core; `guarantee` is a value of Kafka's `processing.guarantee`."""

    def __init__(self, guarantee: str) -> None:
        self.name = f"Kafka Streams, {guarantee}"
        self._guarantee = guarantee

    def running(self, setup: Setup) -> Iterator[None]:
        """Compile the application if need be, start it, and stop it."""
        jars = STREAMS_JARS.paths()
        folder = setup.file.parent / "classes"
        if not folder.exists():
            folder.mkdir()
            compile_java([_HERE / "StreamsQuota.java"], jars, folder, _javac_17)
        java, _ = find_java()
        topics, classpath = setup.settings.topics, os.pathsep.join(map(str, (folder, *jars)))
        state, application = setup.file.parent / "state", topics.decisions
        command = [java, "-Xmx2g", "-cp", classpath, "StreamsQuota", setup.settings.kafka["bootstrap.servers"]]
        command += [topics.requests, topics.decisions, application, self._guarantee, str(state)]
        yield from _children(setup, self.name, [[*command, str(os.cpu_count() or 1), *_quota(setup)]])


class Quix:
    """`quix_app.py` in a process for each core, exactly-once; it commits each `commit_s`."""

    DEFAULT_COMMIT_S = 5.0

    def __init__(self, commit_s: float = DEFAULT_COMMIT_S) -> None:
        self.name = "Quix Streams" + ("" if commit_s == self.DEFAULT_COMMIT_S else f", commits each {commit_s:g} s")
        self._commit_s = commit_s

    def running(self, setup: Setup) -> Iterator[None]:
        """Install Quix Streams if need be, start its processes, and stop them."""
        python, topics = _quix_python(), setup.settings.topics
        common = [str(python), str(_HERE / "quix_app.py"), setup.settings.kafka["bootstrap.servers"]]
        common += [topics.requests, topics.decisions, topics.decisions]
        own = [str(self._commit_s), *_quota(setup)]
        state = setup.file.parent / "state"
        commands = [[*common, str(state / str(number)), *own] for number in range(os.cpu_count() or 1)]
        yield from _children(setup, self.name, commands)


@contextmanager
def running(system: System, setup: Setup) -> Iterator[None]:
    """The system decides the setup's requests while the block runs."""
    yield from system.running(setup)


def _children(setup: Setup, name: str, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Start a child for each command, and end all with SIGTERM. Raises BenchError if one ended by itself."""
    logs = [setup.file.parent / f"peer-{number}.log" for number in range(len(commands))]
    children = [Child(command, log) for command, log in zip(commands, logs, strict=True)]
    try:
        yield
        for child, log in zip(children, logs, strict=True):
            if not child.alive:
                raise BenchError(f"{name} ended by itself: {last_line(log)}")
    finally:
        for child in children:
            child.end(signal.SIGTERM, _STOP_SECONDS)


def _quota(setup: Setup) -> list[str]:
    """Limit, samples and milliseconds of the window, of the quota that the requests are charged to."""
    (quota,) = (quota for quota in ONE_CHARGE.quotas if quota.kind is QuotaKind.CONTROLLER_MUTATION_RATE)
    window = setup.settings.quota.controller_window
    return [str(quota.value), str(window.samples), str(window.window_ms)]


def _javac_17() -> Sequence[str]:
    java, _ = find_java()
    return (str(Path(java).with_name("javac")), "--release", "17", "-Xlint:all,-path,-options", "-Werror")


def _quix_python() -> Path:
    """The Python of a virtual environment with the pinned Quix Streams; made at the first call."""
    pinned = _HERE / "quix-requirements.txt"
    digest = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = (_WORK / f"quix-{digest}").absolute()
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        _run("uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        _run("uv", "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(pinned))
        complete.touch()
    return python


def _run(tool: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise BenchError(f"Quix Streams can't be installed: {lines[-1]}")
