"""The own tests of Kafka's clients, and what came of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import ClassVar, NamedTuple
from xml.etree import ElementTree
from zipfile import ZipFile

from sluice.jvm.jars import home_lock, jars_home
from sluice.state.errors import SluiceError
from sluice_lab.testbed.processes import output_of
from sluice_proxy.processes import last_line

_TESTBED = Path(__file__).resolve().parents[2] / "testbed"


class SuiteError(SluiceError):
    """A client's tests can't be run."""


class GoTests(NamedTuple):
    """A program with the tests of a package, and the folder in which it runs."""

    program: Path
    folder: Path


class Change(NamedTuple):
    """The text of a source that is built as another one."""

    source: str
    text: str
    instead: str


def go_tests(module: str, package: str = ".", tags: Sequence[str] = (), change: Change | None = None) -> GoTests:
    """Build the tests of a package of a module that `go/go.mod` names, unless they are built. Raises SuiteError."""
    found = json.loads(_go(_TESTBED / "go", "mod", "download", "-json", module))
    source = Path(found["Dir"])
    name = f"{module.rpartition('/')[2]}-{found['Version']}{'-changed' if change else ''}"
    program = jars_home() / "go" / f"{name}.test"
    program.parent.mkdir(parents=True, exist_ok=True)
    with home_lock(program.stem):
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            with TemporaryDirectory() as folder:
                built = source if change is None else _changed(Path(found["Zip"]), source.name, change, Path(folder))
                _go(built, "test", "-c", "-tags", ",".join(tags), "-o", str(draft), package)
            draft.rename(program)
    return GoTests(program, source / package)


def go_program(source: Path) -> Path:
    """The program of a module in a folder of this repository, built. Raises SuiteError."""
    program = jars_home() / "go" / source.name
    program.parent.mkdir(parents=True, exist_ok=True)
    with home_lock(program.stem):
        _go(source, "build", "-o", str(program), ".")
    return program


def _changed(archive: Path, name: str, change: Change, folder: Path) -> Path:
    """The sources of a module, unpacked into `folder`, with the change: in Go's own cache none can be made."""
    with ZipFile(archive) as files:
        files.extractall(folder)  # noqa: S202 - no tar file, and go.sum pins it
    [sources] = folder.rglob(name)
    source = sources / change.source
    source.write_text(source.read_text().replace(change.text, change.instead))
    return sources


def _go(folder: Path, *arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise SuiteError("this needs Go, which isn't installed; install it, or name other clients")
    problem = f"go {' '.join(arguments[:2])}: {{}}; check the network and Go's version, then try again"
    return output_of([go, *arguments], SuiteError, problem, cwd=folder)


_GO_TEST = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", re.MULTILINE)
_GO_OUTCOMES = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
_KAFKAJS_TEST = re.compile(r"^(not ok|ok) \d+ - ([^\n]+?)( # SKIP)?\n  ---\n  duration_ms: ([\d.]+)", re.MULTILINE)
_PYTEST_FAULTS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


class Outcome(NamedTuple):
    """`passed`, `failed` or `skipped`, and how long it took."""

    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.text} {self.seconds:.1f} s"


Outcomes = Mapping[str, Outcome]
"""By the name of the test."""


class Suite(ABC):
    """The tests of a client that need brokers, of which it wants `brokers` with these properties.

    A suite with a `port` looks for the brokers at the next ports. `expected_failures` are tests that pass at a broker
    and fail through the proxy, each with its reason.
    """

    client: ClassVar[str]
    brokers: ClassVar[int] = 1
    port: ClassVar[int] = 0
    properties: ClassVar[Mapping[str, str]] = {}
    expected_failures: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def prepare(self) -> None:
        """Download and build them. Raises SluiceError."""

    @abstractmethod
    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        """Run them, or those that the regular expression `tests` finds, against `servers`; `log` gets their output.

        Raises SuiteError if none has run.
        """


class FranzGo(Suite):
    """franz-go's tests that make clients, its ETL through groups and transactions too; it has one broker in its CI."""

    client = "franz-go"
    properties: ClassVar[Mapping[str, str]] = {
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.share.delivery.count.limit": "10",
    }

    def prepare(self) -> None:
        self._tests = go_tests("github.com/twmb/franz-go", "./pkg/kgo")

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        environment = {"KGO_SEEDS": servers, "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none"}
        environment["KGO_TEST_RECORDS"] = os.environ.get("KGO_TEST_RECORDS", "10000")
        names = tests or f"^({'|'.join((_TESTBED / 'go' / 'franz-go-tests.txt').read_text().split())})$"
        command = [str(self._tests.program), "-test.v", "-test.timeout=20m", f"-test.run={names}"]
        return run_go(command, self._tests.folder, environment, log)


class Sarama(Suite):
    """Sarama's functional tests, on three brokers at the ports where it looks for them.

    Left out are those that stop brokers or break connections: they need Docker, Toxiproxy between the client and the
    brokers, or five brokers. It takes what it has to be told of its Toxiproxy from a server that does nothing.
    """

    client = "sarama"
    brokers = 3
    port = 29_090
    properties: ClassVar[Mapping[str, str]] = {
        "default.replication.factor": "2",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    left_out: ClassVar[Sequence[str]] = (
        "TestFuncConnectionFailure",
        "TestFuncAdminNetworkErrorClosesControllerConnection",
        "TestFuncProducingIdempotentWithBrokerFailure",
        "TestFuncIdempotentBufferedSequence",
        "TestFuncTxnProduceWithBrokerFailure",
        "TestFuncAdminListConsumerGroupOffsets",
        "TestFuncAdminDescribeLogDirs",
        "TestFuncJavaInterop.*",
    )

    def prepare(self) -> None:
        # The producing tests expect that Toxiproxy makes each request take 10 ms.
        latency = "minRequestLatencyInMs := {}"
        change = Change("functional_producer_test.go", latency.format(10), latency.format(0))
        self._tests = go_tests("github.com/IBM/sarama", tags=["functional"], change=change)

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:  # noqa: ARG002 - it knows its ports
        with _toxiproxy() as address:
            environment = {"TOXIPROXY_ADDR": address, "KAFKA_VERSION": "4.3.1"}
            names = ["-test.run", tests or "^TestFunc", "-test.skip", f"^({'|'.join(self.left_out)})$"]
            command = [str(self._tests.program), "-test.v", "-test.timeout=20m", *names]
            return run_go(command, self._tests.folder, environment, log)


class KafkaPython(Suite):
    """kafka-python's integration tests, which its source distribution has, in this Python, which has the same release.

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
    lacking: ClassVar[Mapping[str, str]] = {
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

    def prepare(self) -> None:
        source = _TESTBED / "kafka-python.sdist"
        release = source.read_text().split()[0].replace("==", "-")
        self._folder = jars_home() / "sdist" / release
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with home_lock(release), TemporaryDirectory(dir=self._folder.parent) as draft:
            if self._folder.exists():
                return
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
            problem = f"{release} can't be downloaded: {{}}; check the network, then try again"
            output_of([*command, "--dest", draft, "-r", source], SuiteError, problem)
            [archive] = Path(draft).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(draft, filter="data")
            [unpacked] = (each for each in Path(draft).iterdir() if each.is_dir())
            for name, text in self.lacking.items():
                (unpacked / "test" / name).write_text(text)
            unpacked.rename(self._folder)

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        report = log.with_name("report.xml")
        environment = {"KAFKA_URI": f"kafka://{servers}", "KAFKA_VERSION": "4.3"}
        environment["KAFKA_ROOT"] = str(self._folder)  # some folder has to be there
        options = ["-p", "no:cacheprovider", "-o", "log_level=WARNING", f"--junit-xml={report}"]
        options += [f"--ignore=test/integration/test_{name}_integration.py" for name in ("ssl", "sasl")]
        # pytest knows no regular expressions: for parts of names with | between.
        options += [] if tests is None else ["-k", " or ".join(tests.split("|"))]
        _run([sys.executable, "-m", "pytest", "test/integration", *options], self._folder, environment, log)
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()  # noqa: S314 - our own child's
        return _some({case.get("name", ""): _pytest_outcome(case) for case in cases}, log)


class Kafkajs(Suite):
    """`node --test` of tests of what kafkajs negotiates; its package has none of its own that need brokers."""

    client = "kafkajs"

    def prepare(self) -> None:
        npm, self._folder = _tool("npm"), jars_home() / "kafkajs"
        with home_lock("kafkajs"):
            shutil.copytree(_TESTBED / "kafkajs", self._folder, dirs_exist_ok=True)
            if not (self._folder / "node_modules").exists():
                problem = "npm ci: {}; check the network, then try again"
                output_of([npm, "ci", "--ignore-scripts"], SuiteError, problem, cwd=self._folder)

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        only = [] if tests is None else [f"--test-name-pattern={tests}"]
        command = [_tool("node"), "--test", "--test-reporter=tap", *only, "client.test.js"]
        text = _run(command, self._folder, {"SERVERS": servers}, log)
        outcomes = {
            name: Outcome("skipped" if skipped else "passed" if word == "ok" else "failed", float(took_ms) / 1_000)
            for word, name, skipped, took_ms in _KAFKAJS_TEST.findall(text)
        }
        return _some(outcomes, log)


def run_go(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Outcomes:
    """The outcomes of the tests of a Go program; subtests aren't told. Raises SuiteError if there are none."""
    found = _GO_TEST.findall(_run(command, folder, environment, log))
    return _some({name: Outcome(_GO_OUTCOMES[word], float(took)) for word, name, took in found}, log)


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> str:
    """The output of a suite."""
    with log.open("w") as output:
        variables = os.environ | environment
        subprocess.run(command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, check=False)
    return log.read_text(errors="replace")


def _some(outcomes: Outcomes, log: Path) -> Outcomes:
    if not outcomes:
        raise SuiteError(f"no test has run: {last_line(log)}; all of it: {log}")
    return outcomes


def _pytest_outcome(case: ElementTree.Element) -> Outcome:
    text = next((_PYTEST_FAULTS[each.tag] for each in case if each.tag in _PYTEST_FAULTS), "passed")
    return Outcome(text, float(case.get("time", 0.0)))


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SuiteError(f"the tests of kafkajs need {name}, which isn't installed; install it, or name other suites")
    return found


@contextmanager
def _toxiproxy() -> Iterator[str]:
    """The address of a server that answers as Toxiproxy does, and changes no connection."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Toxiproxy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Toxiproxy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self._answer(204 if self.path == "/reset" else 200)

    def _answer(self, status: int) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.end_headers()
        if status == 200:
            self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Write no log."""
