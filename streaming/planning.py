"""From Kafka records to charge rows: the stage before the shuffle to the shards."""

from collections.abc import Iterable, Iterator, Mapping
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
from streaming.records import ChargeRow, OutputRecord, Parcel, dead_letter_record, decision_record, encode_parcel

MOST_PARCELLED_BYTES = 16 * 1024
"""Bytes of events for each shard whose rows wait to travel together: few enough to stay in the processor's cache."""


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


ShardedRow = tuple[int, ChargeRow | OutputRecord]
"""A row and the shard it goes to."""


def plan_event(
    value: bytes | None, source: Source, quotas: Quotas, settings: PlanSettings, decided_at_ms: int
) -> list[ShardedRow]:
    """The rows of one event; an event that can't be read becomes a dead letter."""
    try:
        request = parse_request(value, source, settings.limits)
    except InvalidRequestError as error:
        letter = dead_letter_record(settings.dead_letters_topic, value, source, error)
        return [(source.offset % settings.shards, letter)]
    return plan_request(request, source, quotas, settings, decided_at_ms)


def plan_request(
    request: Request, source: Source, quotas: Quotas, settings: PlanSettings, decided_at_ms: int
) -> list[ShardedRow]:
    """A charge row for each counter the request touches; one that touches none is decided at once."""
    plan = plan_charges(request, quotas, settings.quota)
    timestamp_ms = request.timestamp_ms or 0
    head = RequestHead(
        source.record_id(),
        request.request_id or "",
        request.user,
        request.client_id,
        request.api,
        request.gateway,
        [mutation.topic for mutation in request.mutations] if request.api in MUTATION_APIS else [],
        request.purgatory_ms,
        plan.unmetered,
        quotas.version,
        decided_at_ms,
    )
    if not plan.counters:
        decision = combine(head, timestamp_ms, (), settings.quota)
        return [(source.offset % settings.shards, decision_record(settings.decisions_topic, decision))]
    parts = len(plan.counters)
    rows: list[ShardedRow] = []
    for part, (key, counter) in enumerate(plan.counters.items()):
        row = ChargeRow(
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
        rows.append((shard_of(key, settings.shards), row))
    return rows


def parcels_of(
    events: Iterable[tuple[bytes | None, Source]],
    quotas: Quotas,
    settings: PlanSettings,
    decided_at_ms: int,
    most_bytes_a_shard: int = MOST_PARCELLED_BYTES,
) -> Iterator[dict[int, bytes]]:
    """The rows of all events in encoded parcels, one for each shard; anew after so many bytes of events."""
    most_bytes = most_bytes_a_shard * settings.shards
    parcels: dict[int, Parcel] = {}
    parcelled_bytes = 0
    for value, source in events:
        for shard, row in plan_event(value, source, quotas, settings, decided_at_ms):
            parcel = parcels.get(shard)
            if parcel is None:
                parcel = parcels[shard] = Parcel([], [])
            if isinstance(row, ChargeRow):
                parcel.charge_rows.append(row)
            else:
                parcel.records.append(row)
        parcelled_bytes += len(value or b"")
        if parcelled_bytes >= most_bytes:
            yield _encoded(parcels)
            parcels, parcelled_bytes = {}, 0
    yield _encoded(parcels)


def _encoded(parcels: Mapping[int, Parcel]) -> dict[int, bytes]:
    return {shard: encode_parcel(parcel) for shard, parcel in parcels.items()}
