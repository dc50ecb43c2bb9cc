"""Every scenario of the case file gives Kafka's numbers: in Python and in native code."""

import pytest

from tests.builders import Json
from tests.kafka_cases import Engine, GivenEngine, differences


@pytest.mark.parametrize("engine", [Engine, GivenEngine])
def test_scenario_gives_kafkas_numbers(kafka_case: Json, engine: type[Engine]) -> None:
    """Each field that the case expects of a step is what our step answered."""
    assert differences(kafka_case, engine) == []
