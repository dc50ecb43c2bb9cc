"""Tables for tests of the audit query."""

from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.unreadable import unreadable_table
from sluice.streaming.audit.writer import audit_feeds
from tests.integration.audit_batches import tables_in


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
