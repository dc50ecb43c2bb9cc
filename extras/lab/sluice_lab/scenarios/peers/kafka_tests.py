"""`./scripts/test-peers kafka`: Kafka's own quota tests, on nodes without and with the plugin, and with a job."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from scripts.command import EXIT_FAILED, check_known
from scripts.java.compiler import compile_java, javac
from sluice.jvm.jars import JarSet
from sluice.jvm.java import OLDEST, find_java
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS, plugin_jar
from sluice.state.errors import SluiceError
from sluice_demo.jars import BROKER_JARS
from sluice_demo.work_folder import work_folder
from sluice_lab.benchmarks.report import table
from sluice_lab.scenarios.peers.job import EXEMPT_CLIENT_ID
from sluice_lab.testbed.jars import KAFKA_RELEASE_JARS, KAFKA_TEST_JARS, OLD_BROKER_JARS

_JAVA = Path(__file__).resolve().parents[2] / "testbed" / "kafka_tests"

CLASSES: Mapping[str, str] = {
    "ClientIdQuotaTest": "kafka.api",
    "UserClientIdQuotaTest": "kafka.api",
    "UserQuotaTest": "kafka.api",
    "RequestQuotaTest": "kafka.server",
    "ControllerMutationQuotaTest": "kafka.server",
    "DynamicConnectionQuotaTest": "kafka.network",
}
"""Kafka's test classes that start brokers and set quotas, and their packages.

Its other classes with quota in their names test classes of Kafka alone, or a callback of their own, which takes the
place of the plugin; ReplicationQuotasTest of 4.3 fails with a callback that does nothing, too.
"""

_NOT_SLUICE = ("DynamicConnectionQuotaTest",)
"""Classes of quotas that stay Kafka's own; a job has no part in them."""

WITH_A_JOB: Mapping[str, str] = {
    "each class": "brokers have a listener for Sluice alone, as the clients of a test may log in; Sluice's are exempt",
    "ClientIdQuotaTest, UserClientIdQuotaTest, UserQuotaTest": "where Kafka waits until the limit of the leader is the "
    "quota, the test waits until the altered quota is in force at each node: of two brokers each has a share of it",
    ", ".join(_NOT_SLUICE): "not run: these quotas stay Kafka's own",
}
"""Differences from Kafka's own classes on the side with a job, and their reasons."""

RELEASES: Mapping[str, Sequence[JarSet]] = {
    "3.9": (OLD_BROKER_JARS, KAFKA_RELEASE_JARS["3.9"]),
    "4.0": (KAFKA_RELEASE_JARS["4.0"],),
    "4.1": (KAFKA_RELEASE_JARS["4.1"],),
    "4.2": (KAFKA_RELEASE_JARS["4.2"],),
    "4.3": (BROKER_JARS, KAFKA_RELEASE_JARS["4.3"]),
}
"""The jars of a broker and of its tests, by Kafka's release; the tests of 4.4 aren't published."""


class Side(StrEnum):
    """The nodes of a test."""

    KAFKA = "kafka"
    PLUGIN = "plugin"
    JOB = "job"


PASSED = "passed"

Outcomes = Mapping[str, str]
"""PASSED, or the first line of the fault, by `class.test`."""


@dataclass(frozen=True)
class KafkaTests:
    """Run Kafka's own quota tests on nodes without and with Sluice's plugin, and compare.

    The tests come from the jars of Kafka's releases. Sides: `kafka`, nodes of Kafka alone; `plugin`, nodes with the
    plugin and without a job, which enforce the quotas that the tests set in Kafka; `job`, the same with a job on the
    test's own brokers, which mirrors those quotas, so that each broker has its share of them. All classes of a side run
    in one Java process, in which each test starts nodes of its own; threads that a node leaves behind fail the next
    class. The logs are in .work/kafka-tests. Exit code 1 if a side with the plugin fails a test that nodes of Kafka
    alone haven't failed in the same run, or if a side ran none.

    \b
      ./scripts/test-peers kafka                    all, on all sides and releases; hours
      ./scripts/test-peers kafka --release 4.3      one release
      ./scripts/test-peers kafka --side plugin ControllerMutationQuotaTest
    """

    classes: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CLASSES)}; all if none is given.")] = None
    side: Annotated[list[Side] | None, typer.Option(help="All if none is given.")] = None
    release: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(RELEASES)}; all if none is given.")] = None
    test: Annotated[str, typer.Option(metavar="REGEX", help="Tests of these classes whose names end so.")] = ""

    def run(self) -> int:
        """Run them, and print the table."""
        classes, releases = self.classes or list(CLASSES), self.release or list(RELEASES)
        check_known("class", classes, CLASSES)
        check_known("release", releases, RELEASES)
        found: dict[str, dict[Side, Outcomes]] = {}
        with work_folder("kafka-tests", fresh=True) as folder:
            for release in releases:
                sides = found[release] = {}
                for side in self.side or Side:
                    sides[side] = run_kafka_tests(folder / release / side, release, side, classes, self.test)
        return report(found)


def report(found: Mapping[str, Mapping[Side, Outcomes]]) -> int:
    """Print the outcomes, by release and side, and which faults nodes of Kafka alone have as well; the exit code."""
    columns = {f"{release} {side}": each for release, sides in found.items() for side, each in sides.items()}
    names = sorted({name for outcomes in columns.values() for name in outcomes})
    rows = [(name, *(outcomes.get(name, "") for outcomes in columns.values())) for name in names]
    print("\n".join(table("test", *columns, rows=rows)))
    if any(Side.JOB in sides for sides in found.values()):
        print("\n".join(table("with a job", "what differs", rows=WITH_A_JOB.items())))
    passed = {column: [fault == PASSED for fault in outcomes.values()] for column, outcomes in columns.items()}
    print("; ".join(f"{column}: {sum(each)} of {len(each)} passed" for column, each in passed.items()))
    code = 0
    for release, sides in found.items():
        of_kafka = _failed(sides.get(Side.KAFKA, {}))
        for side in (Side.PLUGIN, Side.JOB):
            failed = _failed(sides.get(side, {}))
            for name in sorted(failed & of_kafka):
                print(f"{name} fails on {release} {side}, and on nodes of Kafka alone as well")
            for name in sorted(failed - of_kafka):
                print(f"{name} fails on {release} {side}")
                code = EXIT_FAILED
    return code


def _failed(outcomes: Outcomes) -> set[str]:
    return {name for name, fault in outcomes.items() if fault != PASSED}


class KafkaTestsError(SluiceError):
    """Kafka's tests can't be run."""


def run_kafka_tests(folder: Path, release: str, side: Side, classes: Sequence[str], test: str = "") -> Outcomes:
    """The outcome of each test of these classes, in one Java process, whose log is `log` in the new `folder`.

    `test` is a regular expression of the end of tests' names.

    Raises KafkaTestsError (nothing was run), JarError, JavaError and JavaBuildError.
    """
    java, _ = find_java()
    classes = [each for each in classes if side is not Side.JOB or each not in _NOT_SLUICE]
    jars = [jar for jars in (*RELEASES[release], KAFKA_TEST_JARS) for jar in jars.paths()] + [plugin_jar()]
    compiled, temporary = folder / "classes", folder / "temporary"
    for each in (compiled, temporary):
        each.mkdir(parents=True)
    compile_java(
        [*_JAVA.glob("*.java"), *(_subclass(folder, each) for each in classes)], jars, compiled, OLDEST, _compiler
    )
    command = [
        *(java, "-Xmx1500m", f"-Djava.io.tmpdir={temporary}", "-XX:TieredStopAtLevel=1"),
        *(f"-D{key}={value}" for key, value in _properties(side, folder).items()),
        "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",  # UserQuotaTest: Kerberos
        *("-cp", os.pathsep.join(map(str, [compiled, *jars]))),
        *("org.junit.platform.console.ConsoleLauncher", "execute"),
        *("--disable-banner", "--disable-ansi-colors", "--details=testfeed"),
        *(part for each in classes for part in ("--select-class", f"sluice.tests.{each}")),
        *("--include-methodname", f".*{test}", "--reports-dir", str(folder / "reports")),
    ]
    log = folder / "log"
    with log.open("w") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    shutil.rmtree(temporary)
    outcomes = {name: fault for report in folder.glob("reports/*.xml") for name, fault in read_outcomes(report).items()}
    if not outcomes:
        raise KafkaTestsError(f"Kafka's tests can't be run: {(log.read_text().splitlines() or ['no message'])[-1]}")
    return outcomes


def _subclass(folder: Path, name: str) -> Path:
    """The source of a subclass of a test, whose nodes have more properties; else it is Kafka's."""
    source, template = folder / f"{name}.java", (_JAVA / "Subclass.template").read_text()
    source.write_text(template.replace("NAME", name).replace("PACKAGE", CLASSES[name]))
    return source


def _properties(side: Side, folder: Path) -> Mapping[str, str]:
    """The system properties that tell the tests what their nodes have, see `Nodes.java` and `JobInForce.java`."""
    if side is Side.KAFKA:
        return {}
    plugin = {
        "node.client.quota.callback.class": CALLBACK_CLASS,
        "node.metric.reporters": REPORTER_CLASS,
        # Nobody listens there: without a job, the quotas that Kafka keeps hold.
        "node.sluice.bootstrap.servers": "127.0.0.1:9",
    }
    if side is Side.PLUGIN:
        return plugin
    job = f"{sys.executable} -m sluice_lab.scenarios.peers.job {folder}/job"
    return {**plugin, "node.sluice.exempt.client.id": EXEMPT_CLIENT_ID, "job": job}


def _compiler(release: int) -> Sequence[str]:
    return (*javac(release), "-Xlint:-classfile")  # the jars lack an annotation of Kafka's tests


def read_outcomes(report: Path) -> Outcomes:
    """The outcomes of a report in JUnit's format; of a test with several parameters the first fault."""
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own child wrote it
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '').partition('(')[0]}"
        fault = next((each for each in case if each.tag in ("failure", "error")), None)
        if fault is not None:
            outcomes[name] = (fault.get("message") or fault.tag).splitlines()[0]
        elif case.find("skipped") is None:
            outcomes.setdefault(name, PASSED)
    return outcomes
