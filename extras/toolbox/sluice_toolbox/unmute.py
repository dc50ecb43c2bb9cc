"""`sluice unmute`: publishes a control record, waits for the decision on it, and shows what was reset."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError
from msgspec import structs

from sluice.configs.settings import Settings
from sluice.kafka_io.client import OF_COMMANDS, connect
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import FROM_NOW_MS, TopicReader
from sluice.process.format import error_line
from sluice.process.texts import counter_text
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.decision_id import decision_id
from sluice.state.contract.records import DeadLetter, Decision, SourceRecord, Unmute
from sluice.state.decisions.charge_plan import plan_resets, unmuted_kinds
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import Tags, bounded_name, client_key
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice_reading.query import Tables
from sluice_reading.quota_text import no_members_text
from sluice_toolbox.errors import UnmuteError, UsageUnknownError
from sluice_toolbox.nobody import nobody_text
from sluice_toolbox.recent_usage import RecentUsage, Usage

_WAIT_MS = 100
_SEND_TIMEOUT_MS = 10_000

_MOST_NAMES = 5

_NOBODYS_CLIENT_ID = "\0"
"""Stands for every client-id that no quota names."""

_ENCODER = msgspec.json.Encoder()

_RecordT = TypeVar("_RecordT")

_DECISION = msgspec.json.Decoder(Decision)
_DEAD_LETTER = msgspec.json.Decoder(DeadLetter)


def client_ids_apart(
    unmute: Unmute, entries: Iterable[QuotaEntry], recent: Callable[[QuotaKind], Iterable[Usage]]
) -> Iterator[str]:
    """A line for each quota under which client-ids of the user have counters of their own, which are not reset.

    `recent`: what was charged lately, which has the client-ids that no quota names.
    """
    user, client_id = unmute.entity.user, unmute.entity.client_id
    if user is None or client_id is not None:
        return
    entries = list(entries)
    quotas = Quotas(entries)
    named = {entry.entity.client_id for entry in entries if isinstance(entry.entity.client_id, str)}
    user_tag, named_tags = bounded_name(user), set(map(bounded_name, named))
    for kind in filter(quotas.enabled, unmuted_kinds(unmute)):
        shared = quotas.resolve_client(kind, user, "").tags
        used = {usage.client_id for usage in recent(kind) if usage.user == user_tag and usage.client_id}
        names = named | (used - named_tags)
        apart = sorted(name for name in names if quotas.resolve_client(kind, user, name).tags != shared)
        if quotas.resolve_client(kind, user, _NOBODYS_CLIENT_ID).tags != shared:
            whose = "every client-id" + (f", such as {_names(apart)}," if apart else "")
        elif apart:
            whose = f"client-id {_names(apart)}"
        else:
            continue
        yield f"{kind}: {whose} of this user has a counter of its own, not reset; name it with --client-id"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"{name!r:.80}" for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def run_unmute(settings: Settings, unmute: Unmute, timeout_s: float) -> Iterator[str]:
    """Lines for the operator: the counters that were reset.

    Raises UnmuteError, QuotasTableError, KafkaUnavailableError.
    """
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    version = table.version()
    entries = table.entries(version)
    if (tenant := unmute.entity.tenant) is not None and (hint := no_members_text(tenant, entries)):
        yield f"{hint}; nothing to reset"
        return
    tables = Tables(settings.delta.decisions, settings.delta.quotas, settings.delta.storage_options)
    if hint := nobody_text(tables, unmute.entity.user, unmute.entity.client_id, entries, datetime.now(UTC)):
        yield f"{hint}; nothing to reset"
        return
    if not plan_resets(unmute, Quotas(entries, version)).entities:
        yield "no quota of this kind is set, so nothing counts this entity's requests; nothing to reset"
        return
    try:
        answer = answered(settings, unmute, timeout_s)
    except KafkaError as error:
        raise UnmuteError(
            f"Kafka refuses or doesn't answer: {error_line(error)}; see with `sluice doctor` that the brokers answer,"
            " and check that this user may write requests, and read decisions and dead letters"
        ) from error
    limited = [charge for charge in answer.charges if charge.limit is not None]
    for charge in limited or answer.charges:  # without any limit they may have had one, whose waits are ended
        yield f"{charge.quota}: the counter of {counter_text(Tags.of(charge.entity))} is reset"
    yield from client_ids_apart(unmute, entries, partial(_recent, settings))


def _recent(settings: Settings, kind: QuotaKind) -> list[Usage]:
    """Recent charges; none if they aren't known."""
    try:
        return RecentUsage(settings.delta.quota_metrics, settings.delta.storage_options, datetime.now(UTC)).of(kind)
    except UsageUnknownError:
        return []


def answered(settings: Settings, unmute: Unmute, timeout_s: float) -> Decision:
    """Publish the control record, and wait for what the job answers. Raises UnmuteError, KafkaError."""
    topics, kafka = settings.topics, settings.kafka | OF_COMMANDS
    with ExitStack() as stack:
        readers = {
            topic: stack.enter_context(TopicReader(kafka, topic, FROM_NOW_MS, fenced=fenced))
            for topic, fenced in ((topics.requests, False), (topics.decisions, True), (topics.dead_letters, True))
        }
        if missing := [topic for topic, reader in readers.items() if not reader.partitions()]:
            raise UnmuteError(
                f"no topic {', '.join(missing)} at {settings.kafka['bootstrap.servers']}; the job makes its topics when"
                " it starts (`sluice run`): start it, or name the settings (--config) of the one you mean"
            )
        decisions, letters = readers[topics.decisions], readers[topics.dead_letters]
        for reader in (decisions, letters):
            reader.unread()  # fixes where reading begins: the answer comes after this
        return wait_for_answer(decisions, letters, _publish(kafka, topics.requests, unmute), timeout_s)


def _publish(kafka: Mapping[str, str], topic: str, unmute: Unmute) -> SourceRecord:
    entity = unmute.entity
    key = client_key(entity.user or "", entity.client_id or "").encode()
    bounds = {"max_block_ms": _SEND_TIMEOUT_MS, "delivery_timeout_ms": _SEND_TIMEOUT_MS}
    with closing(connect(KafkaProducer, kafka, acks="all", allow_auto_create_topics=False, **bounds)) as producer:
        sent = producer.send(topic, _ENCODER.encode(unmute), key).get(_SEND_TIMEOUT_MS / 1000)
    return SourceRecord(topic, sent.partition, sent.offset)


def wait_for_answer(decisions: TopicReader, letters: TopicReader, source: SourceRecord, timeout_s: float) -> Decision:
    expected = decision_id(source.topic, source.partition, source.offset)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for _, record in decisions.read(_WAIT_MS):
            answer = _decoded(_DECISION, record)
            if answer is not None and answer.decision_id == expected:
                return answer
        for _, record in letters.read(_WAIT_MS):
            letter = _decoded(_DEAD_LETTER, record)
            # Nobody makes the topic again meanwhile, and the acknowledgement doesn't give its id.
            if letter is not None and structs.replace(letter.source, topic_id=None) == source:
                wrong = letter.error
                problem = f"{wrong.field}: {wrong.problem}; expected {wrong.expected}"
                raise UnmuteError(f"the job refused the control record: {problem}")
    raise UnmuteError(
        f"no decision on {expected} after {timeout_s:g} s; it takes effect when the job reads it: check that the job"
        " runs and isn't behind"
    )


def _decoded(decoder: msgspec.json.Decoder[_RecordT], record: FetchedRecord) -> _RecordT | None:
    """None for a record that somebody else wrote."""
    try:
        return decoder.decode(record.value or b"")
    except UNREADABLE:
        return None
