"""Planning one event: its dead letter, its decision if it charges nothing, or the charge rows of its counters."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from sluice.configs.capacity import broker_limits
from sluice.configs.settings import Settings
from sluice.state.arithmetic.shapes import encode_shape
from sluice.state.contract.decision_id import decision_id
from sluice.state.contract.records import CountedEntity, Overrides, Request, Unmute
from sluice.state.decisions.charge_plan import (
    EXEMPT_REQUEST_TIME,
    ChargePlan,
    CounterCharges,
    PartitionCharges,
    Traits,
    bytes_by_partition,
    charged_bytes,
    charged_mutations,
    counted_requests,
    plan_charges,
    plan_resets,
    request_like,
    request_points,
    traits_of,
)
from sluice.state.decisions.checks import EventLimits
from sluice.state.decisions.decision import (
    batch_text,
    overridden_texts,
    said,
    said_of_unmute,
    unmetered_text,
    without_charges,
)
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import Tags, bounded_name, client_key, entity_text
from sluice.state.quotas.kinds import Family, QuotaKind, QuotaSettings
from sluice.state.quotas.name_cache import ENTRY_BYTES, NameCache
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.state.shares.sums import UNKNOWN_GATEWAY, Reported, applied_waits, gateway_text
from sluice.state.store.pages import page_of_entity
from sluice.streaming.checkpoint.batch_log import JudgedBy
from sluice.streaming.checkpoint.origin import new_pages
from sluice.streaming.enforce.parsing import parse_event
from sluice.streaming.enforce.wire import (
    ChargeRow,
    OutputRecord,
    Source,
    answer_record,
    dead_letter_record,
    heartbeat_record,
)

_MAX_PLAN_BYTES, _MAX_PARTITION_BYTES, _MAX_ALIKE_BYTES = 96 * 1024 * 1024, 24 * 1024 * 1024, 8 * 1024 * 1024
"""Bytes of a generation of the plans that a worker keeps, of the counters of topic-partitions, and of what clients
that are planned alike have in common."""

_PLAN_BYTES = 2 * ENTRY_BYTES
"""Bytes of a plan besides its counters and texts, with its traits and its place in a cache, about."""

_PartitionName = tuple[str, int]
"""Topic and partition."""

_Amounts = Callable[[Request], list[float]]
"""Says the amounts of a request on a counter."""

PlacedRow = tuple[int, ChargeRow]
"""A row and the page that it goes to."""

Planned = list[OutputRecord] | list[PlacedRow]
"""The charge rows of an event, or its records if it charges no counter."""


class PipelineSettings(NamedTuple):
    """The job's settings that plan, decide and combine need. `job_id` marks its decisions, None without a job.

    `topic_id` is Kafka's id of the requests topic; None if it isn't known. `max_record_bytes` is the largest record
    that the topics of the answers take.
    """

    requests_topic: str
    decisions_topic: str
    dead_letters_topic: str
    waits_topic: str
    sums_topic: str
    quota: QuotaSettings
    limits: EventLimits
    pages: int
    idle_expiry_ms: int
    max_entities: int
    max_record_bytes: int
    job_id: str | None = None
    topic_id: str | None = None
    broker_limits: BrokerLimits = NO_LIMITS

    @classmethod
    def of(cls, settings: Settings, pages: int | None = None, limits: BrokerLimits | None = None) -> "PipelineSettings":
        """The pipeline's part of the job's settings, with as many pages as a new checkpoint has if none are given.

        `limits` are those of brokers, by default as the settings say.
        """
        return cls(
            settings.topics.requests,
            settings.topics.decisions,
            settings.topics.dead_letters,
            settings.topics.waits,
            settings.topics.sums,
            settings.quota,
            EventLimits(
                settings.enforce.max_event_bytes,
                settings.enforce.max_future_ms,
                settings.enforce.max_past_ms,
                settings.enforce.max_charges_per_event,
            ),
            new_pages(settings) if pages is None else pages,
            settings.state.idle_expiry_s * 1000,
            settings.state.max_entities,
            settings.topics.max_message_bytes,
            broker_limits=broker_limits(settings.elastic) if limits is None else limits,
        )

    def judged_by(self, release: str) -> JudgedBy:
        """The part that a micro-batch's record keeps: all that can change an answer."""
        return JudgedBy(release, self.topic_id, self.max_record_bytes, self.limits, self.quota)

    def as_judged_by(self, recorded: JudgedBy) -> "PipelineSettings":
        """The settings of a micro-batch that is repeated.

        The topics may take smaller records now, and would refuse a larger one at each attempt.
        """
        most = min(self.max_record_bytes, recorded.max_record_bytes)
        return self._replace(max_record_bytes=most, limits=recorded.limits, quota=recorded.quota)


def read_event(value: bytes | None, source: Source, settings: PipelineSettings) -> Request | Unmute | OutputRecord:
    """The request or control record of one event; the dead letter of an event that breaks the contract."""
    try:
        return parse_event(value, source, settings.limits)
    except InvalidRequestError as error:
        topic, most = settings.dead_letters_topic, settings.max_record_bytes
        return dead_letter_record(topic, value, source, error, most, settings.topic_id)


class Counter(msgspec.Struct, gc=False):
    """A counter that requests of a client are charged to: what their rows say of it, and what gives their amounts.

    `page` is the page that keeps it.
    """

    key: str
    page: int
    entity: bytes
    shape: bytes
    amounts: _Amounts

    def size(self) -> int:
        """The bytes that it takes, about."""
        return ENTRY_BYTES + len(self.key) + len(self.entity) + len(self.shape)


class _ClientPlan(msgspec.Struct, gc=False):
    """The charges of the requests of one client that are alike but for their amounts and topic-partitions.

    `record_key` is the key of their decisions.
    """

    counters: list[Counter]
    partitions: list[PartitionCharges]
    is_exempt: bool
    record_key: bytes

    def size(self) -> int:
        """The bytes that it takes, about."""
        return _PLAN_BYTES + len(self.record_key) + sum(counter.size() for counter in self.counters)


class CounterAlike(msgspec.Struct, gc=False):
    """A counter that each of the clients planned alike has: `counter` is that of one of them.

    Its key is `prefix` and the key of those of the client's names that it has. All clients have one whose tags have
    neither name. `kinds` are those of its charges.
    """

    counter: Counter
    prefix: str
    has_user: bool
    has_client_id: bool
    kinds: list[QuotaKind]

    @classmethod
    def of(cls, counter: Counter, charged: CounterCharges) -> "CounterAlike":
        """That of a counter with these charges."""
        tags, kinds = charged.tags, [charge.kind for charge in charged.charges]
        return cls(counter, counter.key.removesuffix(tags.key()), tags.user != "", tags.client_id != "", kinds)

    def named(self, user: str, client_id: str, pages: int) -> Counter:
        """The counter of the client with these names."""
        if not (self.has_user or self.has_client_id):
            return self.counter
        tags = Tags(bounded_name(user) if self.has_user else "", bounded_name(client_id) if self.has_client_id else "")
        key = self.prefix + tags.key()
        page, entity = page_of_entity(key, pages), entity_text(tags.entity())
        return Counter(key, page, entity, self.counter.shape, self.counter.amounts)


class Alike(msgspec.Struct, gc=False):
    """The plan of clients without a quota by their names, but for these names. `plan` is that of one of them."""

    plan: _ClientPlan
    counters: list[CounterAlike]

    def named(self, user: str, client_id: str, pages: int) -> _ClientPlan:
        """The plan of the client with these names."""
        counters = [counter.named(user, client_id, pages) for counter in self.counters]
        record_key = client_key(user, client_id).encode()
        return _ClientPlan(counters, self.plan.partitions, self.plan.is_exempt, record_key)


_Kin = tuple[bool, bool, str, tuple[object, ...]]
"""All that decides the plan of a client without a quota by its names: whether it gives a user and a client-id, its
tenant, and the traits of its request."""

_JSON = msgspec.json.Encoder()
_EXEMPT = unmetered_text(CountedEntity(), EXEMPT_REQUEST_TIME, "exempt")
_NO_WAITS: Mapping[bytes, dict[str, int]] = {}

_Charged = list[tuple[Counter, list[float]]]
"""The counters that a request is charged to, each with its amounts."""


class BatchText(NamedTuple):
    """The text that decisions of a micro-batch share, and that of those on events of some gateways, by instance."""

    text: msgspec.Raw
    of_gateways: Mapping[str, msgspec.Raw]


class Planner:
    """Plans events under the quotas of one version. It finds the counters of a client once, and keeps them as text."""

    def __init__(self, quotas: Quotas, settings: PipelineSettings) -> None:
        self.quotas, self._resolving = quotas, quotas.sparing()
        self._settings = settings
        self._clients = NameCache[Traits, _ClientPlan](_MAX_PLAN_BYTES)
        self._alike = NameCache[_Kin, Alike](_MAX_ALIKE_BYTES)
        self._users, self._client_ids = quotas.client_names()
        """The names that have quotas of their own."""
        self._partitions = NameCache[tuple[PartitionCharges, _PartitionName], Counter | None](_MAX_PARTITION_BYTES)
        self._unmetered = NameCache[tuple[QuotaKind, _PartitionName], tuple[bytes, bytes]](_MAX_PARTITION_BYTES)
        self._amounts: dict[tuple[Family, ...], _Amounts] = {}
        self._sources: dict[Family, _Amounts] = {
            Family.BYTES: charged_bytes,
            Family.REQUEST_TIME: partial(request_points, settings=settings.quota),
            Family.MUTATIONS: partial(charged_mutations, settings=settings.quota),
            Family.REQUESTS: counted_requests,
        }

    def batch(self, decided_at_ms: int, overrides: Overrides | None = None) -> BatchText:
        """The text that decisions of a micro-batch share, which begins at `decided_at_ms`."""
        text = batch_text(self.quotas.version, decided_at_ms, self._settings.job_id, self._settings.topic_id)
        return BatchText(text, {}) if overrides is None else BatchText(text, overridden_texts(text, overrides))

    def plan(self, event: Request | Unmute, source: Source, decided_at_ms: int, batch: BatchText) -> Planned:
        """One charge row per counter that the event charges, with its page; its records if there is none.

        `batch` is that of `decided_at_ms`.
        """
        if isinstance(event, Request):
            text = batch.text
            if batch.of_gateways and event.instance is not None:
                text = batch.of_gateways.get(event.instance, text)
            return self._plan_request(event, source, text)
        return self._plan_unmute(event, source, decided_at_ms, batch.text)

    def _plan_request(self, request: Request, source: Source, batch: msgspec.Raw) -> Planned:
        plan = self._plan_of(request)
        charged = [(counter, counter.amounts(request)) for counter in plan.counters]
        unmetered: list[bytes] = []
        if plan.partitions:
            charged, unmetered = self._with_partitions(charged, plan, bytes_by_partition(request))
        if plan.is_exempt:
            points = _JSON.encode(sum(request_points(request, self._settings.quota)))
            unmetered.append(points.join(_EXEMPT))
        text = said(request, decision_id(source.topic, source.partition, source.offset), unmetered, batch)
        if charged:
            return self._placed(charged, source, request.timestamp_ms or 0, plan.record_key, text, request)
        decision = OutputRecord(self._settings.decisions_topic, plan.record_key, without_charges(text))
        return self._uncharged(request, decision)

    def _uncharged(self, request: Request, decision: OutputRecord) -> list[OutputRecord]:
        """The decision on a request that charges no counter, and what its gateway has to know of it."""
        topic, asked_by = self._settings.sums_topic, _asked_by(request)
        told = heartbeat_record(topic, request, self._settings.broker_limits)
        if asked_by is not None:
            told = answer_record(topic, asked_by, decision.value, self._settings.max_record_bytes)
        return [decision] if told is None else [decision, told]

    def _plan_unmute(self, unmute: Unmute, source: Source, decided_at_ms: int, batch: msgspec.Raw) -> Planned:
        """One charge row per counter that is reset; the decision itself if there is none.

        Its time is when the micro-batch began, by the job's clock: a gateway takes the answer only if it is later than
        the decision that mutes, and the operator's clock may be wrong.
        """
        no_amounts: list[float] = []
        charged = [(counter, no_amounts) for counter in self._counters(plan_resets(unmute, self._resolving).counters)]
        text = said_of_unmute(unmute, decision_id(source.topic, source.partition, source.offset), decided_at_ms, batch)
        record_key = client_key(unmute.entity.user or "", unmute.entity.client_id or "").encode()
        if not charged:
            return [OutputRecord(self._settings.decisions_topic, record_key, without_charges(text))]
        return self._placed(charged, source, decided_at_ms, record_key, text)

    def _placed(
        self,
        charged: _Charged,
        source: Source,
        timestamp_ms: int,
        record_key: bytes | None,
        text: bytes,
        request: Request | None = None,
    ) -> list[PlacedRow]:
        """The charge rows of these counters, each with its page."""
        rows, parts = [], len(charged)
        gateway, applied, sums_up, asked_by, purgatory_ms = UNKNOWN_GATEWAY, _NO_WAITS, False, None, 0
        if request is not None:
            if request.instance is not None or request.throttled_by is not None:
                gateway = gateway_text(request.instance, request.throttled_by is not None)
            purgatory_ms, sums_up = request.purgatory_ms, request.bytes is not None
            if request.throttled_by:
                applied = applied_waits(request)
            asked_by = _asked_by(request)
        for part, (counter, amounts) in enumerate(charged):
            row = ChargeRow(  # by position: keywords take as long again
                source.partition,
                source.offset,
                timestamp_ms,
                counter.key,
                counter.entity,
                counter.shape,
                amounts,
                record_key,
                text,
                gateway,
                part,
                parts,
                purgatory_ms,
                _reported(applied.get(counter.entity), sums_up) if applied or sums_up else None,
                asked_by,
            )
            rows.append((counter.page, row))
            record_key, text, asked_by = None, b"", None
        return rows

    def _plan_of(self, request: Request) -> _ClientPlan:
        """The plan of the client's requests that are like this one."""
        traits = traits_of(request)
        plan = self._clients.get(traits) or self._clients.recall(traits)
        if plan is None:
            user, client_id = traits[:2]
            alike = self.alike_of(traits)
            plan = alike.named(user, client_id, self._settings.pages)
            self._clients.keep(traits, plan, len(user) + len(client_id) + plan.size())
        return plan

    def alike_of(self, traits: Traits) -> Alike:
        """The plan of this client but for its names; kept only if these have no quotas, as others have it too then."""
        user, client_id = traits[:2]
        if bounded_name(user) in self._users or bounded_name(client_id) in self._client_ids:
            return self._planned_alike(traits)
        kin = user != "", client_id != "", self.quotas.tenants.of(user, client_id), traits[2:]
        try:
            return self._alike[kin]
        except KeyError:
            alike = self._planned_alike(traits)
            return self._alike.keep(kin, alike, len(kin[2]) + alike.plan.size())

    def _planned_alike(self, traits: Traits) -> Alike:
        """The plan of a request of these traits, and which of its client's names each counter has."""
        planned = plan_charges(request_like(traits), self._resolving, self._settings.quota)
        counters = self._counters(planned.counters)
        plan = _ClientPlan(counters, planned.partitions, planned.is_exempt, client_key(traits[0], traits[1]).encode())
        alike = [
            CounterAlike.of(counter, charged)
            for counter, charged in zip(counters, planned.counters.values(), strict=True)
        ]
        return Alike(plan, alike)

    def _with_partitions(
        self, charged: _Charged, plan: _ClientPlan, sizes: dict[_PartitionName, float]
    ) -> tuple[_Charged, list[bytes]]:
        """The charges with those of the topic-partitions among them, and the bytes that are only reported, as JSON."""
        merged, unmetered, taken = _Charged(), list[bytes](), 0
        for of_mode in plan.partitions:
            merged += charged[taken : of_mode.before]
            taken = of_mode.before
            for name, moved in sizes.items():
                if of_mode.quotas is None:
                    unmetered.append(_JSON.encode(moved).join(self._unmetered_text(of_mode.kind, name)))
                    continue
                counter = self.partition_counter(of_mode, name)
                if counter is not None:
                    merged.append((counter, [moved]))
        return merged + charged[taken:], unmetered

    def partition_counter(self, of_mode: PartitionCharges, name: _PartitionName) -> Counter | None:
        """The counter of a topic-partition; none if a trial doesn't limit the topic."""
        try:
            return self._partitions[of_mode, name]
        except KeyError:
            plan = ChargePlan()
            of_mode.add_to(plan, *name)
            counter = next(iter(self._counters(plan.counters)), None)
            size = ENTRY_BYTES + len(name[0]) + (counter.size() if counter else 0)
            return self._partitions.keep((of_mode, name), counter, size)

    def _unmetered_text(self, kind: QuotaKind, name: _PartitionName) -> tuple[bytes, bytes]:
        """The JSON around the bytes of a topic-partition without a quota."""
        try:
            return self._unmetered[kind, name]
        except KeyError:
            text = unmetered_text(CountedEntity(None, None, *name), kind)
            return self._unmetered.keep((kind, name), text, ENTRY_BYTES + len(name[0]) + sum(map(len, text)))

    def _amounts_of(self, families: tuple[Family, ...]) -> _Amounts:
        """Says the amounts of charges of these families: one function for all counters that have them."""
        found = self._amounts.get(families)
        if found is None:
            found = self._amounts[families] = _amounts_from([self._sources[family] for family in families])
        return found

    def _counters(self, charged: Mapping[str, CounterCharges]) -> list[Counter]:
        """The counters of a plan, whose charges these are by key."""
        return [
            Counter(
                key,
                page_of_entity(key, self._settings.pages),
                entity_text(counter.tags.entity()),
                encode_shape(counter.charges),
                self._amounts_of(tuple([charge.kind.family for charge in counter.charges])),
            )
            for key, counter in charged.items()
        ]


@lru_cache(maxsize=1)
def planner(quotas: Quotas, settings: PipelineSettings) -> Planner:
    """The planner of these quotas: a worker process keeps it from micro-batch to micro-batch until they change."""
    return Planner(quotas, settings)


def _amounts_from(sources: Sequence[_Amounts]) -> _Amounts:
    """The amounts of several charges, one after another."""
    if len(sources) == 1:
        return sources[0]
    return lambda request: [amount for source in sources for amount in source(request)]


def _reported(applied: dict[str, int] | None, sums_up: bool) -> Reported | None:
    """The report of a row; None if there is nothing in it."""
    return Reported(applied or {}, sums_up) if applied or sums_up else None


def _asked_by(request: Request) -> bytes | None:
    """The instance of a gateway that waits for the decision, before it executes the mutations; None if none does."""
    if not request.mutations or request.throttled_by is not None or request.instance is None:
        return None
    return request.instance.encode()
