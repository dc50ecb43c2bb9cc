"""The answers that should be in tables and are not."""

import time
from collections import deque
from collections.abc import Callable

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_reader import Offsets, TopicReader
from sluice.state.troubles import AUDIT_LATE_MS, START_MS, Unwritten
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.spark_files import check_spark_files, read_offsets

_Place = tuple[str, int]  # a topic and its partition


class UnwrittenAnswers:
    """The answers that wait for the audit query, by offsets and a clock that nobody sets: of others some may be off."""

    def __init__(self, settings: Settings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock_s = clock_s
        self.looks = deque[tuple[float, dict[_Place, int]]]()  # when, and the ends of the topics then, oldest first
        self._committed, self._committed_s = -2, 0.0  # the last micro-batch that was seen, and since when
        self._late_ms = START_MS  # until the first commit is seen: a start takes as long as the machine does

    def look(self, now_ms: int) -> Unwritten:
        """Those that it saw the query's trigger and AUDIT_LATE_MS ago, before the first commit START_MS ago.

        Raises CheckpointError and KafkaError.
        """
        now_s, (committed, unread) = self._clock_s(), _unread(self._settings)
        if committed != self._committed:
            if self._committed >= -1 and self._late_ms != AUDIT_LATE_MS:
                self._late_ms = AUDIT_LATE_MS
                self.looks.clear()  # what came while the first micro-batch ran is due from now on
            self._committed, self._committed_s = committed, now_s
        self.looks.append((now_s, {place: each.end for place, each in unread.items()}))
        due_s = now_s - self._settings.audit.trigger_s - self._late_ms / 1000
        while len(self.looks) > 1 and self.looks[1][0] <= due_s:
            self.looks.popleft()
        seen_s, ends = self.looks[0]
        if seen_s > due_s:
            return Unwritten(0)
        number = sum(max(0, min(each.end, ends.get(place, 0)) - each.first) for place, each in unread.items())
        return Unwritten(number, now_ms - int((now_s - self._committed_s) * 1000))


def unread_answers(settings: Settings) -> int:
    """The answers that no committed micro-batch of the audit query has read. Raises CheckpointError and KafkaError."""
    return sum(max(0, each.end - each.first) for each in _unread(settings)[1].values())


def _unread(settings: Settings) -> tuple[int, dict[_Place, Offsets]]:
    """The last micro-batch committed, or -1, and the offsets of each partition from the first one that it left."""
    checkpoint, topics = Checkpoint(settings.audit.checkpoint), settings.topics
    committed = check_spark_files(checkpoint).committed
    read, unread = read_offsets(checkpoint, committed) if committed >= 0 else {}, dict[_Place, Offsets]()
    for topic in (topics.decisions, topics.dead_letters):
        with TopicReader(settings.kafka, topic) as reader:
            for partition, each in reader.offsets().items():
                unread[topic, partition] = each._replace(first=max(each.first, read.get(topic, {}).get(partition, 0)))
    return committed, unread
