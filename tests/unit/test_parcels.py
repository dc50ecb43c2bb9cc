"""How rows travel between the stages: few and large, but never without bound."""

import json

from configs.settings import load_settings
from state.entity import DEFAULT, QuotaEntity
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from state.resolution import Quotas
from streaming.events import Source
from streaming.operator import packed
from streaming.planning import PlanSettings, parcels_of
from streaming.records import OutputRecord, Parcel, decode_parcel

PLAN = PlanSettings.of(load_settings(environment={}))._replace(shards=3)
QUOTAS = Quotas([QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, 10.0)])


def produce(offset: int) -> tuple[bytes, Source]:
    event = {
        "api": "Produce",
        "user": f"user-{offset}",
        "topic_partitions": [{"topic": "t", "partition": 0, "bytes": 5}],
    }
    return json.dumps(event).encode(), Source("requests", 0, offset, 1_700_000_000_000)


def offsets(parcels: list[Parcel]) -> list[int]:
    return sorted(row.offset for parcel in parcels for row in parcel.charge_rows)


def test_all_rows_for_a_shard_travel_in_one_parcel() -> None:
    """A dead letter among them."""
    events = [*(produce(offset) for offset in range(50)), (b"{", Source("requests", 0, 50, 0))]

    (parcels,) = parcels_of(events, QUOTAS, PLAN, decided_at_ms=0)

    decoded = {shard: decode_parcel(payload) for shard, payload in parcels.items()}
    assert set(decoded) == {0, 1, 2}
    assert offsets(list(decoded.values())) == list(range(50))
    (letter,) = [record for parcel in decoded.values() for record in parcel.records]
    assert letter.topic == "quota-dead-letters"


def test_parcels_are_sent_before_they_hold_too_much() -> None:
    """Every so many bytes of events, so that a worker's memory is bounded whatever the micro-batch is."""
    events = [produce(offset) for offset in range(50)]
    event_bytes = len(events[0][0])

    sent = list(parcels_of(events, QUOTAS, PLAN, 0, most_bytes_a_shard=10 * event_bytes // PLAN.shards))

    assert [len(offsets([decode_parcel(payload) for payload in parcels.values()])) for parcels in sent] == [10] * 5 + [
        0
    ]


def test_records_leave_the_operator_a_mebibyte_to_a_row() -> None:
    """By topic, in order; a record larger than that has its own row."""
    small = [OutputRecord("decisions", b"key", b"%6d" % number + b"x" * 250_000) for number in range(8)]
    large = OutputRecord("letters", None, b"y" * 3_000_000)

    rows = packed([*small[:5], large, *small[5:], large])

    assert [(topic, len(values)) for topic, values in zip(rows["topic"], rows["values"], strict=True)] == [
        ("decisions", 4),
        ("decisions", 4),
        ("letters", 1),
        ("letters", 1),
    ]
    values = [value for topic, of_row in zip(rows["topic"], rows["values"], strict=True) for value in of_row]
    assert [value for value in values if value.startswith(b" ")] == [record.value for record in small]
    assert rows["keys"][0] == [b"key"] * 4
    assert rows["keys"][2] == [None]
