"""Options of the test run, and fixtures that all tests share: a broker and a Spark session, started once per run."""

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, is_hypothesis_test
from hypothesis import settings as hypothesis_settings

from scripts.java.build import build_jars
from sluice.cli import options
from sluice.configs.settings import Properties, load_settings
from sluice.jvm.jars import SPARK_JARS
from sluice_demo.broker import Broker
from sluice_proxy.processes import free_ports
from tests.broker_plugin import plugin_classes
from tests.integration.job_process import (
    AUDITED,
    GENERATED_CODE,
    QUICK_JAVA,
    READS_DELTA,
    SMALL_ARROW_BATCHES,
    JobProcess,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_CASES = Path(__file__).parent / "tests" / "data" / "kafka-cases.jsonl"

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] # it isn't to be found
"""jsonschema would compile 38 grammars of IRIs, which no schema here has: 2 s of CPU in each process of a run."""

LONG = "long"
"""Folder of the tests of ./scripts/test-long; a test elsewhere joins them by the mark of this name."""

SHARED = ("shared_job", "spark", "plugin")
"""Fixtures that are expensive to make: the tests with one of them are a group, so that one process makes it once."""

SHARED_QUOTAS = [
    {"entity": {"user": "kip599"}, "quotas": {"controller_mutation_rate": 5}},
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 1, "request_percentage": 1}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 100, "consumer_byte_rate": 100}},
    {"entity": {"topic": "orders"}, "quotas": {"producer.byte.rate": 50}},
    {"entity": {"user": "greedy"}, "quotas": {"controller_mutation_rate": 10}},
    {"entity": {"user": "producer"}, "quotas": {"producer_byte_rate": 1_000_000}},
    {"entity": {"user": "long-wait"}, "quotas": {"producer_byte_rate": 10}},
]

LONGEST = ("extras/proxy/tests/integration/test_kafka_gateway.py", *SHARED)
"""The groups that begin first; the other ones fill the time beside them."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LEAVE_S = 1.5
"""Time in which pytest may show its summary after a signal."""

EXAMPLES, LONG_EXAMPLES = 30, 300
"""Examples that Hypothesis draws for a property, which ./scripts/test and ./scripts/test-long both test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cases FILE`: another file of Kafka scenarios for tests/unit/test_kafka_cases.py. `--long`: the long tests."""
    parser.addoption(
        "--cases", type=Path, default=DEFAULT_CASES, help="file of Kafka scenarios, one JSON object a line"
    )
    parser.addoption("--long", action="store_true", help="run the tests marked long, and only those")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `kafka_case` is one for each line of the file given with `--cases`."""
    if "kafka_case" in metafunc.fixturenames:
        from tests.kafka_cases import in_scope  # with all that decides, which takes long to import

        path: Path = metafunc.config.getoption("--cases")
        cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        metafunc.parametrize("kafka_case", [case for case in cases if in_scope(case)], ids=lambda case: case["id"])


def pytest_configure(config: pytest.Config) -> None:
    """Examples of properties, and signals."""
    hypothesis_settings.register_profile(
        "lane",
        max_examples=LONG_EXAMPLES if config.getoption("--long") else EXAMPLES,
        deadline=None,  # what an example takes depends on what else runs
        suppress_health_check=[HealthCheck.too_slow],
    )
    hypothesis_settings.load_profile("lane")
    for number in SIGNALS:
        signal.signal(number, _leave)  # also where a shell that starts the tests in the background has it ignored


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """End the run as Ctrl-C does, and after LEAVE_S whatever is left of it."""

    def end() -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os._exit(128 + number)

    after_s = Timer(LEAVE_S, end)
    after_s.daemon = True
    after_s.start()
    for each in SIGNALS:
        signal.signal(each, lambda *_: None)  # not SIG_IGN, which child processes would inherit
    raise KeyboardInterrupt


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests, or with `--long` all others but properties; and give each test its group.

    The LONGEST groups are the first. A group runs in one process (`--dist loadgroup`): all tests with one of the SHARED
    fixtures, or those of one file.
    """
    is_wanted = _is_long_or_property if config.getoption("--long") else _is_quick
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = filter(is_wanted, items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)


def _group(item: pytest.Item) -> str:
    marked = item.get_closest_marker("group")
    if marked is not None:
        return str(marked.args[0])
    fixtures = getattr(item, "fixturenames", ())
    return next((fixture for fixture in SHARED if fixture in fixtures), item.nodeid.partition("::")[0])


def _turn(item: pytest.Item) -> tuple[int, bool]:
    group = _group(item)
    place = LONGEST.index(group) if group in LONGEST else len(LONGEST) + ("/unit/" in group)
    return place, item.get_closest_marker("last") is not None


@pytest.fixture(scope="session", autouse=True)
def _built_jars(request: pytest.FixtureRequest) -> None:
    """Sluice's own jars of the sources that are there, as ./scripts/setup leaves them; unit tests need none."""
    if any("unit" not in item.path.parts for item in request.session.items):
        build_jars()


@pytest.fixture(autouse=True)
def _no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without --config means no demo that happens to run beside the tests."""
    monkeypatch.setattr(options, "RUNNING", Path(gettempdir()) / "sluice-tests-know-of-no-run")
    monkeypatch.delenv(options.CONFIG_VARIABLE, raising=False)


def _is_quick(item: pytest.Item) -> bool:
    return not (_is_marked(item, LONG) or item.path.parent.name == LONG)


def _is_long_or_property(item: pytest.Item) -> bool:
    return not _is_quick(item) or is_hypothesis_test(getattr(item, "obj", None))


def _is_marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, in which the default settings have their tables."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have a row for a client of one request too."""
    monkeypatch.setattr("sluice_insight.reports.left_out.LEAST_REQUESTS", 1)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every account may enter, unlike those of pytest."""
    with TemporaryDirectory(prefix="sluice-rights-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """The umask of most machines, under which others may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of an embedded broker, which creates no topics; each test creates and uses its own.

    All processes of a test run share one broker. The process that starts it ends it after the others have ended.
    """
    shared = _shared_folder(tmp_path_factory)
    with (shared / "users").open("w") as users:
        with FileLock(shared / "lock"):
            address = shared / "address"
            broker = None if address.exists() else Broker(shared / "broker")
            if broker is not None:
                broker.start()
                address.write_text(broker.bootstrap_servers)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield address.read_text()
        if broker is not None:
            fcntl.flock(users, fcntl.LOCK_EX)
            broker.stop()


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run have in common."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars that a Spark session needs in addition to pyspark's own."""
    return SPARK_JARS.paths()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The job's own Spark session, which all tests share that need one. Unlike a job's it reads Delta tables."""
    from sluice.streaming.runtime.session import start_session

    settings = load_settings(environment={})
    enforce = replace(settings.enforce, checkpoint=str(tmp_path_factory.mktemp("checkpoint")))
    properties = Properties(settings.spark | QUICK_JAVA | READS_DELTA)
    session = start_session(replace(settings, enforce=enforce, spark=properties))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """One running job; a test that shares it has users of its own, and counts from what was there before.

    It accepts events from clocks that run ahead by ten minutes. Rows of a page and parts of a group come in several of
    Arrow's batches, as they do in production once a micro-batch is large.
    """
    job = JobProcess(
        tmp_path_factory.mktemp("shared"),
        kafka_broker,
        SHARED_QUOTAS,
        quota={"controller.quota.window.num": 100},
        audit=AUDITED,
        enforce={"max_future_ms": 3_000_000},  # for the clocks of gateways that run fast until a busy machine is done
        health={"port": free_ports(1)[0]},
        spark=GENERATED_CODE | SMALL_ARROW_BATCHES,
    )
    job.start()
    yield job
    job.stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared job ends after its last test: until the end of all tests it would take a fifth of a core."""
    job = getattr(item, "funcargs", {}).get("shared_job")
    if job is not None and "shared_job" not in getattr(nextitem, "fixturenames", ()):
        job.stop()


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The class path of a broker with the plugin, which one process of a test run compiles for all."""
    folder = _shared_folder(tmp_path_factory) / "classes"
    with FileLock(f"{folder}.lock"):
        return plugin_classes(folder)
