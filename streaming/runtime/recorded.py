"""The state of what is recorded: the answers that should be in tables and are not, and tables that can't be read."""

from contextlib import suppress

from sluice.configs.settings import Settings, with_absolute_paths
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.topic_reader import TopicReader
from sluice.sinks.errors import TableReadError
from sluice.sinks.tables.trouble import TableSeen, see_table
from sluice.state.troubles import AUDIT_LATE_MS, Unwritten
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.own_tables import check_is_own, known_ids
from sluice.streaming.checkpoint.spark_files import batch_time_ms, check_spark_files, read_offsets
from sluice.streaming.errors import CheckpointError

_TABLES = ("decisions", "quota_metrics", "dead_letters", "unreadable")
"""Tables that every job writes."""


def unwritten_answers(settings: Settings, now_ms: int) -> Unwritten:
    """The answers that are older than the audit query's trigger and AUDIT_LATE_MS, by its checkpoint's last commit.

    Raises CheckpointError and KafkaError.
    """
    checkpoint, topics = Checkpoint(settings.audit.checkpoint), settings.topics
    committed = check_spark_files(checkpoint).committed
    read = read_offsets(checkpoint, committed) if committed >= 0 else {}
    due_ms, number = now_ms - settings.audit.trigger_s * 1000 - AUDIT_LATE_MS, 0
    for topic in (topics.decisions, topics.dead_letters):
        with TopicReader(settings.kafka, topic) as reader, suppress(TopicLostError):  # nothing was answered
            number += reader.count_until(due_ms, read.get(topic, {}))
    return Unwritten(number, batch_time_ms(checkpoint, committed))


def see_tables(settings: Settings) -> tuple[dict[str, TableSeen | None], dict[str, str | None]]:
    """The tables that the job writes, by name, and why each can't be read; None for one that can."""
    seen, reasons = dict[str, TableSeen | None](), dict[str, str | None]()
    delta = with_absolute_paths(settings).delta  # as the job knows its tables, whose relative paths doctor has
    checkpoint, known = Checkpoint(settings.audit.checkpoint), dict[str, str]()
    with suppress(CheckpointError):  # of which the queries say why
        known = known_ids(checkpoint)
    for name in (*_TABLES, "overrides") if settings.gives_way else _TABLES:
        path = getattr(delta, name)
        try:
            found = see_table(name, path, delta.storage_options)
            check_is_own(path, None if found is None else found.id, known, checkpoint)
            seen[name] = found
        except TableReadError as error:
            reasons[name] = str(error)
    return seen, reasons
