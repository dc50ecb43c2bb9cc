"""The peer in Kafka Streams (KafkaStreamsPeer.java), with either of its guarantees."""

import json
import os
import signal
import subprocess
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from scripts.benchmarks.peers.jars import PEER_JARS
from scripts.benchmarks.peers.peer import Application, Peer
from scripts.benchmarks.rig import BenchError
from scripts.testbed.processes import last_line
from sluice.jvm.java import find_java
from sluice.jvm.plugin import java_compiler
from sluice.jvm.plugin_build import compile_java

_SOURCE = Path(__file__).parent / "KafkaStreamsPeer.java"
_END_SECONDS = 30


class Guarantee(StrEnum):
    """Kafka Streams' `processing.guarantee`."""

    EXACTLY_ONCE = "exactly_once_v2"
    AT_LEAST_ONCE = "at_least_once"


def compile_peer(folder: Path) -> Path:
    """The folder with the compiled peer. Raises PluginBuildError, JarError and JavaError."""
    classes = folder / "kafka-streams-classes"
    classes.mkdir()
    compile_java([_SOURCE], PEER_JARS.paths(), classes, java_compiler)
    return classes


class KafkaStreams(Peer):
    """One Java process, which runs one application after another, so that it stays warm as Sluice's does."""

    warms_up = True

    def __init__(self, classes: Path, guarantee: Guarantee, log: Path) -> None:
        java, _ = find_java()
        class_path = os.pathsep.join(map(str, [*PEER_JARS.paths(), classes]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        self._guarantee = guarantee
        self._log = log
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [java, quiet, "-cp", class_path, _SOURCE.stem],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C is for the bench, which then closes the input
            )

    def start(self, application: Application) -> None:
        """Start the application."""
        command = asdict(application)
        command["application"], command["threads"] = command.pop("name"), command.pop("partitions")
        self._command(action="start", guarantee=self._guarantee, **command)

    def stop(self) -> None:
        """Stop the application cleanly."""
        self._command(action="stop")

    def __exit__(self, *_: object) -> None:
        """Close the input, which ends the application and Java."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _command(self, **command: Any) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BenchError("Kafka Streams has no pipes")
        try:
            print(json.dumps(command), file=stdin, flush=True)
        except BrokenPipeError:
            raise BenchError(f"Kafka Streams ended: {last_line(self._log)}") from None
        line = stdout.readline()
        if not line:
            raise BenchError(f"Kafka Streams ended: {last_line(self._log)}")
        if error := json.loads(line).get("error"):
            raise BenchError(f"Kafka Streams can't {command['action']}: {error}")
