"""Parts shared by all tests: started once a run, real, and gone with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from configs.settings import load_settings
from scripts.broker import Broker
from streaming import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    session = start_session(load_settings(environment={}))
    yield session
    session.stop()
