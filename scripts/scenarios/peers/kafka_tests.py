"""`./scripts/test-peers kafka`: Kafka's own quota tests, on nodes without and with the plugin."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from xml.etree import ElementTree

import typer

from scripts.benchmarks.report import table
from scripts.command import EXIT_BAD_USAGE, EXIT_FAILED, print_error
from scripts.testbed.jars import KAFKA_TEST_JARS
from sluice.jvm.compiler import compile_java, javac
from sluice.jvm.java import OLDEST, find_java
from sluice.jvm.plugin import plugin_jar
from sluice.state.errors import SluiceError

_SUBCLASSES = Path(__file__).resolve().parents[2] / "testbed" / "WithPlugin.java"

CLASSES: Mapping[str, str] = {
    "ClientIdQuotaTest": "kafka.api",
    "UserClientIdQuotaTest": "kafka.api",
    "UserQuotaTest": "kafka.api",
    "RequestQuotaTest": "kafka.server",
    "ControllerMutationQuotaTest": "kafka.server",
}
"""Kafka's test classes that start brokers and set quotas, and their packages.

Its other classes with quota in their names test classes of Kafka alone, replication, connections, or a callback of
their own, which takes the place of the plugin.
"""


class Side(StrEnum):
    """The nodes of a test."""

    KAFKA = "Kafka"
    PLUGIN = "with the plugin"


Outcomes = Mapping[str, str]
"""`passed`, or the first line of the fault, by `class.test`."""


@dataclass(frozen=True)
class KafkaTests:
    """Run Kafka's own quota tests on nodes without and with Sluice's plugin, and compare.

    The tests come from Kafka's jars. With the plugin the nodes have three more properties, and no job: the plugin
    enforces the quotas that the tests set in Kafka. All classes of a side run in one Java process, in which each test
    starts nodes of its own; threads that a node leaves behind fail the next class. Exit code 1 if a test fails on any
    side, or if a side ran none.

    \b
      ./scripts/test-peers kafka                                     all, on both sides; some 20 minutes
      ./scripts/test-peers kafka --side plugin ControllerMutationQuotaTest
    """

    classes: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CLASSES)}; all if none is given.")] = None
    side: Annotated[str | None, typer.Option(help="kafka or plugin; both if not given.")] = None

    def run(self) -> int:
        """Run them, and print the table."""
        sides = {None: list(Side), "kafka": [Side.KAFKA], "plugin": [Side.PLUGIN]}.get(self.side)
        classes = self.classes or list(CLASSES)
        unknown = [each for each in classes if each not in CLASSES]
        if sides is None or unknown:
            wrong = (
                f"no class {unknown[0]}; expected {', '.join(CLASSES)}"
                if unknown
                else f"no side {self.side}; expected kafka or plugin"
            )
            print_error("test-peers", wrong)
            return EXIT_BAD_USAGE
        found = {side: run_kafka_tests(side, classes) for side in sides}
        names = sorted({name for outcomes in found.values() for name in outcomes})
        rows = [(name, *(found[side].get(name, "not run") for side in sides)) for name in names]
        print("\n".join(table("test", *sides, rows=rows)))
        passed = {side: sum(row[place] == "passed" for row in rows) for place, side in enumerate(sides, start=1)}
        print("; ".join(f"{side}: {count} of {len(rows)} passed" for side, count in passed.items()))
        return 0 if set(passed.values()) == {len(rows)} else EXIT_FAILED


class KafkaTestsError(SluiceError):
    """Kafka's tests can't be run."""


def run_kafka_tests(side: Side, classes: Sequence[str]) -> Outcomes:
    """The outcome of each test of these classes, in one Java process.

    Raises KafkaTestsError (nothing was run), JarError, JavaError and PluginBuildError.
    """
    java, _ = find_java()
    with TemporaryDirectory(prefix="sluice-kafka-tests-") as name:
        folder = Path(name)
        jars = [*KAFKA_TEST_JARS.paths(), plugin_jar()]
        compile_java([_SUBCLASSES], jars, folder, OLDEST, _compiler)
        package = {each: "sluice.tests.WithPlugin$" if side is Side.PLUGIN else f"{CLASSES[each]}." for each in classes}
        command = [
            *(java, "-Xmx1500m", f"-Djava.io.tmpdir={folder}", "-XX:TieredStopAtLevel=1"),
            "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",  # UserQuotaTest: Kerberos
            *("-cp", os.pathsep.join(map(str, [folder, *jars]))),
            *("org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--details=none"),
            *(part for each in classes for part in ("--select-class", package[each] + each)),
            *("--reports-dir", str(folder / "reports")),
        ]
        log = folder / "log"
        with log.open("w") as output:
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        outcomes = {name: fault for report in folder.glob("reports/*.xml") for name, fault in _outcomes(report).items()}
        if not outcomes:
            raise KafkaTestsError(f"Kafka's tests can't be run: {(log.read_text().splitlines() or ['no message'])[-1]}")
        return outcomes


def _compiler(release: int) -> Sequence[str]:
    return (*javac(release), "-Xlint:-classfile")  # the jars lack an annotation of Kafka's tests


def _outcomes(report: Path) -> Outcomes:
    """The outcomes of a report in JUnit's format; one test with several parameters is several."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own child wrote it
        fault = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        name = f"{case.get('classname', '').rpartition('.')[2].rpartition('$')[2]}.{case.get('name')}"
        text = "" if fault is None else fault.get("message") or fault.tag
        outcomes[name] = "passed" if fault is None else text.splitlines()[0]
    return outcomes
