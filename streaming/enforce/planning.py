"""Planning one event: its dead letter, its decision if it charges nothing, or the charge rows of its counters."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from sluice.configs.settings import Settings
from sluice.state.arithmetic.counter import Charge
from sluice.state.arithmetic.shapes import encode_shape
from sluice.state.contract.records import ChargeResult, CountedEntity, Mutation, Request, Unmute
from sluice.state.decisions.charge_plan import (
    EXEMPT_REQUEST_TIME,
    MUTATION_APIS,
    PLANNED_APIS,
    ChargePlan,
    PartitionCharges,
    bytes_by_partition,
    charged_bytes,
    charged_mutations,
    is_strict,
    plan_charges,
    plan_resets,
    request_points,
)
from sluice.state.decisions.charge_texts import entity_text
from sluice.state.decisions.decision import Batch, said, said_of_unmute
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import Tags, client_key
from sluice.state.quotas.entry import Mode
from sluice.state.quotas.kinds import Family, QuotaKind, QuotaSettings
from sluice.state.quotas.name_cache import ENTRY_BYTES, NameCache
from sluice.state.quotas.resolution import ModeQuotas, Quotas
from sluice.state.store.pages import page_of_entity
from sluice.streaming.checkpoint.origin import new_pages
from sluice.streaming.enforce.parsing import EventLimits, parse_event
from sluice.streaming.enforce.wire import ChargeRow, OutputRecord, Source, dead_letter_record

_BYTES, _REQUEST_TIME = Family.BYTES, Family.REQUEST_TIME
"""Looked up for every request, which is slow on an Enum."""

_MAX_PLAN_BYTES, _MAX_PARTITION_BYTES = 128 * 1024 * 1024, 32 * 1024 * 1024
"""Bytes of the plans that a worker keeps, and of the counters of topic-partitions."""

PlacedRow = tuple[int, ChargeRow]
"""A row and the page that it goes to."""


class PipelineSettings(NamedTuple):
    """The job's settings that plan, decide and combine need. `job_id` marks its decisions, None without a job."""

    requests_topic: str
    decisions_topic: str
    dead_letters_topic: str
    waits_topic: str
    quota: QuotaSettings
    limits: EventLimits
    pages: int
    idle_expiry_ms: int
    max_entities: int
    job_id: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> "PipelineSettings":
        """The pipeline's part of the job's settings."""
        return cls(
            settings.topics.requests,
            settings.topics.decisions,
            settings.topics.dead_letters,
            settings.topics.waits,
            settings.quota,
            EventLimits(
                settings.enforce.max_event_bytes,
                settings.enforce.max_future_ms,
                settings.enforce.max_past_ms,
                settings.enforce.max_charges_per_event,
            ),
            new_pages(settings),
            settings.state.idle_expiry_s * 1000,
            settings.state.max_entities,
        )


def read_event(value: bytes | None, source: Source, settings: PipelineSettings) -> Request | Unmute | OutputRecord:
    """The request or control record of one event; the dead letter of an event that breaks the contract."""
    try:
        return parse_event(value, source, settings.limits)
    except InvalidRequestError as error:
        return dead_letter_record(settings.dead_letters_topic, value, source, error)


class _Counter(msgspec.Struct, gc=False):
    """A counter that requests of a client are charged to: what their rows say of it, and where its amounts come from.

    `page` is the page that keeps it.
    """

    key: str
    page: int
    entity: bytes
    shape: bytes
    families: tuple[Family, ...]

    @classmethod
    def of(cls, key: str, tags: Tags, charges: Sequence[Charge], pages: int) -> "_Counter":
        """The counter of these charges."""
        families = tuple(charge.kind.family for charge in charges)
        return cls(key, page_of_entity(key, pages), entity_text(tags.entity()), encode_shape(charges), families)

    def size(self) -> int:
        """The bytes that it takes, about."""
        return ENTRY_BYTES + len(self.key) + len(self.entity) + len(self.shape)


class _ClientPlan(msgspec.Struct, gc=False):
    """The charges of the requests of one client that are alike but for their amounts and topic-partitions.

    `record_key` is the key of their decisions.
    """

    counters: list[_Counter]
    partitions: list[PartitionCharges]
    is_exempt: bool
    record_key: bytes

    def size(self) -> int:
        """The bytes that it takes, about."""
        return ENTRY_BYTES + len(self.record_key) + sum(counter.size() for counter in self.counters)


_ANY_API = "Metadata"
"""Stands for each API that is charged request time alone."""

_PartitionName = tuple[QuotaKind, Mode, bool, str, int]
"""Kind, mode and withholding of a charge, topic and partition."""

_ClientTraits = tuple[str, str, str, bool, bool, bool, bool, bool, bool, bool, bool, bool]
"""User, client-id, and all that decides what a request is charged to, but for topic-partitions: see `_traits`."""


class Planner:
    """Plans events under the quotas of one version. It finds the counters of a client once, and keeps them as text."""

    def __init__(self, quotas: Quotas, settings: PipelineSettings) -> None:
        self.quotas = quotas
        self._settings = settings
        self._clients = NameCache[_ClientTraits, _ClientPlan](_MAX_PLAN_BYTES)
        self._partitions = NameCache[_PartitionName, _Counter | None](_MAX_PARTITION_BYTES)

    def plan(self, value: bytes | None, source: Source, decided_at_ms: int) -> OutputRecord | list[PlacedRow]:
        """The charge rows of one event, each with its page, or its record if it charges no counter."""
        event = read_event(value, source, self._settings)
        if isinstance(event, Request):
            return self.plan_request(event, source, decided_at_ms)
        if isinstance(event, Unmute):
            return self.plan_unmute(event, source, decided_at_ms)
        return event

    def plan_request(self, request: Request, source: Source, decided_at_ms: int) -> OutputRecord | list[PlacedRow]:
        """One charge row per counter that the request charges; the decision itself if it charges none."""
        plan = self._plan_of(request)
        charged = [(counter, self._amounts(counter, request)) for counter in plan.counters]
        unmetered: list[ChargeResult] = []
        if plan.partitions:
            charged, unmetered = self._with_partitions(charged, plan, request)
        if plan.is_exempt:
            points = sum(request_points(request, self._settings.quota))
            unmetered.append(ChargeResult(EXEMPT_REQUEST_TIME, matched="exempt", value=points))
        batch = Batch(self.quotas.version, decided_at_ms, self._settings.job_id)
        text = said(request, source.record_id(), unmetered, batch)
        timestamp_ms = request.timestamp_ms or 0
        return self._placed(charged, source, timestamp_ms, request.purgatory_ms, plan.record_key, text)

    def plan_unmute(self, unmute: Unmute, source: Source, decided_at_ms: int) -> OutputRecord | list[PlacedRow]:
        """One charge row per counter that is reset; the decision itself if there is none.

        Its time is when the micro-batch began, by the job's clock: a gateway takes the answer only if it is later than
        the decision that mutes, and the operator's clock may be wrong.
        """
        counters = plan_resets(unmute, self.quotas).counters
        no_amounts: list[float] = []
        charged = [
            (_Counter.of(key, counter.tags, counter.charges, self._settings.pages), no_amounts)
            for key, counter in counters.items()
        ]
        text = said_of_unmute(
            unmute, source.record_id(), Batch(self.quotas.version, decided_at_ms, self._settings.job_id)
        )
        record_key = client_key(unmute.entity.user or "", unmute.entity.client_id or "").encode()
        return self._placed(charged, source, decided_at_ms, 0, record_key, text)

    def _placed(
        self,
        charged: Sequence[tuple[_Counter, list[float]]],
        source: Source,
        timestamp_ms: int,
        purgatory_ms: int,
        record_key: bytes,
        text: bytes,
    ) -> OutputRecord | list[PlacedRow]:
        """The charge rows of these counters, each with its page; without any, the decision itself."""
        if not charged:
            return OutputRecord(self._settings.decisions_topic, record_key, text)
        rows, parts = [], len(charged)
        said: bytes | None = text
        key: bytes | None = record_key
        for part, (counter, amounts) in enumerate(charged):
            row = ChargeRow(
                source.partition,
                source.offset,
                timestamp_ms,
                counter.key,
                counter.entity,
                counter.shape,
                amounts,
                part,
                parts,
                purgatory_ms,
                key,
                said,
            )
            rows.append((counter.page, row))
            key = said = None
        return rows

    def _plan_of(self, request: Request) -> _ClientPlan:
        """The plan of the client's requests that are like this one."""
        traits = _traits(request)
        plan = self._clients.get(traits)
        if plan is None:
            plan = self._new_plan(traits)
            self._clients.keep(traits, plan, len(traits[0]) + len(traits[1]) + plan.size())
        return plan

    def _new_plan(self, traits: _ClientTraits) -> _ClientPlan:
        planned = plan_charges(_request_like(traits), self.quotas, self._settings.quota)
        counters = [
            _Counter.of(key, counter.tags, counter.charges, self._settings.pages)
            for key, counter in planned.counters.items()
        ]
        return _ClientPlan(counters, planned.partitions, planned.is_exempt, client_key(*traits[:2]).encode())

    def _amounts(self, counter: _Counter, request: Request) -> list[float]:
        """The amounts that a request charges a counter of its client."""
        amounts: list[float] = []
        for family in counter.families:
            if family is _BYTES:
                amounts += charged_bytes(request)
            elif family is _REQUEST_TIME:
                amounts += request_points(request, self._settings.quota)
            else:
                amounts += charged_mutations(request)
        return amounts

    def _with_partitions(
        self, charged: list[tuple[_Counter, list[float]]], plan: _ClientPlan, request: Request
    ) -> tuple[list[tuple[_Counter, list[float]]], list[ChargeResult]]:
        """The charges with those of the topic-partitions among them, and the bytes that are only reported."""
        sizes = bytes_by_partition(request)
        with_partitions, unmetered, taken = [], list[ChargeResult](), 0
        for before, kind, withheld, quotas in plan.partitions:
            with_partitions += charged[taken:before]
            taken = before
            for (topic, partition), moved in sizes.items():
                if quotas is None:
                    entity = CountedEntity(None, None, topic, partition)
                    unmetered.append(ChargeResult(kind, entity, "none", None, moved, None))
                else:
                    counter = self._partition_counter(quotas, kind, withheld, topic, partition)
                    if counter is not None:
                        with_partitions.append((counter, [moved]))
        return [*with_partitions, *charged[taken:]], unmetered

    def _partition_counter(
        self, quotas: ModeQuotas, kind: QuotaKind, withheld: bool, topic: str, partition: int
    ) -> _Counter | None:
        """The counter of a topic-partition; none if a trial doesn't limit the topic."""
        name = kind, quotas.mode, withheld, topic, partition
        if name in self._partitions:
            return self._partitions[name]
        plan = ChargePlan()
        plan.add(kind, quotas.resolve_topic(kind, topic, partition), [0.0], withheld=withheld)
        counters = [
            _Counter.of(key, counter.tags, counter.charges, self._settings.pages)
            for key, counter in plan.counters.items()
        ]
        found = counters[0] if counters else None
        return self._partitions.keep(name, found, len(topic) + (found.size() if found else ENTRY_BYTES))


@lru_cache(maxsize=1)
def planner(quotas: Quotas, settings: PipelineSettings) -> Planner:
    """The planner of these quotas: a worker process keeps it from micro-batch to micro-batch until they change."""
    return Planner(quotas, settings)


def _traits(request: Request) -> _ClientTraits:
    """A client may name any API and any version: those that are charged alike are one trait."""
    api = request.api
    return (
        request.user or "",
        request.client_id or "",
        api if api in PLANNED_APIS else _ANY_API,
        api in MUTATION_APIS and is_strict(request),
        request.validate_only,
        request.cluster_action,
        request.authenticating,
        request.withheld,
        request.bytes is not None or bool(request.topic_partitions),
        bool(request.mutations),
        request.mutations_charged is not None,
        request.request_time_ns is not None or request.network_time_ns is not None,
    )


def _request_like(traits: _ClientTraits) -> Request:
    """A request of these traits: no plan that is kept can depend on anything else."""
    user, client_id, api, strict, validate_only, cluster_action, authenticating, withheld, *amounts = traits
    has_bytes, has_mutations, has_executed, has_time = amounts
    return Request(
        api,
        user=user,
        client_id=client_id,
        api_version=None if strict else 0,
        validate_only=validate_only,
        cluster_action=cluster_action,
        authenticating=authenticating,
        withheld=withheld,
        bytes=0 if has_bytes else None,
        mutations=[Mutation("", 0)] if has_mutations else [],
        mutations_charged=0 if has_executed else None,
        request_time_ns=0 if has_time else None,
    )
