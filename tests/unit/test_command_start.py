"""Commands start quickly: what takes long to import is imported only by the commands that need it."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.recorded import event_at, write_tables

SLOW = {"pyspark", "pandas", "numpy", "pyarrow", "deltalake", "kafka", "jinja2", "starlette", "uvicorn", "httpx"}
WITH_TABLES = {"numpy", "pyarrow", "deltalake"}

SHOW = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
SLUICE = f"""
import sys
sys.argv = ["sluice", *sys.argv[1:]]
from sluice.cli.main import main
try:
    main()
finally:
    {SHOW}
"""


def slow_imports(program: str, *arguments: str) -> set[str]:
    """The modules of SLOW that a Python program has imported when it ends."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return SLOW & set(done.stderr.splitlines()[-1].split())


def test_the_command_line_itself_imports_nothing_slow() -> None:
    assert slow_imports(SLUICE, "--version") == set()


def test_top_imports_kafkas_client_alone() -> None:
    assert slow_imports(f"import kafka, sys, sluice_insight.commands.top\n{SHOW}") == {"kafka"}


def test_simulate_imports_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """It has one page, and no workers whose contract with PySpark would have to be tried."""
    quotas, events = tmp_path / "quotas.yaml", tmp_path / "events.jsonl"
    quotas.write_text("- {entity: {user: alice}, quotas: {producer_byte_rate: 5}}\n")
    events.write_text('{"api": "Produce", "user": "alice", "timestamp_ms": 1000, "bytes": 10}\n')

    assert slow_imports(SLUICE, "simulate", "--quotas", str(quotas), "--events", str(events)) == {"numpy", "pyarrow"}


@pytest.mark.parametrize("command", [["explain", "quota-requests-0-0"], ["usage", "--from", "2026-11-02"], ["slo"]])
def test_reports_import_neither_pandas_nor_spark_nor_kafka(tmp_path: Path, command: list[str]) -> None:
    at = datetime(2026, 11, 2, 10, tzinfo=UTC)
    tables = write_tables(tmp_path, [], [event_at(at, "alice", "Produce", bytes=1)], at)
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"delta: {{decisions: {tables.decisions}, quotas: {tables.quotas}}}\n")

    assert slow_imports(SLUICE, *command, "--config", str(settings)) == WITH_TABLES
