"""Live figures and reports start quickly: they import what they need alone."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from recorded import event_at, write_tables
from tests.slow_imports import SHOW, SLUICE, slow_imports

WITH_TABLES = {"numpy", "pyarrow", "deltalake"}


def test_top_imports_kafkas_client_alone() -> None:
    assert slow_imports(f"import kafka, sys, sluice_insight.commands.top\n{SHOW}") == {"kafka"}


@pytest.mark.parametrize("command", [["explain", "quota-requests-0-0"], ["usage", "--from", "2026-11-02"], ["slo"]])
def test_reports_import_neither_pandas_nor_spark_nor_kafka(tmp_path: Path, command: list[str]) -> None:
    at = datetime(2026, 11, 2, 10, tzinfo=UTC)
    tables = write_tables(tmp_path, [], [event_at(at, "alice", "Produce", bytes=1)], at)
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"delta: {{decisions: {tables.decisions}, quotas: {tables.quotas}}}\n")

    assert slow_imports(SLUICE, *command, "--config", str(settings)) == WITH_TABLES
