"""Answers of a micro-batch that don't count, though nothing is wrong with each record alone.

They are of a driver that was replaced, repeat an answer, give an event another answer than it has, or were called
unreadable before. Only the driver sees that: it has the reports of all tasks, and the tables.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from itertools import zip_longest

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from msgspec import structs

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.sinks.tables.delta import SOURCE_ID, Offsets, answered, by_partition, columns
from sluice.sinks.tables.faults import RequestsTopic
from sluice.state.decisions.leader_epochs import EpochSpan, read_epoch
from sluice.streaming.audit.worker_pass import ANSWERS, Feed, TaskReport, content_digest, widen
from sluice.streaming.checkpoint.folder import Checkpoint

_SOURCES = columns("source_partition INT, source_offset BIGINT")
_KEY = _SOURCES.names


def reported_answers(reports: Iterable[TaskReport], topic: str) -> pa.Table:
    """The answers (ANSWERS) that all tasks report of a topic."""
    streams = [report.answers[topic] for report in reports if topic in report.answers]
    return pa.concat_tables([ANSWERS.empty_table(), *(pa.ipc.open_stream(stream).read_all() for stream in streams)])


def epoch_spans(reports: Iterable[TaskReport], topic: str) -> list[EpochSpan]:
    """The spans of the micro-batch's epochs in a topic; several tasks may have read a partition of it."""
    spans: dict[tuple[str, int, bytes], tuple[int, int]] = {}
    for name, partition, header, first, last in (span for report in reports for span in report.epochs):
        if name == topic:
            widen(spans, (name, partition, header), first, last)
    return [
        EpochSpan(partition, epoch, *span)
        for (_, partition, header), span in spans.items()
        if (epoch := read_epoch(header)) is not None
    ]


def further_answers(
    answers: Sequence[tuple[Feed, pa.Table]], open_table: Callable[[str], DeltaTable], requests: RequestsTopic
) -> tuple[list[tuple[str, Offsets]], list[tuple[str, Offsets]]]:
    """Records that answer an event of `requests` again: those that repeat its answer, and those that contradict it.

    Each with its topic. The answer of an event is the row that a table of any feed has, or else its first record by
    feed, partition and offset.
    """
    asked = pa.concat_tables([found for _, found in answers])
    parts = [
        part.append_column("feed", pa.array(np.full(len(part), number)))
        for number, (feed, found) in enumerate(answers)
        for part in (*(_rows(asked, feed, open_table(feed.table.path), requests) if len(asked) else ()), found)
    ]
    together = pa.concat_tables(parts).combine_chunks()
    values = {name: together[name].to_numpy() for name in together.drop_columns(SOURCE_ID).column_names}
    values[SOURCE_ID] = together[SOURCE_ID].combine_chunks().dictionary_encode().indices.to_numpy()
    values["is_record"] = values["partition"] >= 0
    # by event; of one event rows of tables first, then records by feed (decisions first), partition and offset
    order = np.lexsort([values[name] for name in ("offset", "partition", "feed", "is_record", *_KEY, SOURCE_ID)])
    feeds, partition, offset, digest = (values[name][order] for name in ("feed", "partition", "offset", "digest"))
    key = [values[name][order] for name in (*_KEY, SOURCE_ID)]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([part[1:] != part[:-1] for part in key], axis=0)
    first_digest = digest[is_first][np.cumsum(is_first) - 1]
    further = ~is_first & (partition >= 0)
    repeating, contradicting = (
        [
            (feed.topic, by_partition(partition[mine], offset[mine]))
            for number, (feed, _) in enumerate(answers)
            if (mine := records & (feeds == number)).any()
        ]
        for records in (further & (digest == first_digest), further & (digest != first_digest))
    )
    return repeating, contradicting


def _rows(answers: pa.Table, feed: Feed, table: DeltaTable, requests: RequestsTopic) -> list[pa.Table]:
    """The table's rows that answer the same events, in the form of answers of partition -1."""
    ids: list[str | None] = pc.unique(answers[SOURCE_ID]).to_pylist()
    if requests.unnamed in ids:
        ids.append(None)
    found = _sources(answered(table, requests.name, ids, _sources([answers]), _SOURCES))
    rows = []
    for part in answered(table, requests.name, ids, found, feed.table.columns) if found else ():
        digests = content_digest([feed.content(row) for row in part.to_pylist()])
        before = {name: np.full(len(part), -1) for name in ("partition", "offset", "timestamp_ms")}
        keys = {name: part[name] for name in _KEY}
        named = {"digest": digests, SOURCE_ID: requests.ids(part[SOURCE_ID])}
        rows.append(pa.table(before | keys | named).select(ANSWERS.names).cast(ANSWERS))
    return rows


def _sources(parts: Iterable[pa.Table]) -> Offsets:
    keys = [part.select(_KEY) for part in parts]
    if not keys:
        return {}
    together = pa.concat_tables(keys)
    return by_partition(*(together[name].to_numpy() for name in _KEY))


_FILE = "request_ends.json"


class _Ends(msgspec.Struct):
    batch_id: int
    ends: list[int]
    topic_id: str = ""  # this and what follows: those of RequestsTopic
    former: list[str] = []
    unnamed: str = ""


class RequestEnds:
    """The ends of the requests topic for the last micro-batch, kept so that a repeated one is treated as before.

    A topic that is made again begins with offset 0. Its id tells its events from those of the one before, of which
    there may be decisions that are still unread.
    """

    def __init__(self, checkpoint: Checkpoint, topic: str, known_ids: Callable[[], Set[str]] = frozenset) -> None:
        """`known_ids` are those that the tables have, asked for with a new checkpoint and with a new id.

        Raises CheckpointError if its file is damaged.
        """
        self._topic = topic
        self._known_ids = known_ids
        self._files = checkpoint.sluice
        self._last = self._files.read_json(_FILE, _Ends) or _Ends(-1, [])

    def of_batch(self, batch_id: int, now: Sequence[int], topic_id: str = "") -> RequestsTopic:
        """The topic for this micro-batch: as at its first attempt, else with the ends `now`, which never fall.

        `topic_id` is empty if it isn't known.
        """
        if batch_id != self._last.batch_id:
            self._last = self._with(list(now), topic_id)
            self._last.batch_id = batch_id
            self._files.write(_FILE, msgspec.json.encode(self._last))
        last = self._last
        return RequestsTopic(self._topic, last.ends, last.topic_id, last.former, last.unnamed)

    def _with(self, now: list[int], topic_id: str) -> _Ends:
        last = structs.replace(self._last, former=[each for each in self._last.former if each != self._last.topic_id])
        if not now:
            # The topic is gone. Its last events may have come after the last poll.
            return structs.replace(last, former=sorted({*last.former, last.topic_id}))
        if topic_id in ("", last.topic_id):
            return structs.replace(last, ends=_greatest(last.ends, now))
        if not last.topic_id and not last.ends:
            before = self._known_ids() - {topic_id}
            unnamed = "" if "" in before else topic_id
            return structs.replace(last, ends=now, topic_id=topic_id, former=sorted(before), unnamed=unnamed)
        if not last.topic_id and _greatest(last.ends, now) == now:
            # Its id wasn't known yet. Had the topic been made again since, it would hardly be as long.
            return structs.replace(last, ends=now, topic_id=topic_id, unnamed=topic_id)
        # A backup of the checkpoint may be older than topics between.
        between = self._known_ids() - {""}
        former = sorted({*last.former, *between, last.topic_id} - {topic_id})
        return structs.replace(last, ends=now, topic_id=topic_id, former=former)


def _greatest(known: Sequence[int], now: Sequence[int]) -> list[int]:
    return [max(pair) for pair in zip_longest(known, now, fillvalue=0)]


def current_ends(settings: Settings) -> tuple[list[int], str]:
    """The offset after the newest record of each partition of the requests topic, none if there is no topic; its id.

    Raises KafkaUnavailableError, or KafkaError.
    """
    with TopicReader(settings.kafka, settings.topics.requests) as reader:
        offsets, topic_id = reader.offsets(), reader.topic_id() or ""
    return [offsets[partition].end for partition in sorted(offsets)], topic_id
