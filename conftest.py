"""Options of the test run."""

from pathlib import Path

import pytest

DEFAULT_CASES = Path(__file__).parent / "tests" / "data" / "kafka-cases.jsonl"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cases FILE`: another file of Kafka scenarios for tests/unit/test_kafka_cases.py. `--long`: the long tests."""
    parser.addoption(
        "--cases", type=Path, default=DEFAULT_CASES, help="file of Kafka scenarios, one JSON object a line"
    )
    parser.addoption("--long", action="store_true", help="run the tests marked long, and only those")
