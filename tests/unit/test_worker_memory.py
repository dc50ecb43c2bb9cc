"""Memory of a worker for the clients and topics that it has seen: no more than it counts, as the allocators say."""

import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest

from sluice.state.arithmetic import shapes
from sluice.state.arithmetic.counter import Charge
from sluice.state.arithmetic.shapes import Shapes, encode_shape
from sluice.state.contract.records import Request, TopicPartition
from sluice.state.quotas import resolution
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.planning import Planner
from sluice.streaming.enforce.repetition import BatchAnswers, answered_places
from tests.builders import quota
from tests.worker_memory import DECIDED_AT_MS, KINDS, SETTINGS, own_quotas, sources, traced


class _Load(NamedTuple):
    """Events of many names: `cache` of the planner keeps something of each."""

    cache: str
    quotas: Callable[[int], Quotas]
    event: Callable[[int], Request]


def _all_clients(_: int) -> Quotas:
    return Quotas([quota(kind, 9.0, user=DEFAULT, client_id=DEFAULT) for kind in KINDS])


def _topics(_: int) -> Quotas:
    return Quotas([quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 9.0, QuotaEntity(topic=DEFAULT))])


def _client(number: int) -> Request:
    return Request("Produce", user=f"user-{number}", client_id="app", bytes=5, request_time_ns=5)


def _topic(number: int) -> Request:
    return Request("Produce", topic_partitions=[TopicPartition(f"topic-{number}", 0, 5)])


_LOADS = (
    _Load("_clients", own_quotas, _client),
    _Load("_clients", _all_clients, _client),
    _Load("_clients", lambda _: Quotas(), _client),
    _Load("_partitions", _topics, _topic),
    _Load("_unmetered", lambda _: Quotas(), _topic),
)


@pytest.mark.parametrize(
    "load", _LOADS, ids=["own quotas", "one quota", "no quota", "topics", "topics without a quota"]
)
def test_python_s_plans_take_no_more_than_they_count(load: _Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "_FEW_CACHED_BYTES", 0)  # only what the plans themselves take
    planner = Planner(load.quotas(5_000), SETTINGS)
    batch, cache = planner.batch(DECIDED_AT_MS), vars(planner)[load.cache]

    with traced() as taken:
        for number, source in enumerate(sources(5_000)):
            planner.plan(load.event(number), source, DECIDED_AT_MS, batch)
        shapes._encoded.cache_clear()

        assert len(cache) == 5_000
        assert 0 < taken() <= 1.2 * cache._bytes


def test_a_shape_that_is_kept_decoded_takes_a_kilobyte_at_most() -> None:
    limits = [number + 0.25 for number in range(1_000)]
    encoded = [encode_shape([Charge(kind, "user", limit, False, []) for kind in KINDS]) for limit in limits]
    with traced() as taken:
        assert len([Shapes()[each] for each in encoded]) == 1_000
        assert 0 < taken() <= 1_000 * 1_024


def test_a_repeated_micro_batch_reads_any_number_of_decisions_in_the_same_memory() -> None:
    """Those since it began: half of them are on its own events again, as after a restored backup."""
    answers = BatchAnswers(frozenset({"decisions"}), "requests", frozenset({"A"}), None, {0: 0}, {0: 500})
    values = [b'{"decision_id":"requests-0-%d","verdict":"ALLOW","source_topic_id":"A"}' % n for n in range(1_000)]
    written, peaks = pa.RecordBatch.from_pydict({"value": values}), []
    for batches in (5, 50):
        with traced():
            [found] = answered_places(answers)(iter([written] * batches))
            peaks.append(tracemalloc.get_traced_memory()[1])
        assert found.num_rows == 500
    assert peaks[1] <= 1.1 * peaks[0]
