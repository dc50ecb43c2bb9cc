"""Step plan with plain events planned natively (`plan.c`), all others by Python at their place.

Python is the rule: native code is told the plans of `Planner`, by traits, tenant and, where a quota names one of them,
names. It knows no quota, but the members of tenants, by whose globs it finds the tenant of a client. An event that
isn't plain, or whose plan it hasn't been told, is planned by `Planner`, and its rows are added.
"""

import ctypes
import secrets
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sluice.state.contract.records import BYTES_APIS, HEARTBEAT_API, CountedEntity, Overrides, Request, Unmute
from sluice.state.decisions.charge_plan import (
    MUTATION_APIS,
    PLANNED_APIS,
    POINTS_PER_NANOSECOND,
    PartitionCharges,
    bytes_by_partition,
    traits_of,
)
from sluice.state.decisions.checks import most_mutations
from sluice.state.decisions.decision import unmetered_text
from sluice.state.quotas.entity import bounded_name, sanitize
from sluice.state.quotas.kinds import QuotaKind, RequestPolicy
from sluice.state.quotas.name_cache import ENTRY_BYTES
from sluice.state.quotas.tenants import Tenants, glob_ends, is_glob
from sluice.streaming.enforce.engine import PlannedPages
from sluice.streaming.enforce.pipeline import most_planned_bytes
from sluice.streaming.enforce.planning import Alike, BatchText, PipelineSettings, Planner, read_event
from sluice.streaming.enforce.wire import OutputRecord, Source, most_answer_bytes
from sluice_native import library as native
from sluice_native.library import NativeSettings, native_library

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Most bytes that native code and this module hold of the plans that were told: with more, all are told anew."""

_TO_1_GIB = 2**30
_MAX_TAKEN = 2**31 - 1
_PACK = msgspec.msgpack.Encoder()
_JSON = msgspec.json.Encoder()


class NativePlanner:
    """The native counterpart of a `Planner`, which it asks for plans.

    `declined` counts the events that Python planned, or whose plan it had to tell, and `planned` all others.
    """

    def __init__(self, planner: Planner, settings: PipelineSettings, library: ctypes.CDLL) -> None:
        self._planner, self._settings, self._native = planner, settings, library
        self._quotas = planner.quotas
        self._topics: dict[tuple[str, bytes], int] = {}
        """The number of the plan that topics of one limit have in common, by the prefix and shape of their counters."""
        self._topics_bytes = 0
        self._modes: dict[PartitionCharges, int] = {}
        self.planned = self.declined = 0
        is_draft = settings.quota.policy is RequestPolicy.KIP124_DRAFT
        limits = settings.limits
        of_events = NativeSettings(
            pages=settings.pages,
            max_touched=min(limits.max_charges, _TO_1_GIB),
            max_mutated=min(max(limits.max_charges, most_mutations(limits.max_charges)), _TO_1_GIB),
            max_event=min(limits.max_event_bytes, _TO_1_GIB),
            max_future_ms=limits.max_future_ms,
            max_past_ms=limits.max_past_ms,
            max_partitions=settings.quota.max_partitions_per_request,
            max_answer=max(0, most_answer_bytes(settings.max_record_bytes)),
            points=POINTS_PER_NANOSECOND,
            network_points=0.0 if is_draft else POINTS_PER_NANOSECOND,
            divisor=float(settings.quota.num_io_threads) if is_draft else 1.0,
            seed=secrets.randbits(64),
        )
        head = _JSON.encode(settings.requests_topic)[1:-1] + b"-"
        topics = [_PACK.encode(topic) for topic in (settings.decisions_topic, settings.sums_topic)]
        self._handle = library.plan_new(of_events, head, len(head), *_texts(*topics))
        if not self._handle:
            raise MemoryError("the native planner")
        weakref.finalize(self, library.plan_free, self._handle)
        for api in sorted(PLANNED_APIS):
            strict_from = MUTATION_APIS.get(api, -1)
            self._call("plan_api", *_texts(api.encode()), api in BYTES_APIS, api == HEARTBEAT_API, strict_from)
        for part, names in zip(b"uc", planner.quotas.client_names(), strict=True):
            for name in names:
                self._call("plan_name", part, *_texts(name.encode()))
        self._tell_members(planner.quotas.tenants)

    def plan(
        self, batches: Iterable[Any], decided_at_ms: int, overrides: Overrides | None = None
    ) -> Iterator[PlannedPages]:
        """As `pipeline.plan`, of Arrow batches of Kafka records: value, partition, offset and timestamp_ms."""
        if self._planner.quotas is not self._quotas:
            self._quotas = self._planner.quotas
            self._forget()
        text = self._planner.batch(decided_at_ms, overrides)
        self._call("plan_begin", *_texts(bytes(text.text)))
        for instance, of_gateway in text.of_gateways.items():
            self._call("plan_tighten", *_texts(instance.encode(), bytes(of_gateway)))
        max_bytes = most_planned_bytes(self._settings)
        for batch in batches:
            yield from self._plan_batch(batch, decided_at_ms, text, max_bytes)
        yield self._taken()

    def _plan_batch(self, batch: Any, decided_at_ms: int, text: BatchText, max_bytes: int) -> Iterator[PlannedPages]:
        values = batch.column("value").cast(pa.binary())
        _, ends, data = values.buffers()
        partitions, offsets, times_ms = (
            np.ascontiguousarray(batch.column(name).to_numpy(zero_copy_only=False), kind)
            for name, kind in (("partition", np.int32), ("offset", np.int64), ("timestamp_ms", np.int64))
        )
        outcome, first, told, count = ctypes.c_int32(), 0, -1, len(values)
        columns = (
            data.address if data is not None else None,
            ends.address + 4 * values.offset if ends is not None else None,
            partitions.ctypes.data,
            offsets.ctypes.data,
            times_ms.ctypes.data,
        )
        while first < count:
            last = self._native.plan_events(self._handle, *columns, first, count, max_bytes, outcome)
            self.planned += last - first - (first == told < last)
            first = last
            if outcome.value in (native.DECLINED, native.UNKNOWN):
                numbers = int(partitions[first]), int(offsets[first]), int(times_ms[first])
                source = Source(self._settings.requests_topic, *numbers)
                event = read_event(values[first].as_py(), source, self._settings)
                if first != told:
                    self.declined += 1
                    native.declined["events"] += 1
                if outcome.value == native.UNKNOWN and isinstance(event, Request) and first != told:
                    self._tell(event)
                    told = first
                else:
                    self._plan_in_python(event, source, decided_at_ms, text)
                    first += 1
            elif outcome.value:
                raise MemoryError("the native planner")
            if self._native.plan_bytes(self._handle) >= max_bytes:
                yield self._taken()

    def _plan_in_python(
        self, event: Request | Unmute | OutputRecord, source: Source, decided_at_ms: int, text: BatchText
    ) -> None:
        planned = [event] if isinstance(event, OutputRecord) else self._planner.plan(event, source, decided_at_ms, text)
        for each in planned:
            if isinstance(each, OutputRecord):
                self._call("plan_add", source.offset % self._settings.pages, True, *_texts(_PACK.encode(each)))
            else:
                self._call("plan_add", each[0], False, *_texts(_PACK.encode(each[1])))

    def _taken(self) -> PlannedPages:
        count = ctypes.c_uint32()
        size = self._native.plan_size(self._handle, count)
        if size > _MAX_TAKEN:
            raise MemoryError("the native planner's page batches")  # Arrow's offsets have 31 bits
        pages, ends = np.empty(count.value, np.int32), np.empty(count.value + 1, np.int32)
        data = np.empty(size, np.uint8)
        self._native.plan_take(self._handle, *(array.ctypes.data for array in (pages, ends, data)), size)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        return PlannedPages(pages.tolist(), pa.Array.from_buffers(pa.binary(), len(pages), buffers))

    def _tell(self, request: Request) -> None:
        """Tell the plan of the event that was unknown, for all that are planned alike."""
        if self.held_bytes() > MAX_HELD_BYTES:
            self._forget()
        buffer = ctypes.create_string_buffer(native.MAX_KEY_BYTES)
        length = self._native.plan_key_of(self._handle, buffer)
        alike = self._planner.alike_of(traits_of(request))
        self._keep(buffer.raw[:length], self._made(alike))
        for of_mode in alike.plan.partitions:
            if of_mode.quotas is not None:
                mode = self._mode(of_mode)
                for name in bytes_by_partition(request):
                    key = bytes((255, mode & 255)) + name[0].encode()
                    self._keep(key, self._of_topic(of_mode, *name))

    def held_bytes(self) -> int:
        """Bytes that all plans take when one more is told."""
        of_native: int = self._native.plan_held(self._handle)
        return of_native + self._topics_bytes

    def _tell_members(self, tenants: Tenants) -> None:
        """Tell the members of tenants, from the one that ranks lowest to the highest."""
        numbers = {tenant: number for number, tenant in enumerate(tenants.names, 1)}
        for user, client_id, tenant in reversed(tenants.client_members()):
            glob = user or client_id
            of_ends = is_glob(glob), *(len(end.encode()) for end in glob_ends(glob))
            texts = _texts(user.encode(), client_id.encode())
            self._call("plan_member", b"uc"[not user], *of_ends, *texts, numbers[tenant])

    def _made(self, alike: Alike) -> int:
        number = self._call("plan_make", not alike.plan.is_exempt)
        for of_client in alike.counters:
            has = native.HAS_USER * of_client.has_user + native.HAS_CLIENT_ID * of_client.has_client_id
            counter = of_client.counter
            prefix = of_client.prefix if has else counter.key
            is_apart = has and ">" not in prefix
            entity, page = b"" if has else counter.entity, -1 if is_apart else counter.page
            self._counter(of_client.kinds, counter.shape, prefix, entity, page, has)
        for of_mode in alike.plan.partitions:
            texts, mode = (b"",) * 4, 0
            if of_mode.quotas is None:
                texts = _unmetered_texts(of_mode.kind)
            else:
                mode = self._mode(of_mode)
            lengths = (ctypes.c_uint32 * 4)(*map(len, texts))
            self._call("plan_mode", of_mode.before, mode, b"".join(texts), lengths)
        return number

    def _of_topic(self, of_mode: PartitionCharges, topic: str, partition: int) -> int:
        counter = self._planner.partition_counter(of_mode, (topic, partition))
        prefix = "" if counter is None else counter.key.removesuffix(f"{sanitize(bounded_name(topic))}|{partition}")
        shared = prefix, b"" if counter is None else counter.shape
        number = self._topics.get(shared)
        if number is None:
            number = self._call("plan_make", True)
            if counter is not None:
                self._counter([of_mode.kind], counter.shape, prefix, b"", -1, native.HAS_TOPIC)
            self._topics[shared] = number
            self._topics_bytes += ENTRY_BYTES + len(prefix) + len(shared[1])
        return number

    def _counter(
        self, kinds: Sequence[QuotaKind], shape: bytes, prefix: str, entity: bytes, page: int, has: int
    ) -> None:
        """Tell a counter of the plan that was made last."""
        families = bytes(native.FAMILIES.get(kind.family, 0) for kind in kinds)
        self._call("plan_counter", *_texts(prefix.encode(), entity, _PACK.encode(shape)), page, has, *_texts(families))

    def _mode(self, of_mode: PartitionCharges) -> int:
        """The number of the charges of topic-partitions under these quotas, from 1."""
        return self._modes.setdefault(of_mode._replace(before=0), len(self._modes) + 1)

    def _keep(self, key: bytes, number: int) -> None:
        self._call("plan_keep", *_texts(key), number)

    def _forget(self) -> None:
        self._native.plan_forget(self._handle)
        self._topics, self._modes, self._topics_bytes = {}, {}, 0

    def _call(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._native, name)(self._handle, *arguments)
        if result < 0:
            raise MemoryError("the native planner")
        return result


def native_planner(planner: Planner, settings: PipelineSettings) -> NativePlanner | None:
    """The native counterpart of a planner, which a worker process keeps with it; None without the library."""
    library = native_library()
    return None if library is None else _native_planner(planner, settings, library)


_native_planner = lru_cache(maxsize=1)(NativePlanner)


def _texts(*texts: bytes) -> Iterator[bytes | int]:
    for text in texts:
        yield text
        yield len(text)


def _unmetered_texts(kind: QuotaKind) -> tuple[bytes, bytes, bytes, bytes]:
    """JSON of a topic-partition's bytes that are reported alone: around the topic, the partition and the bytes."""
    before, after = unmetered_text(CountedEntity(None, None, "t", 7), kind)
    first, _, rest = before.partition(b'"t"')
    second, _, third = rest.partition(b"7")
    return first, second, third, after
