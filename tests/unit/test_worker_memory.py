"""Memory of a worker for the clients and topics that it has seen: no more than it counts, as the allocators say."""

import ctypes
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from sluice.jvm.jars import REPOSITORY
from sluice.state.arithmetic import shapes
from sluice.state.arithmetic.counter import Charge
from sluice.state.arithmetic.shapes import Shapes, encode_shape
from sluice.state.contract.records import Request, TopicPartition
from sluice.state.quotas import resolution
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce import native_plan, pipeline
from sluice.streaming.enforce.native_plan import NativePlanner
from sluice.streaming.enforce.planning import PipelineSettings, Planner
from sluice.streaming.enforce.repetition import BatchAnswers, answered_places
from sluice.streaming.enforce.wire import Source
from tests.builders import DEFAULTS, quota
from tests.native_builds import library
from tests.native_fuzz import DECIDED_AT_MS, batches_of

_SETTINGS = PipelineSettings.of(DEFAULTS)
_KINDS = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
_MIB = 2**20


def _own_quotas(clients: int) -> Quotas:
    return Quotas([quota(kind, 9.0 + number, user=f"user-{number}") for number in range(clients) for kind in _KINDS])


def _events(first: int, last: int) -> list[bytes]:
    event = b'{"api":"Produce","user":"user-%d","client_id":"app","bytes":5,"request_time_ns":5}'
    return [event % number for number in range(first, last)]


def _sources(count: int) -> list[Source]:
    return [Source(_SETTINGS.requests_topic, 0, offset, DECIDED_AT_MS) for offset in range(count)]


def _planned(native: NativePlanner, values: list[bytes]) -> list[tuple[int, bytes]]:
    made = native.plan(batches_of(values, _sources(len(values)), len(values)), DECIDED_AT_MS)
    return [pair for each in made for pair in zip(each.pages, each.payloads.to_pylist(), strict=True)]


class _Mallinfo2(ctypes.Structure):
    """The figures of glibc's malloc, mallinfo2(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _malloc_bytes() -> int:
    """Bytes in use of malloc's; skips the test where it isn't that of glibc 2.33 or newer."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("malloc has no mallinfo2")
    mallinfo2.restype = _Mallinfo2
    gc.collect()
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Bytes that Python's objects take since the beginning."""

    def taken() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield taken
    finally:
        tracemalloc.stop()


def test_python_keeps_nothing_of_a_client_whose_plan_native_code_was_told() -> None:
    """Resolutions and shapes are kept of few."""
    native = NativePlanner(Planner(_own_quotas(12_000), _SETTINGS), _SETTINGS, library())
    with _traced() as taken:
        _planned(native, _events(0, 12_000))

        assert taken() < 16 * _MIB


def test_native_code_holds_no_more_of_plans_than_it_counts() -> None:
    native = NativePlanner(Planner(_own_quotas(20_000), _SETTINGS), _SETTINGS, library())
    _planned(native, _events(0, 10_000))
    before, counted = _malloc_bytes(), native.held_bytes()

    _planned(native, _events(10_000, 20_000))

    assert 0 < _malloc_bytes() - before <= native.held_bytes() - counted / 2 + _MIB, "half of it may have been spare"
    assert native.held_bytes() <= 20_000 * 800


def test_when_the_bound_is_reached_all_plans_are_told_anew_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more clients than the bound has room for."""
    monkeypatch.setattr(native_plan, "MAX_HELD_BYTES", 2 * _MIB)
    quotas = _own_quotas(9_000)
    native = NativePlanner(Planner(quotas, _SETTINGS), _SETTINGS, library())
    forgotten = 0
    for _ in range(2):
        for first in range(0, 9_000, 1_000):
            values, held = _events(first, first + 1_000), native.held_bytes()
            [expected] = pipeline.plan(zip(values, _sources(1_000), strict=True), quotas, _SETTINGS, DECIDED_AT_MS)

            assert _planned(native, values) == list(expected.items())
            assert native.held_bytes() <= 2 * _MIB
            forgotten += native.held_bytes() < held

    assert forgotten >= 2


def resident_mib_of(clients: int) -> float:
    """MiB that a planner takes with clients that have quotas of their own, as the kernel says."""
    quotas = _own_quotas(clients)
    gc.collect()
    before = _resident_mib()
    native = NativePlanner(Planner(quotas, _SETTINGS), _SETTINGS, library())
    for first in range(0, clients, 5_000):
        _planned(native, _events(first, first + 5_000))
    return _resident_mib() - before


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says what is resident")
def test_a_worker_takes_at_most_100_mib_for_60_000_clients_with_quotas_of_their_own() -> None:
    code = f"from {__name__} import resident_mib_of; print(resident_mib_of(60_000))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=600
    )

    assert 10 < float(ended.stdout) <= 100


class _Load(NamedTuple):
    """Events of many names: `cache` of the planner keeps something of each."""

    cache: str
    quotas: Callable[[int], Quotas]
    event: Callable[[int], Request]


def _all_clients(_: int) -> Quotas:
    return Quotas([quota(kind, 9.0, user=DEFAULT, client_id=DEFAULT) for kind in _KINDS])


def _topics(_: int) -> Quotas:
    return Quotas([quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 9.0, QuotaEntity(topic=DEFAULT))])


def _client(number: int) -> Request:
    return Request("Produce", user=f"user-{number}", client_id="app", bytes=5, request_time_ns=5)


def _topic(number: int) -> Request:
    return Request("Produce", topic_partitions=[TopicPartition(f"topic-{number}", 0, 5)])


_LOADS = (
    _Load("_clients", _own_quotas, _client),
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
    planner = Planner(load.quotas(5_000), _SETTINGS)
    batch, cache = planner.batch(DECIDED_AT_MS), vars(planner)[load.cache]

    with _traced() as taken:
        for number, source in enumerate(_sources(5_000)):
            planner.plan(load.event(number), source, DECIDED_AT_MS, batch)
        shapes._encoded.cache_clear()

        assert len(cache) == 5_000
        assert 0 < taken() <= 1.2 * cache._bytes


def test_a_shape_that_is_kept_decoded_takes_a_kilobyte_at_most() -> None:
    limits = [number + 0.25 for number in range(1_000)]
    encoded = [encode_shape([Charge(kind, "user", limit, False, []) for kind in _KINDS]) for limit in limits]
    with _traced() as taken:
        assert len([Shapes()[each] for each in encoded]) == 1_000
        assert 0 < taken() <= 1_000 * 1_024


def test_a_repeated_micro_batch_reads_any_number_of_decisions_in_the_same_memory() -> None:
    """Those since it began: half of them are on its own events again, as after a restored backup."""
    answers = BatchAnswers(frozenset({"decisions"}), "requests", frozenset({"A"}), None, {0: 0}, {0: 500})
    values = [b'{"decision_id":"requests-0-%d","verdict":"ALLOW","source_topic_id":"A"}' % n for n in range(1_000)]
    written, peaks = pa.RecordBatch.from_pydict({"value": values}), []
    for batches in (5, 50):
        with _traced():
            [found] = answered_places(answers)(iter([written] * batches))
            peaks.append(tracemalloc.get_traced_memory()[1])
        assert found.num_rows == 500
    assert peaks[1] <= 1.1 * peaks[0]
