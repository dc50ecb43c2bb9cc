"""Steps decide and combine in native code (`decide.c`), which leaves what isn't plain to Python.

Python is the rule: `pipeline` and `sluice.state` make the same decisions, sums, waits and stored pages. A page, or a
group of partial decisions, is declined as a whole, and nothing of it is left then.
"""

import ctypes
import secrets
import weakref
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW
from sluice.state.contract.gateway_topics import Sums, WaitRecord
from sluice.state.contract.records import MAX_NAMED_GATEWAYS
from sluice.state.quotas.kinds import KINDS_BY_CODE, Coexistence, burst
from sluice.state.shares.counter_share import Metering
from sluice.state.shares.sums import PLACES, QUOTAS, sum_records
from sluice.state.store.pages import Evicted, max_entities_of_page, spans_ms
from sluice.streaming.enforce.engine import PageToDecide
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import (
    GROUPS,
    OVERHEAD_BYTES,
    Keyed,
    KeyedArrays,
    Outputs,
    most_awaited_bytes,
    wait_record,
)
from sluice_native import library as native
from sluice_native.library import ChargerSettings, native_library

_VALUES, _VALUE_ENDS, _KEYS, _KEY_ENDS, _HAS_KEY, _SUMS, _SUM_ENDS, _STORED, _STORED_ENDS, _WAITS = range(10)
"""The outputs of a call, by number."""

_MAX_SHORT = 2**31 - 1


class NativeSums(NamedTuple):
    """Sums that are JSON already: the newest time of each gateway, in the order of their places, and entities' sums."""

    base_ms: int
    gateways: dict[bytes, int]
    entities: list[bytes]

    def records(self, job_id: str | None, batch: int, quota_version: int, decided_at_ms: int = 0) -> Iterator[bytes]:
        """The records of the sums topic."""
        head = Sums(job_id, batch, quota_version, self.base_ms, QUOTAS, decided_at_ms=decided_at_ms)
        return sum_records(head, self.gateways, self.entities)


class NativelyCharged(NamedTuple):
    """The result for some pages: `stored` has None for each page that is declined, of which nothing else is here.

    `records` are those of all topics but waits. `partial_decisions` are encoded, by the number of their group.
    """

    records: dict[str, KeyedArrays]
    waits: Outputs
    partial_decisions: Keyed
    sums: NativeSums
    stored: list[bytes | None]
    evicted: Evicted


class _LongWait(msgspec.Struct, array_like=True):
    """A counter's long wait, or that it has none any more: `throttle_ms` is 0 then."""

    kind: int
    entity: bytes
    throttle_ms: int
    limit: float | None
    rate: float | None
    timestamp_ms: int
    offset: int


_LONG_WAITS = msgspec.msgpack.Decoder(list[_LongWait])


class NativeCharger:
    """The native counterpart of `pipeline.decide` with the pages' store, and of `pipeline.combine`.

    `decided` and `declined` count pages.
    """

    def __init__(self, settings: PipelineSettings, library: ctypes.CDLL) -> None:
        self._settings, self._native = settings, library
        self.decided = self.declined = 0
        rule = settings.quota
        of_pages = ChargerSettings(
            pages=settings.pages,
            max_entities=min(max_entities_of_page(settings.max_entities, settings.pages), _MAX_SHORT),
            samples=rule.client_window.samples,
            most_gateways=MAX_NAMED_GATEWAYS,
            window_ms=rule.client_window.window_ms,
            mutation_samples=MUTATION_RATE_WINDOW.samples,
            mutation_window_ms=MUTATION_RATE_WINDOW.window_ms,
            span_ms=max(spans_ms(rule)),
            idle_ms=max(settings.idle_expiry_ms, *spans_ms(rule)),
            max_record=settings.max_record_bytes,
            max_awaited=most_awaited_bytes(settings.max_record_bytes),
            overhead=OVERHEAD_BYTES,
            burst=burst(rule.controller_window, 1.0),
            span_s=Metering.of(rule).span_ms / 1000.0,
            seed=secrets.randbits(64),
        )
        self._handle = library.decide_new(of_pages)
        if not self._handle:
            raise MemoryError("native deciding")
        weakref.finalize(self, library.decide_free, self._handle)
        for kind in map(KINDS_BY_CODE.get, range(max(KINDS_BY_CODE) + 1)):
            name = b"" if kind is None else kind.value.encode()  # a removed kind has none
            more = (0, 0, 0) if kind is None else (native.FAMILIES.get(kind.family, 0), PLACES[kind], kind.consumer)
            self._call("decide_kind", name, len(name), *more)
        self._topics = list(dict.fromkeys([settings.decisions_topic, settings.sums_topic, settings.dead_letters_topic]))
        for topic in self._topics:
            is_of = topic == settings.decisions_topic, topic == settings.sums_topic
            self._call("decide_topic", topic.encode(), len(topic.encode()), *is_of)

    def decide(self, pages: Sequence[PageToDecide]) -> NativelyCharged:
        """Charge the counters of some pages with all rows that a micro-batch has for them."""
        batches = [batch for page in pages for batch in page.page_batches]
        payloads = [page.payload for page in pages]
        declined = (ctypes.c_uint8 * len(pages))()
        self._call(
            "decide_pages",
            len(pages),
            (ctypes.c_int32 * len(pages))(*[page.number for page in pages]),
            (ctypes.c_char_p * len(pages))(*payloads),
            (ctypes.c_uint64 * len(pages))(*[len(payload or b"") for payload in payloads]),
            (ctypes.c_uint32 * len(pages))(*[len(page.page_batches) for page in pages]),
            (ctypes.c_char_p * len(batches))(*batches),
            (ctypes.c_uint64 * len(batches))(*map(len, batches)),
            declined,
        )
        flags = list(declined)
        self.declined += sum(flags)
        self.decided += len(flags) - sum(flags)
        native.declined["pages"] += sum(flags)
        stored = [None if flag else one for one, flag in zip(self._texts(_STORED, _STORED_ENDS), flags, strict=True)]
        evicted = Evicted(*(self._native.decide_evicted(self._handle, is_owing) for is_owing in (False, True)))
        return NativelyCharged(self._records(), self._waits(), self._partial_decisions(), self._sums(), stored, evicted)

    def combine(self, payloads: Sequence[pa.Buffer]) -> dict[str, KeyedArrays] | None:
        """The records of `pipeline.combine` for a group of partial decisions, encoded; None if it has to make them."""
        count = len(payloads)
        addresses = (ctypes.c_void_p * count)(*[payload.address for payload in payloads])
        lengths = (ctypes.c_uint64 * count)(*[payload.size for payload in payloads])
        if self._call("combine_partial_decisions", count, addresses, lengths) == native.DECLINED:
            native.declined["groups"] += 1
            return None
        return self._records()

    def _records(self) -> dict[str, KeyedArrays]:
        records = {}
        for place, topic in enumerate(self._topics):
            ends = self._output(_VALUE_ENDS, place)
            if ends:
                has_keys = np.frombuffer(self._output(_HAS_KEY, place), np.bool_)
                keys = _array(self._output(_KEY_ENDS, place), self._output(_KEYS, place), has_keys)
                records[topic] = KeyedArrays(keys, _array(ends, self._output(_VALUES, place)))
        return records

    def _waits(self) -> Outputs:
        outputs, count = Outputs(), self._native.decide_waits(self._handle)
        for wait in _LONG_WAITS.decode(_listed(count, self._output(_WAITS))) if count else ():
            kind, record = KINDS_BY_CODE[wait.kind], _record_of(wait) if wait.throttle_ms else None
            outputs[self._settings.waits_topic].add(*wait_record(kind, wait.entity, record))
        return outputs

    def _partial_decisions(self) -> Keyed:
        groups, size = Keyed(), ctypes.c_uint64()
        for group in range(GROUPS):
            data = self._native.decide_partial_decisions(self._handle, group, size)
            if size.value:
                groups.add(b"%d" % group, ctypes.string_at(data, size.value))
        return groups

    def _sums(self) -> NativeSums:
        gateways, size, until_ms = dict[bytes, int](), ctypes.c_uint64(), ctypes.c_int64()
        while data := self._native.decide_gateway(self._handle, len(gateways), size, until_ms):
            gateways[ctypes.string_at(data, size.value)] = until_ms.value
        return NativeSums(self._native.decide_base_ms(self._handle), gateways, self._texts(_SUMS, _SUM_ENDS))

    def _texts(self, output: int, ends: int, of: int = 0) -> list[bytes]:
        data = self._output(output, of)
        bounds = np.frombuffer(self._output(ends, of), np.int32).tolist()
        return [data[first:last] for first, last in pairwise([0, *bounds])]

    def _output(self, output: int, of: int = 0) -> bytes:
        size = ctypes.c_uint64()
        data = self._native.decide_output(self._handle, output, of, size)
        return ctypes.string_at(data, size.value) if size.value else b""

    def _call(self, name: str, *arguments: object) -> int:
        outcome: int = getattr(self._native, name)(self._handle, *arguments)
        if outcome < 0:
            raise MemoryError("native deciding")
        return outcome


def _array(ends: bytes, data: bytes, has: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None) -> pa.Array:
    """Binary values one after another, with the end of each as 4 bytes, and whether it is one; else it is null."""
    offsets = np.frombuffer(b"\0\0\0\0" + ends, np.int32)
    valid = None if has is None else pa.py_buffer(np.packbits(has, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _listed(count: int, packed: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4) + packed


def _record_of(wait: _LongWait) -> WaitRecord:
    until_ms = wait.timestamp_ms + wait.throttle_ms
    return WaitRecord(until_ms, wait.throttle_ms, wait.limit, wait.rate, wait.timestamp_ms, wait.offset)


def native_charger(settings: PipelineSettings) -> NativeCharger | None:
    """The native counterpart of `pipeline.decide`, which a worker process keeps; None without the library.

    Sequential coexistence is Python's alone: it checks a quota again at a later time.
    """
    library = native_library()
    if library is None or settings.quota.coexistence is Coexistence.SEQUENTIAL:
        return None
    return kept_charger(settings, library)


kept_charger = lru_cache(maxsize=2)(NativeCharger)  # pages are split for some tasks alone
