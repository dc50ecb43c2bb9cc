"""From Kafka records to charge rows: the stage before the shuffle to the shards."""

from typing import NamedTuple

from configs.settings import Settings
from state.charge import MUTATION_APIS, plan_charges
from state.decision import RequestHead, combine
from state.errors import InvalidRequestError
from state.quota import QuotaSettings
from state.request import Request
from state.resolution import Quotas
from state.shard import shard_of
from streaming.events import EventLimits, Source, parse_request
from streaming.records import ChargeRow, OutputRecord, dead_letter_record, decision_record


class PlanSettings(NamedTuple):
    """What planning needs of the settings."""

    requests_topic: str
    decisions_topic: str
    dead_letters_topic: str
    quota: QuotaSettings
    limits: EventLimits
    shards: int

    @classmethod
    def of(cls, settings: Settings) -> "PlanSettings":
        """The part of the job's settings that planning needs."""
        return cls(
            settings.topics.requests,
            settings.topics.decisions,
            settings.topics.dead_letters,
            settings.quota,
            EventLimits(settings.enforce.max_event_bytes, settings.enforce.max_future_ms),
            settings.state.shards,
        )


class ShardedRow(NamedTuple):
    """A row and the shard it goes to."""

    shard: int
    row: ChargeRow | OutputRecord


def plan_event(
    value: bytes | None, source: Source, quotas: Quotas, settings: PlanSettings, decided_at_ms: int
) -> list[ShardedRow]:
    """The rows of one event; an event that can't be read becomes a dead letter."""
    try:
        request = parse_request(value, source, settings.limits)
    except InvalidRequestError as error:
        letter = dead_letter_record(settings.dead_letters_topic, value, source, error)
        return [ShardedRow(source.offset % settings.shards, letter)]
    return plan_request(request, source, quotas, settings, decided_at_ms)


def plan_request(
    request: Request, source: Source, quotas: Quotas, settings: PlanSettings, decided_at_ms: int
) -> list[ShardedRow]:
    """A charge row for each counter the request touches; one that touches none is decided at once."""
    plan = plan_charges(request, quotas, settings.quota)
    timestamp_ms = request.timestamp_ms or 0
    head = RequestHead(
        decision_id=source.record_id(),
        request_id=request.request_id or "",
        user=request.user,
        client_id=request.client_id,
        api=request.api,
        gateway=request.gateway,
        topics=[mutation.topic for mutation in request.mutations] if request.api in MUTATION_APIS else [],
        purgatory_ms=request.purgatory_ms,
        unmetered=plan.unmetered,
        quota_version=quotas.version,
        decided_at_ms=decided_at_ms,
    )
    if not plan.charges_by_tags:
        decision = combine(head, timestamp_ms, (), settings.quota)
        return [ShardedRow(source.offset % settings.shards, decision_record(settings.decisions_topic, decision))]
    parts = len(plan.charges_by_tags)
    rows = []
    for part, (tags, charges) in enumerate(plan.charges_by_tags.items()):
        key = tags.key()
        row = ChargeRow(
            source.partition, source.offset, timestamp_ms, key, tags, charges, part, parts, None if part else head
        )
        rows.append(ShardedRow(shard_of(key, settings.shards), row))
    return rows
