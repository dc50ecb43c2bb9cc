"""Parts shared by all tests: started once a run, real, and gone with it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pytest

from configs.settings import load_settings
from scripts.broker import Broker
from streaming import jars
from tests.e2e.job_process import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests run side by side, but one that goes by the clock (`alone`) only while no other does."""
    run_id = _run_id(item.config)
    if run_id is None:
        return (yield)
    with _turn(run_id, alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the locks."""
    run_id = _run_id(session.config)
    for lock in _locks(run_id) if run_id else ():
        lock.unlink(missing_ok=True)


def _run_id(config: pytest.Config) -> str | None:
    """Names the run, if it has several processes."""
    run_id: str | None = getattr(config, "workerinput", {}).get("testrunuid")
    return run_id


@contextmanager
def _turn(run_id: str, *, alone: bool) -> Iterator[None]:
    """Share the machine with other tests, or have it alone; who waits for that lets no further test begin."""
    gate, machine = _locks(run_id)
    with machine.open("w") as machine_file:
        with gate.open("w") as gate_file:
            fcntl.flock(gate_file, fcntl.LOCK_EX)
            fcntl.flock(machine_file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _locks(run_id: str) -> list[Path]:
    return [Path(gettempdir()) / f"sluice-tests-{run_id}-{name}" for name in ("gate", "machine")]


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of an embedded broker; topics are not created by themselves, and each test takes its own."""
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars that a Spark session needs beside pyspark's own."""
    return jars.spark_jars()


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The job's own session, for all tests that need one."""
    from streaming.session import start_session

    settings = load_settings(environment={})
    session = start_session(replace(settings, spark={**settings.spark, **QUICK_JAVA}))
    yield session
    session.stop()
