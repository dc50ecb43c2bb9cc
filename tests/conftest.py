"""Fixtures that all tests share: a broker and a Spark session, started once per run and ended with it."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from scripts.testbed.broker import Broker
from sluice.cli import job_settings
from sluice.configs.settings import Properties, load_settings
from sluice.jvm.jars import SPARK_JARS
from tests.broker_plugin import plugin_classes
from tests.integration.job_process import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What an example takes depends on what else runs.
hypothesis_settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy machine")

LONG = Path(__file__).parent / "long"
"""The tests of ./scripts/test-long; a test elsewhere joins them by the mark `long`."""

LONGEST_FILES = (
    "tests/long/test_faults.py",
    "tests/long/test_lasting_faults.py",
    "tests/long/test_signals.py",
    "tests/long/test_state_commands.py",
    "tests/integration/test_audit_tables.py",
)
"""They begin first, so that no process is left with one of them at the end."""


def pytest_configure() -> None:
    """A shell that starts the tests in the background makes them ignore SIGINT, and so all that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests, or with `--long` all others; and order files so that few processes wait for others.

    Long files come first. Files with a test that runs alone come last: while it waits for the test of another process
    to end, no process has a test to begin.
    """
    wanted = config.getoption("--long")
    config.hook.pytest_deselected(items=[item for item in items if _is_long(item) != wanted])
    items[:] = [item for item in items if _is_long(item) == wanted]
    with_alone = {item.path for item in items if _is_marked(item, "alone")}

    def turn(item: pytest.Item) -> tuple[bool, int]:
        file = item.nodeid.partition("::")[0]
        return item.path in with_alone, LONGEST_FILES.index(file) if file in LONGEST_FILES else len(LONGEST_FILES)

    items.sort(key=turn)


@pytest.fixture(autouse=True)
def _no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without --config means no ./scripts/run that happens to run beside the tests."""
    monkeypatch.setattr(job_settings, "RUNNING", Path(gettempdir()) / "sluice-tests-know-of-no-run")
    monkeypatch.delenv(job_settings.CONFIG_VARIABLE, raising=False)


def _is_long(item: pytest.Item) -> bool:
    return _is_marked(item, "long") or item.path.parent == LONG


def _is_marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests run side by side; a test that depends on the clock (`alone`) runs only while no other does."""
    run_id = _run_id(item.config)
    if run_id is None:
        return (yield)
    with _turn(run_id, alone=_is_marked(item, "alone")):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the locks."""
    run_id = _run_id(session.config)
    for lock in _locks(run_id) if run_id else ():
        lock.unlink(missing_ok=True)


def _run_id(config: pytest.Config) -> str | None:
    """The id of the test run, if it has several processes."""
    run_id: str | None = getattr(config, "workerinput", {}).get("testrunuid")
    return run_id


@contextmanager
def _turn(run_id: str, *, alone: bool) -> Iterator[None]:
    """Share the machine with other tests, or have it alone; a test that waits for that keeps others from starting.

    This is `fcntl.flock` because filelock's FileLock has no shared mode. Its ReadWriteLock has one, but is a SQLite
    transaction that is polled for: the kernel's lock wakes the next test immediately and ends with its process.
    """
    gate, machine = _locks(run_id)
    with machine.open("w") as machine_file:
        with gate.open("w") as gate_file:
            fcntl.flock(gate_file, fcntl.LOCK_EX)
            fcntl.flock(machine_file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _locks(run_id: str) -> list[Path]:
    return [Path(gettempdir()) / f"sluice-tests-{run_id}-{name}" for name in ("gate", "machine")]


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """The umask of most machines, under which others may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of an embedded broker, which creates no topics; each test creates and uses its own."""
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars that a Spark session needs in addition to pyspark's own."""
    return SPARK_JARS.paths()


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The job's own Spark session, shared by all tests that need one."""
    from sluice.streaming.runtime.session import start_session

    settings = load_settings(environment={})
    session = start_session(replace(settings, spark=Properties(settings.spark | QUICK_JAVA)))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a broker with the plugin needs on its class path."""
    return plugin_classes(tmp_path_factory.mktemp("classes"))
