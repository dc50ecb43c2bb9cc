"""Every scenario of the case file gives Kafka's numbers: in Python and in native code."""

import json
from pathlib import Path

import pytest

from tests.builders import Json
from tests.kafka_cases import Engine, GivenEngine, differences, in_scope


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each line of the file given with `--cases`."""
    if "case" in metafunc.fixturenames:
        path: Path = metafunc.config.getoption("--cases")
        cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        metafunc.parametrize("case", [case for case in cases if in_scope(case)], ids=lambda case: case["id"])


@pytest.mark.parametrize("engine", [Engine, GivenEngine])
def test_scenario_gives_kafkas_numbers(case: Json, engine: type[Engine]) -> None:
    """Each field that the case expects of a step is what our step answered."""
    assert differences(case, engine) == []
