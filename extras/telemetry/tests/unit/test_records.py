"""The records of the topic: those of the page are read, and others passed over."""

import re

import pytest

from sluice.jvm.jars import REPOSITORY
from sluice_telemetry.records import BROKER_METRICS, BrokerRecord, ClientRecord, read_record
from sluice_telemetry.subscription import METRICS

PAGE = (REPOSITORY / "extras" / "telemetry" / "README.md").read_text()


def test_the_examples_of_the_page_are_records() -> None:
    client, broker = (read_record(text.encode()) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))

    assert isinstance(client, ClientRecord)
    assert isinstance(broker, BrokerRecord)
    assert {*broker.metrics} < {*BROKER_METRICS}


def test_the_page_says_what_each_figure_of_a_broker_is() -> None:
    assert [name for name in BROKER_METRICS if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b'{"kind": "later"}', b'{"kind": "client", "at_ms": 1}'])
def test_what_is_no_record_is_passed_over(value: bytes) -> None:
    assert read_record(value) is None


def test_the_receiver_keeps_what_clients_are_asked_for() -> None:
    java = REPOSITORY / "extras" / "telemetry" / "src" / "main" / "java" / "sluice" / "telemetry" / "Otlp.java"
    wanted = re.findall(r'"([^"]+)"', java.read_text().partition("WANTED = List.of(")[2].partition(";")[0])

    assert wanted
    assert [name for name in METRICS if not any(part in f"{name}." for part in wanted)] == []
