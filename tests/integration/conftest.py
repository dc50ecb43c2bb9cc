"""Tables for tests of the audit query, and the job that most tests of a whole job share."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from scripts.testbed.broker import free_ports
from sluice.configs.settings import Settings
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.unreadable import unreadable_table
from sluice.streaming.audit.writer import audit_feeds
from tests.integration.audit_batches import tables_in
from tests.integration.job_process import AUDITED, GENERATED_CODE, JobProcess


@pytest.fixture(scope="session")
def empty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of empty tables. To copy it takes no time; to create the tables takes seconds."""
    folder = tmp_path_factory.mktemp("empty")
    settings = tables_in(folder)
    for feed in audit_feeds(settings):
        for table in feed.tables:
            create_table(spark, table)
    create_table(spark, unreadable_table(settings.delta.unreadable))
    return folder


@pytest.fixture
def tables(empty: Path, tmp_path: Path) -> Settings:
    """Empty tables for one test."""
    return tables_in(Path(copytree(empty, tmp_path / "tables")))


SHARED_QUOTAS = [
    {"entity": {"user": "kip599"}, "quotas": {"controller_mutation_rate": 5}},
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 1, "request_percentage": 1}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 100, "consumer_byte_rate": 100}},
    {"entity": {"topic": "orders"}, "quotas": {"producer.byte.rate": 50}},
    {"entity": {"user": "greedy"}, "quotas": {"controller_mutation_rate": 10}},
    {"entity": {"user": "producer"}, "quotas": {"producer_byte_rate": 1_000_000}},
    {"entity": {"user": "long-wait"}, "quotas": {"producer_byte_rate": 10}},
]


@pytest.fixture(scope="session")
def shared_job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """One running job; a test that shares it has users of its own, and counts from what was there before.

    It accepts events from clocks that run ahead by ten minutes.
    """
    job = JobProcess(
        tmp_path_factory.mktemp("shared"),
        kafka_broker,
        SHARED_QUOTAS,
        quota={"controller.quota.window.num": 100},
        audit=AUDITED,
        enforce={"max_future_ms": 600_000},
        health={"port": free_ports(1)[0]},
        spark=GENERATED_CODE,
    )
    job.start()
    yield job
    job.stop()
