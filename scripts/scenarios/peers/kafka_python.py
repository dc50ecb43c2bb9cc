"""kafka-python's own integration tests, which its source distribution has."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from xml.etree import ElementTree

from scripts.scenarios.peers.suite import Outcome, Outcomes, Suite, SuiteError
from sluice.jvm.jars import home_lock, jars_home
from sluice.jvm.processes import last_line

_SOURCE = Path(__file__).resolve().parents[2] / "testbed" / "kafka-python.sdist"
_LACKING = {
    "__init__.py": "",  # or Python finds its own `test`
    "service.py": """
class ExternalService:
    def __init__(self, host, port): self.host, self.port = host, port
    def open(self): pass
    def stop(self): pass

SpawnedService = None
""",
}
"""Files that the archive lacks: the second one's classes start servers, and stop them."""

_FAULTS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


class KafkaPython(Suite):
    """`pytest test/integration` of kafka-python, in this Python, which has the same release.

    Its tests of TLS and logins start brokers of their own, from a Kafka that they would download.
    """

    client = "kafka-python"
    properties: ClassVar[Mapping[str, str]] = {
        "auto.create.topics.enable": "true",
        "num.partitions": "4",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.min.session.timeout.ms": "1000",
    }
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_kafka_version_infer": "the proxy offers Produce 12 and ListOffsets 10, which are those of Kafka 4.0",
        "test_list_config_resources": "the proxy offers version 0, which lists client metrics alone, not 1",
    }

    def prepare(self) -> None:
        self._folder = _unpacked()

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        report = log.with_name("report.xml")
        environment = os.environ | {"KAFKA_URI": f"kafka://{servers}", "KAFKA_VERSION": "4.3"}
        environment["KAFKA_ROOT"] = str(self._folder)  # some folder has to be there
        options = ["-p", "no:cacheprovider", "-o", "log_level=WARNING", f"--junit-xml={report}", *_only(tests)]
        ignored = [f"--ignore=test/integration/test_{name}_integration.py" for name in ("ssl", "sasl")]
        command = [sys.executable, "-m", "pytest", "test/integration", *ignored, *options]
        with log.open("w") as output:
            subprocess.run(
                command, cwd=self._folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        if not report.exists():
            raise SuiteError(f"kafka-python's tests can't be run: {last_line(log)}; all of it: {log}")
        cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - our own child wrote it
        return {case.get("name", ""): _outcome(case) for case in cases}


def _only(tests: str | None) -> list[str]:
    """Options of pytest, which knows no regular expressions: for parts of names with | between."""
    return [] if tests is None else ["-k", " or ".join(tests.split("|"))]


def _outcome(case: ElementTree.Element) -> Outcome:
    text = next((_FAULTS[each.tag] for each in case if each.tag in _FAULTS), "passed")
    return Outcome(text, float(case.get("time", 0.0)))


def _unpacked() -> Path:
    """The sources, downloaded at the first call."""
    release = _SOURCE.read_text().split()[0].replace("==", "-")
    folder = jars_home() / "sdist" / release
    folder.parent.mkdir(parents=True, exist_ok=True)
    with home_lock(release), TemporaryDirectory(dir=folder.parent) as draft:
        if not folder.exists():
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
            done = subprocess.run(
                [*command, "--dest", draft, "-r", str(_SOURCE)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
                raise SuiteError(f"{release} can't be downloaded: {lines[-1]}; check the network, then try again")
            [archive] = Path(draft).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(draft, filter="data")
            [unpacked] = (each for each in Path(draft).iterdir() if each.is_dir())
            for name, text in _LACKING.items():
                (unpacked / "test" / name).write_text(text)
            unpacked.rename(folder)
    return folder
