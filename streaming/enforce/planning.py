"""Planning one event: its dead letter, its decision if it charges nothing, or the charge rows of its counters."""

from typing import NamedTuple

from sluice.configs.settings import Settings
from sluice.state.contract.records import Request, Unmute
from sluice.state.decisions.charge_plan import ChargePlan, plan_charges, plan_resets
from sluice.state.decisions.decision import RequestHead, allowed
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.origin import new_pages
from sluice.streaming.enforce.parsing import EventLimits, parse_event
from sluice.streaming.enforce.wire import ChargeRow, OutputRecord, Source, dead_letter_record, decision_record


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


def plan_event(
    value: bytes | None, source: Source, quotas: Quotas, settings: PipelineSettings, decided_at_ms: int
) -> OutputRecord | list[ChargeRow]:
    """The charge rows of one event, or its record if it charges no counter."""
    event = read_event(value, source, settings)
    if isinstance(event, Request):
        return plan_request(event, source, quotas, settings, decided_at_ms)
    if isinstance(event, Unmute):
        return plan_unmute(event, source, quotas, settings, decided_at_ms)
    return event


def read_event(value: bytes | None, source: Source, settings: PipelineSettings) -> Request | Unmute | OutputRecord:
    """The request or control record of one event; the dead letter of an event that breaks the contract."""
    try:
        return parse_event(value, source, settings.limits)
    except InvalidRequestError as error:
        return dead_letter_record(settings.dead_letters_topic, value, source, error)


def plan_request(
    request: Request, source: Source, quotas: Quotas, settings: PipelineSettings, decided_at_ms: int
) -> OutputRecord | list[ChargeRow]:
    """One charge row per counter that the request charges; the decision itself if it charges none."""
    plan = plan_charges(request, quotas, settings.quota)
    head = RequestHead.of_request(request, source.record_id(), plan.unmetered, quotas.version, decided_at_ms)
    return _planned(head, request.timestamp_ms or 0, plan, source, settings)


def plan_unmute(
    unmute: Unmute, source: Source, quotas: Quotas, settings: PipelineSettings, decided_at_ms: int
) -> OutputRecord | list[ChargeRow]:
    """One charge row per counter that is reset; the decision itself if there is none.

    Its time is when the micro-batch began, by the job's clock: a gateway takes the answer only if it is later than the
    decision that mutes, and the operator's clock may be wrong.
    """
    head = RequestHead.of_unmute(unmute, source.record_id(), quotas.version, decided_at_ms)
    return _planned(head, decided_at_ms, plan_resets(unmute, quotas), source, settings)


def _planned(
    head: RequestHead, timestamp_ms: int, plan: ChargePlan, source: Source, settings: PipelineSettings
) -> OutputRecord | list[ChargeRow]:
    """One charge row per counter of the plan; the decision itself if there is none."""
    if not plan.counters:
        return decision_record(settings.decisions_topic, allowed(head, timestamp_ms, []), settings.job_id)
    parts = len(plan.counters)
    return [
        ChargeRow(
            source.partition,
            source.offset,
            timestamp_ms,
            key,
            counter.tags,
            counter.charges,
            part,
            parts,
            None if part else head,
        )
        for part, (key, counter) in enumerate(plan.counters.items())
    ]
