"""Memory of the native planner for the clients that it has seen: no more than it counts, as the allocators say."""

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from native_fuzz.builds import TESTS, library
from native_fuzz.plans import batches_of
from sluice.jvm.jars import REPOSITORY
from sluice.streaming.enforce import pipeline
from sluice_native import plan as native_plan
from sluice_native.plan import NativePlanner
from tests.worker_memory import DECIDED_AT_MS, SETTINGS, own_quotas, sources, traced

_MIB = 2**20


def _events(first: int, last: int) -> list[bytes]:
    event = b'{"api":"Produce","user":"user-%d","client_id":"app","bytes":5,"request_time_ns":5}'
    return [event % number for number in range(first, last)]


def _planned(native: NativePlanner, values: list[bytes]) -> list[tuple[int, bytes]]:
    made = native.plan(batches_of(values, sources(len(values)), len(values)), DECIDED_AT_MS)
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


def test_python_keeps_nothing_of_a_client_whose_plan_native_code_was_told() -> None:
    """Resolutions and shapes are kept of few."""
    native = NativePlanner(own_quotas(12_000), SETTINGS, library())
    with traced() as taken:
        _planned(native, _events(0, 12_000))

        assert taken() < 16 * _MIB


def test_native_code_holds_no_more_of_plans_than_it_counts() -> None:
    native = NativePlanner(own_quotas(20_000), SETTINGS, library())
    _planned(native, _events(0, 10_000))
    before, counted = _malloc_bytes(), native.held_bytes()

    _planned(native, _events(10_000, 20_000))

    assert 0 < _malloc_bytes() - before <= native.held_bytes() - counted / 2 + _MIB, "half of it may have been spare"
    assert native.held_bytes() <= 20_000 * 800


def test_when_the_bound_is_reached_all_plans_are_told_anew_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more clients than the bound has room for."""
    monkeypatch.setattr(native_plan, "MAX_HELD_BYTES", 2 * _MIB)
    quotas = own_quotas(9_000)
    native = NativePlanner(quotas, SETTINGS, library())
    forgotten = 0
    for _ in range(2):
        for first in range(0, 9_000, 1_000):
            values, held = _events(first, first + 1_000), native.held_bytes()
            [expected] = pipeline.plan(zip(values, sources(1_000), strict=True), quotas, SETTINGS, DECIDED_AT_MS)

            assert _planned(native, values) == list(expected.items())
            assert native.held_bytes() <= 2 * _MIB
            forgotten += native.held_bytes() < held

    assert forgotten >= 2


def resident_mib_of(clients: int) -> float:
    """MiB that a planner takes with clients that have quotas of their own, as the kernel says."""
    quotas = own_quotas(clients)
    gc.collect()
    before = _resident_mib()
    native = NativePlanner(quotas, SETTINGS, library())
    for first in range(0, clients, 5_000):
        _planned(native, _events(first, first + 5_000))
    return _resident_mib() - before


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says what is resident")
def test_a_worker_takes_at_most_100_mib_for_60_000_clients_with_quotas_of_their_own() -> None:
    code = "from integration.test_native_memory import resident_mib_of; print(resident_mib_of(60_000))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    assert 10 < float(ended.stdout) <= 100
