"""The broker plugin in tests: its jar, Java code that only tests need, and a Java process that answers cases."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Self

from scripts.java.build import PLUGIN, build_plugin
from scripts.java.compiler import compile_java
from sluice.jvm.java import find_java
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS
from sluice_demo.jars import BROKER_JARS

JAVA_SOURCES = Path(__file__).parent / "java"
SECRET = "only-brokers-know-this"  # noqa: S105 # of no broker but those of tests


OLD_LOG = """
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %m%n
"""
"""The log4j.properties without which brokers of Kafka 3.x write no log."""


def plugin_classes(folder: Path) -> list[Path]:
    """The class path of a broker: the plugin, made for any Kafka, and the Java code of tests; made once a folder."""
    jar = build_plugin(BROKER_JARS.paths(), folder)
    classes = folder / "classes"
    if classes.exists():
        return [jar, classes]
    classes.mkdir()
    compile_java(sorted(JAVA_SOURCES.rglob("*.java")), [*BROKER_JARS.paths(), jar], classes, PLUGIN.release)
    return [jar, classes]


def plugin_properties(**more: str) -> dict[str, str]:
    """The properties that make a broker of the test bed a gateway; `sum_ms` stands for `sluice.sum.ms`."""
    return {
        "client.quota.callback.class": CALLBACK_CLASS,
        "metric.reporters": f"org.apache.kafka.common.metrics.JmxReporter,{REPORTER_CLASS}",
        "sluice.bootstrap.servers": "127.0.0.1:{port}",
        "sluice.exempt.client.id": SECRET,
        **{f"sluice.{key.replace('_', '.')}": value for key, value in more.items()},
    }


class JavaProcess:
    """A Java process that answers each line of JSON with one."""

    def __init__(self, folder: Path, class_path: Sequence[Path], program: str) -> None:
        java, _ = find_java()
        options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, class_path)))
        command = [java, *options, program]
        self.log = folder / "java.log"
        self._log = self.log.open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=120)
        self._log.close()

    def ask(self, asked: Sequence[Mapping[str, object]]) -> list[Any]:
        """The answer to each."""
        lines = "".join(json.dumps(each) + "\n" for each in asked)
        writer = Thread(target=self._write, args=(lines,))  # the pipe would be full before the last case is asked
        writer.start()
        assert self._process.stdout is not None
        answers = [self._process.stdout.readline() for _ in asked]
        writer.join()
        assert all(answers), self.log.read_text()
        return [json.loads(answer) for answer in answers]

    def _write(self, lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(lines)
        self._process.stdin.flush()


class JavaCases(JavaProcess):
    """One Java process with the core of the plugin; it answers any number of cases."""

    def __init__(self, folder: Path, classes: Sequence[Path]) -> None:
        super().__init__(folder, [*BROKER_JARS.paths(), *classes], "sluice.kafka.Cases")

    def answers(self, case: str, asked: Sequence[Mapping[str, object]]) -> list[Any]:
        """The plugin's answers to cases of this name."""
        return self.ask([{"case": case, **each} for each in asked])

    def answer(self, case: str, asked: Mapping[str, object]) -> Any:
        """The plugin's answer to one case."""
        return self.answers(case, [asked])[0]
