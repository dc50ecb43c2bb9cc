"""The records of the topic: those of the page are read, and others passed over."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.json import encode

from sluice.jvm.jars import REPOSITORY
from sluice_insight.reports.span import Span
from sluice_insight.slow import line
from sluice_insight.slow.sources import TELEMETRY_TOPIC, HeardTelemetry
from sluice_telemetry.records import BROKER_METRICS, TOPIC, BrokerRecord, ClientRecord, read_record
from sluice_telemetry.subscription import METRICS

PAGE = (REPOSITORY / "extras" / "telemetry" / "README.md").read_text()

FIELDS: dict[str, Any] = {
    "at_ms": st.integers(0, 2**53),
    "metrics": st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
}


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


@given(st.builds(ClientRecord, **FIELDS) | st.builds(BrokerRecord, **FIELDS))
def test_insight_which_imports_no_other_extra_reads_the_same_of_a_record(record: ClientRecord | BrokerRecord) -> None:
    """Both say for themselves what a record is: a field that one of them gets or renames has to be in the other."""
    heard = HeardTelemetry()
    heard.take(None, encode(record))
    [read] = heard.within(Span(record.at_ms, record.at_ms + 1))

    said, found = to_builtins(record), to_builtins(read)
    assert found.keys() - said.keys() <= {"client_instance_id", "client_id", "user"}
    assert said.keys() - found.keys() <= {"software"}
    assert {name: found[name] for name in found.keys() & said.keys()} == {
        name: said[name] for name in found.keys() & said.keys()
    }


def test_insight_reads_the_topic_and_metrics_that_the_receiver_writes() -> None:
    source = Path(str(line.__file__)).read_text()
    of_clients = set(re.findall(r'"((?:producer|consumer)\.[\w.]+)"', source))
    of_brokers = set(re.findall(r'"((?:request|local|log|network)_\w+(?:\.\w+)?)"', source))

    assert TELEMETRY_TOPIC == TOPIC
    assert of_clients
    assert [name for name in of_clients if not f"org.apache.kafka.{name}".startswith(METRICS)] == []
    assert of_brokers
    assert of_brokers <= {*BROKER_METRICS}


def test_the_receiver_keeps_what_clients_are_asked_for() -> None:
    java = REPOSITORY / "extras" / "telemetry" / "src" / "main" / "java" / "sluice" / "telemetry" / "Otlp.java"
    wanted = re.findall(r'"([^"]+)"', java.read_text().partition("WANTED = List.of(")[2].partition(";")[0])

    assert wanted
    assert [name for name in METRICS if not any(part in f"{name}." for part in wanted)] == []
