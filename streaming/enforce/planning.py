"""Planning one event: its dead letter, its decision if it charges nothing, or its charge rows."""

from collections.abc import Mapping

import msgspec

from sluice.state.contract.decision_id import decision_id
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import Decision, Request, Unmute
from sluice.state.decisions.charge_plan import ChargePlan, EntityCharges, plan_charges, plan_resets
from sluice.state.decisions.decision import BatchFields, undecided, undecided_unmute
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import client_key, entity_text
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.sums import Reported, applied_waits, gateway_text
from sluice.state.store.pages import page_of_entity
from sluice.streaming.enforce.parsing import check_near_job_time, parse_event
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import (
    ChargeRow,
    OutputRecord,
    Source,
    awaited_decision_record,
    dead_letter_record,
    encode_shape,
    heartbeat_record,
)

_JSON = msgspec.json.Encoder()

PlacedRow = tuple[int, ChargeRow]
"""A row and the page that it goes to."""

Planned = list[OutputRecord] | list[PlacedRow]
"""The charge rows of an event, or its records if it charges no counter."""


def read_event(
    value: bytes | None, source: Source, settings: PipelineSettings, decided_at_ms: int
) -> Request | Unmute | OutputRecord:
    """The request or control record of one event; the dead letter of an event that breaks the contract.

    It is in a micro-batch that begins at `decided_at_ms`.
    """
    try:
        event = parse_event(value, source, settings.limits)
        if isinstance(event, Request):
            check_near_job_time(event, decided_at_ms, settings.limits)
        return event
    except InvalidRequestError as error:
        topic, most = settings.dead_letters_topic, settings.max_record_bytes
        return dead_letter_record(topic, value, source, error, most, settings.topic_id)


class Planner:
    """Plans events under the quotas of one version."""

    def __init__(self, quotas: Quotas, settings: PipelineSettings) -> None:
        self._quotas, self._settings = quotas, settings

    def batch_fields(self, decided_at_ms: int, overrides: Overrides | None = None) -> BatchFields:
        """The fields that decisions of a micro-batch share which begins at `decided_at_ms`, under these overrides."""
        settings = self._settings
        return BatchFields(self._quotas.version, decided_at_ms, settings.job_id, settings.topic_id).under(overrides)

    def plan(self, event: Request | Unmute, source: Source, batch: BatchFields) -> Planned:
        """One charge row per entity that the event charges, with its page; its records if there is none."""
        own_id = decision_id(source.topic, source.partition, source.offset)
        if isinstance(event, Request):
            return self._plan_request(event, source, own_id, batch)
        return self._plan_unmute(event, source, own_id, batch)

    def _plan_request(self, request: Request, source: Source, own_id: str, batch: BatchFields) -> Planned:
        plan = ChargePlan()
        plan_charges(plan, request, self._quotas, self._settings.quota)
        decision = undecided(request, own_id, plan.reported, batch)
        record_key = client_key(request.user or "", request.client_id or "").encode()
        if not plan.entities:
            return self._uncharged(
                request, OutputRecord(self._settings.decisions_topic, record_key, _JSON.encode(decision))
            )
        rows = self._rows(plan.entities, source, decision, record_key)
        applied, sums_up = applied_waits(request), request.bytes is not None
        gateway = gateway_text(request.instance, request.throttled_by is not None)
        rows[0][1].asked_by = _asked_by(request)
        for _, row in rows:
            row.gateway, row.purgatory_ms = gateway, request.purgatory_ms
            if sums_up or row.entity in applied:
                row.reported = Reported(applied.get(row.entity, {}), sums_up)
        return rows

    def _uncharged(self, request: Request, decision: OutputRecord) -> list[OutputRecord]:
        """The decision on a request that charges no counter, and what its gateway has to know of it."""
        topic, asked_by = self._settings.sums_topic, _asked_by(request)
        for_gateway = heartbeat_record(topic, request, self._settings.broker_limits)
        if asked_by is not None:
            for_gateway = awaited_decision_record(topic, asked_by, decision.value, self._settings.max_record_bytes)
        return [decision] if for_gateway is None else [decision, for_gateway]

    def _plan_unmute(self, unmute: Unmute, source: Source, own_id: str, batch: BatchFields) -> Planned:
        """One charge row per entity whose counters are reset; the decision itself if there is none.

        Its time is when the micro-batch began, by the job's clock: a gateway takes the answer only if it is later than
        the decision that mutes, and the operator's clock may be wrong.
        """
        decision = undecided_unmute(unmute, own_id, batch)
        record_key = client_key(unmute.entity.user or "", unmute.entity.client_id or "").encode()
        entities = plan_resets(unmute, self._quotas).entities
        if not entities:
            return [OutputRecord(self._settings.decisions_topic, record_key, _JSON.encode(decision))]
        return self._rows(entities, source, decision, record_key)

    def _rows(
        self, entities: Mapping[str, EntityCharges], source: Source, decision: Decision, record_key: bytes
    ) -> list[PlacedRow]:
        """The charge rows of these entities, by key, each with its page. The first one carries the decision."""
        rows: list[PlacedRow] = []
        for key, entity in entities.items():
            row = ChargeRow(
                partition=source.partition,
                offset=source.offset,
                timestamp_ms=decision.timestamp_ms,
                key=key,
                entity=entity_text(entity.tags.entity()),
                shape=encode_shape(entity.charges),
                amounts=[amount for charge in entity.charges for amount in charge.amounts],
                record_key=None,
                decision=b"",
                index=len(rows),
                rows=len(entities),
            )
            rows.append((page_of_entity(key, self._settings.pages), row))
        rows[0][1].record_key, rows[0][1].decision = record_key, _JSON.encode(decision)
        return rows


def _asked_by(request: Request) -> bytes | None:
    """The instance of a gateway that waits for the decision, before it executes the mutations; None if none does."""
    if not request.mutations or request.throttled_by is not None or request.instance is None:
        return None
    return request.instance.encode()
