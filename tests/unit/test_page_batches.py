"""Rows between the stages: few and large, but never without bound."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest

from sluice.configs.settings import load_settings
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline import combine, most_planned_bytes, plan
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import (
    KeyedArrays,
    OutputRecord,
    Outputs,
    PartialDecision,
    Source,
    decode_group,
    decode_page_batch,
    encoded_groups,
    packed,
)
from tests.builders import quota

SETTINGS = PipelineSettings.of(load_settings(environment={}))._replace(pages=3)
QUOTAS = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 10.0, user=DEFAULT)])


def produce(offset: int) -> tuple[bytes, Source]:
    event = {
        "api": "Produce",
        "user": f"user-{offset}",
        "topic_partitions": [{"topic": "t", "partition": 0, "bytes": 5}],
    }
    return json.dumps(event).encode(), Source("requests", 0, offset, 1_700_000_000_000)


def offsets(page_batches: Mapping[int, bytes]) -> list[int]:
    decoded = map(decode_page_batch, page_batches.values())
    return sorted(row.offset for page_batch in decoded for row in page_batch.charge_rows)


def test_all_rows_for_a_page_travel_in_one_page_batch() -> None:
    """A dead letter among them."""
    events = [*(produce(offset) for offset in range(50)), (b"{", Source("requests", 0, 50, 0))]

    (page_batches,) = plan(events, QUOTAS, SETTINGS, decided_at_ms=0)

    assert set(page_batches) == {0, 1, 2}
    assert offsets(page_batches) == list(range(50))
    (letter,) = [record for each in page_batches.values() for record in decode_page_batch(each).records]
    assert letter.topic == "quota-dead-letters"


def test_page_batches_are_sent_before_they_hold_too_much() -> None:
    """A worker's memory is bounded, whatever the size of the micro-batch."""
    event_bytes = -(-most_planned_bytes(SETTINGS) // 10)
    events = [(value.ljust(event_bytes), source) for value, source in map(produce, range(50))]

    sent = list(plan(events, QUOTAS, SETTINGS, decided_at_ms=0))

    assert [len(offsets(page_batches)) for page_batches in sent] == [10] * 5 + [0]


@pytest.mark.parametrize("are_arrays", [False, True])
def test_records_leave_the_operator_a_mebibyte_to_a_row(are_arrays: bool) -> None:
    """By topic, in order; a record larger than that has its own row. Native code's records are arrays of Arrow."""
    small = [OutputRecord("decisions", b"key", b"%6d" % number + b"x" * 250_000) for number in range(8)]
    large = OutputRecord("letters", None, b"y" * 3_000_000)

    outputs = Outputs()
    for record in (*small[:5], large, *small[5:], large):
        outputs[record.topic].add(record.key, record.value)

    arrays = {
        topic: KeyedArrays(*(pa.array(column, pa.binary()) for column in (keyed.keys, keyed.values)))
        for topic, keyed in outputs.items()
    }
    rows = [row.with_lists() for row in packed(arrays if are_arrays else outputs)]

    assert [(row.topic, len(row.values)) for row in rows] == [
        ("decisions", 4),
        ("decisions", 4),
        ("letters", 1),
        ("letters", 1),
    ]
    assert not any(row.partial for row in rows)
    values = [value for row in rows for value in row.values if value is not None]
    assert [value for value in values if value.startswith(b" ")] == [record.value for record in small]
    assert rows[0].keys == [b"key"] * 4
    assert rows[2].keys == [None]


def test_partial_decisions_leave_the_operator_in_rows_without_a_topic() -> None:
    """They are marked as partial, apart from the records, and all of a request are under the same key."""
    partial = [PartialDecision(0, offset, row, 0, 0, None, b"", b"", None) for offset in range(100) for row in (0, 1)]

    (row,) = packed(Outputs(), encoded_groups(partial))

    assert (row.partial, row.topic) == (True, None)
    groups = [decode_group(value or b"") for value in row.values]
    assert len(set(row.keys)) == len(groups)
    assert [len({each.offset for each in group}) * 2 for group in groups] == [len(group) for group in groups]


def test_a_partial_decision_without_the_first_one_of_its_request_makes_no_decision() -> None:
    second = PartialDecision(0, 7, 1, 0, 0, None, b"", b"{}", None)

    with pytest.raises(ValueError, match="the first row of a request carries its decision"):
        combine([second], SETTINGS)
