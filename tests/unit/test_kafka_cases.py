"""Every scenario of the case file gives Kafka's numbers: in Python, in native code, and as what-if charges."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Json
from tests.kafka_cases import ArrayEngine, Engine, GivenEngine, in_scope, replay


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each line of the file given with `--cases`."""
    if "case" in metafunc.fixturenames:
        path: Path = metafunc.config.getoption("--cases")
        cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        metafunc.parametrize("case", [case for case in cases if in_scope(case)], ids=lambda case: case["id"])


@pytest.mark.parametrize("engine", [Engine, GivenEngine, ArrayEngine])
def test_scenario_gives_kafkas_numbers(case: Json, engine: type[Engine]) -> None:
    """Each field that the case expects of a step is what our step answered."""
    expected, answers = case["expected"], replay(case, engine)

    differences = list(_differences(expected["events"], answers))
    if "level" in expected:
        differences += [f"level {answer['level']}" for answer in answers if answer["level"] != expected["level"]]
    if "applied_between" in expected:
        fewest, most = expected["applied_between"]
        applied = sum(answer["applied"] for answer in answers)
        differences += [] if fewest <= applied <= most else [f"{applied} applied, expected {fewest} to {most}"]

    assert differences == []


def _differences(expected_events: list[Json], answers: list[Json]) -> Iterator[str]:
    for step, expected in enumerate(expected_events):
        for field, value in expected.items():
            if field.startswith("oracle_") or field == "arith":
                continue
            if field not in answers[step]:
                yield f"step {step}: no answer for {field!r}"
            elif not _equal(value, answers[step][field]):
                yield f"step {step}: {field} is {answers[step][field]!r}, expected {value!r}"


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return bool(expected == actual)
    if isinstance(expected, dict):
        return expected.keys() <= actual.keys() and all(_equal(value, actual[key]) for key, value in expected.items())
    if isinstance(expected, list):
        if expected and "entity" in expected[0]:  # entities come in no particular order
            expected, actual = sorted(expected, key=_entity), sorted(actual, key=_entity)
        return len(expected) == len(actual) and all(_equal(*pair) for pair in zip(expected, actual, strict=True))
    return math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9)


def _entity(entry: Json) -> str:
    return json.dumps(entry["entity"], sort_keys=True)
