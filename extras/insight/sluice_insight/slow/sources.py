"""Inputs of the line of time: the tables of decisions, quotas and overrides, and the topic of telemetry."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from sluice.configs.settings import DeltaSettings
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.topic_reader import TopicReader
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import HEARTBEAT_API, Decision
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.resolution import Quotas
from sluice_insight.reports.explained import decision_of
from sluice_insight.reports.span import Span
from sluice_insight.slow.line import LineOfTime, Row, Telemetry, stops_of
from sluice_insight.slow.verdict import Evidence, Verdict, verdicts
from sluice_insight.whatif.overrides import overrides_said
from sluice_reading.query import Tables, literal

TELEMETRY_TOPIC = "sluice.client-telemetry"
"""Brokers with the extra `telemetry` write it."""

MOST_TELEMETRY = 100_000

MOST_DECISIONS = 100_000
"""Newest decisions of a span that are read; of more, its beginning has none."""

MOST_CLIENT_IDS = 100

_BEFORE_MS = 120_000
"""Time before a span in which a wait of it may have begun."""

_REMEMBERED_MS = 8 * 86_400_000
"""Time before a span in which a hold of it may have begun: no hold lasts for longer."""

_COLUMNS = (
    "decision_id, request_id, timestamp_ms, user, client_id, api, gateway, instance, throttle_time_ms, decided_by,"
    " throttled_by, charges, elastic, amounts"
)


class Recorded(NamedTuple):
    """The tables of decisions and quotas, and the path of that of overrides."""

    tables: Tables
    overrides: str

    @classmethod
    def of(cls, delta: DeltaSettings) -> Self:
        """The tables that the settings of a job name."""
        return cls(Tables(delta.decisions, delta.quotas, delta.storage_options), delta.overrides)


@dataclass(frozen=True, slots=True)
class SlowReport:
    """The line of time of a client, all that is known, and the causes that count, the first one the verdict."""

    client: Tags
    span: Span
    step_ms: int
    rows: list[Row]
    evidence: Evidence
    causes: list[Verdict]


def slow_client(
    recorded: Recorded, client: Tags, span: Span, telemetry: Iterable[Telemetry], *, only: bool = False
) -> SlowReport:
    """Answer why a client was slow. A user or a client-id that is "" stands for any.

    If `only`, what can't be told from requests of others is left out, and tenant and holds of a client-id that the user
    hasn't used: anybody may name one. Blocks; raises QueryError.
    """
    line, is_own = LineOfTime(span), not only or not client.client_id
    for decision in _decisions(recorded.tables, client, span, only=only):
        line.take(decision)
        is_own |= decision.client_id == client.client_id
    told = [each for each in telemetry if each.kind == "broker" or _is_of(each, client)]
    is_own |= any(each.kind == "client" for each in told)
    tenant = Tags(client.user, client.client_id, tenant=_tenant(recorded.tables, client) if is_own else "")
    evidence = line.ended(told, stops_of(_overrides(recorded, span), span, tenant) if is_own else {})
    return SlowReport(tenant, span, line.step, line.rows, evidence, verdicts(evidence))


def client_ids_of(tables: Tables, user: str, span: Span) -> list[str]:
    """The client-ids of a user in a span, those with the most decisions first, at most MOST_CLIENT_IDS.

    Raises QueryError.
    """
    times = f"timestamp_ms >= {span.start_ms} AND timestamp_ms < {span.end_ms}"
    found = tables.rows(
        f"SELECT client_id FROM decisions WHERE {client_condition(Tags(user), only=True)} AND {times}"  # noqa: S608 - numbers and quoted texts
        f" AND client_id <> '' GROUP BY client_id ORDER BY count(*) DESC, client_id LIMIT {MOST_CLIENT_IDS}"
    )
    return [client_id for (client_id,) in found]


def client_condition(client: Tags, *, only: bool) -> str:
    r"""The condition of rows of a client, and of sums whose event names only one of its names.

    >>> client_condition(Tags("o'neil"), only=True)
    "user = 'o''neil'"
    >>> client_condition(Tags("alice", "app"), only=False)
    "(user = 'alice' AND coalesce(client_id, '') IN ('app', '') OR coalesce(user, '') = '' AND client_id = 'app')"
    """
    user, client_id = literal(client.user), literal(client.client_id)
    if not client.user or not client.client_id:
        return f"user = {user}" if client.user else f"client_id = {client_id}"
    own = f"user = {user} AND coalesce(client_id, '') IN ({client_id}, '')"
    return f"({own})" if only else f"({own} OR coalesce(user, '') = '' AND client_id = {client_id})"


def _decisions(tables: Tables, client: Tags, span: Span, *, only: bool) -> Iterator[Decision]:
    times = f"timestamp_ms >= {span.start_ms - _BEFORE_MS} AND timestamp_ms < {span.end_ms}"
    condition = f"{client_condition(client, only=only)} AND {times} AND api <> '{HEARTBEAT_API}'"
    rows = tables.mappings(
        f"SELECT {_COLUMNS} FROM decisions WHERE {condition} ORDER BY timestamp_ms DESC LIMIT {MOST_DECISIONS}"  # noqa: S608 - numbers and quoted texts
    )
    return map(decision_of, reversed(rows))


def _overrides(recorded: Recorded, span: Span) -> list[tuple[str, Overrides]]:
    """The records of deciders in a span, and before as far as they may count in it."""
    return overrides_said(
        recorded.overrides, recorded.tables.storage_options, span.end_ms, span.start_ms - _REMEMBERED_MS
    )


def _tenant(tables: Tables, client: Tags) -> str:
    with suppress(QuotasTableError):
        entries = QuotasTable(tables.quotas, tables.storage_options).entries()
        return Quotas(entries).tenants.of(client.user, client.client_id)
    return ""


class HeardTelemetry:
    """The newest records of the telemetry topic, of bounded number. One thread writes, others may read."""

    def __init__(self) -> None:
        self._heard: deque[Telemetry] = deque(maxlen=MOST_TELEMETRY)

    def take(self, _key: bytes | None, value: bytes | None) -> None:
        """Take a record; one that holds no telemetry changes nothing."""
        with suppress(*UNREADABLE):
            self._heard.append(_TELEMETRY.decode(value or b""))

    def within(self, span: Span) -> list[Telemetry]:
        """The records of a span."""
        return [each for each in self._heard.copy() if span.start_ms <= each.at_ms < span.end_ms]


_TELEMETRY = msgspec.json.Decoder(Telemetry)


def telemetry_in(kafka: Mapping[str, str], topic: str, span: Span) -> list[Telemetry]:
    """The records of brokers in a span; none without the topic. Raises KafkaUnavailableError, KafkaError."""
    heard = HeardTelemetry()
    with suppress(TopicLostError), TopicReader(kafka, topic, span.start_ms) as reader:
        for _, record in reader.read_to_end():
            heard.take(record.key, record.value)
    return heard.within(span)


def _is_of(record: Telemetry, client: Tags) -> bool:
    return client.user in ("", record.user) and client.client_id in ("", record.client_id)
