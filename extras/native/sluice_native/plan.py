"""Step plan with plain events planned natively (`plan.c`), all others by Python at their place.

Python is the rule: native code is told its plans, by their keys (`plan_key`), tenant and, where a quota names one of
them, names: a client without a quota by its names is planned like another one with the same key, but for its names. It
knows no quota, but the members of tenants, by whose globs it finds the tenant of a client. An event that isn't plain is
planned by `Planner`, and its rows are added.
"""

import ctypes
import secrets
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import HEARTBEAT_API, ChargeResult, CountedEntity, Request, Unmute
from sluice.state.decisions.charge_plan import (
    BYTE_APIS,
    MUTATION_APIS,
    POINTS_PER_NANOSECOND,
    EntityCharges,
    Plan,
    bytes_by_partition,
    plan_charges,
)
from sluice.state.decisions.checks import most_mutations
from sluice.state.decisions.decision import BatchFields, undecided
from sluice.state.decisions.plan_key import PLANNED_APIS, plan_key, request_like
from sluice.state.quotas.entity import bounded_name, entity_text, sanitize
from sluice.state.quotas.entry import Mode
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings, RequestPolicy
from sluice.state.quotas.name_cache import ENTRY_BYTES
from sluice.state.quotas.resolution import ModeQuotas, Quotas, Resolution
from sluice.state.quotas.tenants import Tenants, glob_ends, is_glob
from sluice.state.store.pages import page_of_entity
from sluice.streaming.enforce.engine import PlannedPages
from sluice.streaming.enforce.pipeline import most_planned_bytes
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import Planner, read_event
from sluice.streaming.enforce.wire import OutputRecord, Source, encode_shape, most_awaited_bytes
from sluice_native import library as native
from sluice_native.library import NativeSettings, native_library

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Most bytes that native code and this module hold of the plans that were told: with more, all are told anew."""

_TO_1_GIB = 2**30
_MAX_TAKEN = 2**31 - 1
_PACK = msgspec.msgpack.Encoder()
_JSON = msgspec.json.Encoder()


class PartitionCharges(NamedTuple):
    """Charges of the topic-partitions of a request, which come before entity number `before` of its plan.

    Without `quotas` no quota of the kind is set, and the bytes are only reported.
    """

    before: int
    kind: QuotaKind
    withheld: bool
    quotas: ModeQuotas | None


class PlanAlike(Plan, gc=False):
    """All charges of one request on its client's counters, by their entity's key, in order; topic-partitions' apart.

    `is_exempt` says that request time is reported as exempt.
    """

    entities: dict[str, EntityCharges] = msgspec.field(default_factory=dict)
    partitions: list[PartitionCharges] = msgspec.field(default_factory=list)
    is_exempt: bool = False

    def exempt(self, _: Request, __: QuotaSettings, /) -> None:
        """Enforced and shadow quotas report the same time, once."""
        self.is_exempt = True

    def add_partitions(self, _: Request, quotas: ModeQuotas, kind: QuotaKind, withheld: bool, /) -> None:
        """Note the charges; shadow quotas report no bytes, as the enforced ones have done it."""
        if quotas.enabled(kind):
            self.partitions.append(PartitionCharges(len(self.entities), kind, withheld, quotas))
        elif quotas.mode is not Mode.SHADOW:
            self.partitions.append(PartitionCharges(len(self.entities), kind, withheld, None))

    def _put(self, resolution: Resolution, charge: Charge) -> None:
        self.entities.setdefault(resolution.key, EntityCharges(resolution.tags, [])).charges.append(charge)


class NativePlanner:
    """The native counterpart of a `Planner`.

    `declined` counts the events that Python planned, or whose plan it had to tell, and `planned` all others.
    """

    def __init__(self, quotas: Quotas, settings: PipelineSettings, library: ctypes.CDLL) -> None:
        self._settings, self._native = settings, library
        self._resolving = quotas.sparing()
        self._planner = Planner(self._resolving, settings)
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
            max_awaited=max(0, most_awaited_bytes(settings.max_record_bytes)),
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
            self._call("plan_api", *_texts(api.encode()), api in BYTE_APIS, api == HEARTBEAT_API, strict_from)
        for part, names in zip(b"uc", quotas.client_names(), strict=True):
            for name in names:
                self._call("plan_name", part, *_texts(name.encode()))
        self._tell_members(quotas.tenants)

    def plan(
        self, batches: Iterable[Any], decided_at_ms: int, overrides: Overrides | None = None
    ) -> Iterator[PlannedPages]:
        """As `pipeline.plan`, of Arrow batches of Kafka records: value, partition, offset and timestamp_ms."""
        of_batch = self._planner.batch_fields(decided_at_ms, overrides)
        limits = self._settings.limits
        first_ms, last_ms = decided_at_ms - limits.max_age_ms, decided_at_ms + limits.max_ahead_ms
        self._call("plan_begin", *_texts(_text_of(of_batch)), first_ms, last_ms)
        for instance in of_batch.of_gateways:
            self._call("plan_tighten", *_texts(instance.encode(), _text_of(of_batch, instance)))
        max_bytes = most_planned_bytes(self._settings)
        for batch in batches:
            yield from self._plan_batch(batch, of_batch, max_bytes)
        yield self._taken()

    def _plan_batch(self, batch: Any, of_batch: BatchFields, max_bytes: int) -> Iterator[PlannedPages]:
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
                event = read_event(values[first].as_py(), source, self._settings, of_batch.decided_at_ms)
                if first != told:
                    self.declined += 1
                    native.declined["events"] += 1
                if outcome.value == native.UNKNOWN and isinstance(event, Request) and first != told:
                    self._tell(event)
                    told = first
                else:
                    self._plan_in_python(event, source, of_batch)
                    first += 1
            elif outcome.value:
                raise MemoryError("the native planner")
            if self._native.plan_bytes(self._handle) >= max_bytes:
                yield self._taken()

    def _plan_in_python(self, event: Request | Unmute | OutputRecord, source: Source, of_batch: BatchFields) -> None:
        planned = [event] if isinstance(event, OutputRecord) else self._planner.plan(event, source, of_batch)
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
        plan = PlanAlike()
        plan_charges(plan, request_like(plan_key(request)), self._resolving, self._settings.quota)
        self._keep(buffer.raw[:length], self._made(plan))
        for of_mode in plan.partitions:
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

    def _made(self, plan: PlanAlike) -> int:
        """The number of a plan, which is told."""
        number = self._call("plan_make", not plan.is_exempt)
        for key, entity in plan.entities.items():
            tags = entity.tags
            has = native.HAS_USER * (tags.user != "") + native.HAS_CLIENT_ID * (tags.client_id != "")
            prefix = key.removesuffix(tags.key()) if has else key
            is_apart = has and ">" not in prefix
            page = -1 if is_apart else page_of_entity(key, self._settings.pages)
            self._counter(entity.charges, prefix, b"" if has else entity_text(tags.entity()), page, has)
        for of_mode in plan.partitions:
            texts, mode = (b"",) * 4, 0
            if of_mode.quotas is None:
                texts = _reported_texts(of_mode.kind)
            else:
                mode = self._mode(of_mode)
            lengths = (ctypes.c_uint32 * 4)(*map(len, texts))
            self._call("plan_mode", of_mode.before, mode, b"".join(texts), lengths)
        return number

    def _of_topic(self, of_mode: PartitionCharges, topic: str, partition: int) -> int:
        """The number of the plan of a topic's partitions."""
        plan = PlanAlike()
        if of_mode.quotas is not None:
            resolution = of_mode.quotas.resolve_topic(of_mode.kind, topic, partition)
            plan.add(of_mode.kind, resolution, [], withheld=of_mode.withheld)
        prefix, charges = "", list[Charge]()
        for key, entity in plan.entities.items():
            prefix, charges = key.removesuffix(f"{sanitize(bounded_name(topic))}|{partition}"), entity.charges
        shared = prefix, encode_shape(charges)
        number = self._topics.get(shared)
        if number is None:
            number = self._call("plan_make", True)
            if charges:
                self._counter(charges, prefix, b"", -1, native.HAS_TOPIC)
            self._topics[shared] = number
            self._topics_bytes += ENTRY_BYTES + len(prefix) + len(shared[1])
        return number

    def _counter(self, charges: Sequence[Charge], prefix: str, entity: bytes, page: int, has: int) -> None:
        """Tell a counter of the plan that was made last."""
        families = bytes(native.FAMILIES.get(charge.kind.family, 0) for charge in charges)
        shape = _PACK.encode(encode_shape(charges))
        self._call("plan_counter", *_texts(prefix.encode(), entity, shape), page, has, *_texts(families))

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


def native_planner(quotas: Quotas, settings: PipelineSettings) -> NativePlanner | None:
    """The native planner of these quotas; None without the library.

    A worker process keeps it from micro-batch to micro-batch until the quotas change.
    """
    library = native_library()
    if library is None:
        return None
    return kept_planner(quotas, settings, library)


kept_planner = lru_cache(maxsize=1)(NativePlanner)


def _texts(*texts: bytes) -> Iterator[bytes | int]:
    for text in texts:
        yield text
        yield len(text)


def _text_of(of_batch: BatchFields, instance: str | None = None) -> bytes:
    """JSON of the fields that decisions of a micro-batch share, from `decided_by` on; charges begin at its line end.

    Those on events of a gateway that is tightened have a note.
    """
    decision = undecided(Request("", instance=instance), "", [], of_batch)
    decision.instance = None
    _, _, after = _JSON.encode(decision).partition(b',"decided_by":')
    return after.rpartition(b',"instance":')[0].replace(b"[]", b"[\n]", 1)  # quotes in texts are escaped


def _reported_texts(kind: QuotaKind) -> tuple[bytes, bytes, bytes, bytes]:
    """JSON of a topic-partition's bytes that are reported alone: around the topic, the partition and the bytes."""
    text = _JSON.encode(ChargeResult(kind, CountedEntity(topic="t", partition=7), value=5.0))
    first, _, rest = text.partition(b'"t"')
    second, _, rest = rest.partition(b"7")
    third, _, fourth = rest.partition(b"5.0")
    return first, second, third, fourth
