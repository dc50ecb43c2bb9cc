"""Reads the ends of topics alone: whether requests are decided, and what is wrong with those that can't be."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType

import msgspec

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.topic_reader import TopicReader
from sluice.state.contract.decision_id import answered_event
from sluice.state.contract.projection import projects
from sluice.state.contract.records import DeadLetter, FieldError, SourceRecord
from sluice.state.errors import UNREADABLE
from sluice.state.troubles import HOUR_MS, DeadLettersSeen, Flow

_SAMPLE = 500
"""Newest dead letters of a partition, or of all, that are read for their problems."""

_DECISIONS = 100
"""Newest decisions of a partition that are read for the requests that they answer."""


@projects(FieldError)
class _Error(msgspec.Struct):
    field: str = ""
    problem: str = ""


@projects(DeadLetter)
class _DeadLetter(msgspec.Struct):
    error: _Error


_DEAD_LETTER = msgspec.json.Decoder(_DeadLetter)


def problem_of(value: bytes | None) -> tuple[str, str]:
    """Field and problem of a dead letter.

    >>> problem_of(b'{"error":{"field":"api","problem":"is missing"}}'), problem_of(b"7")
    (('api', 'is missing'), ('', 'unreadable record'))
    """
    try:
        error = _DEAD_LETTER.decode(value or b"").error
    except UNREADABLE:
        return "", "unreadable record"
    return error.field[:200], error.problem[:200]


class NewestRecords(AbstractContextManager["NewestRecords"]):
    """The newest records of requests, decisions and dead letters. Its connections stay until `close`.

    `clock_s` is the time by which requests wait: whatever clocks brokers, gateways and job have, and who sets them.
    """

    def __init__(
        self, kafka: Mapping[str, str], topics: TopicSettings, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._topics = topics
        self._clock_s = clock_s
        self._answered: dict[int, int] = {}  # partition of the requests -> offset after its last one with an answer
        self._since_s: float | None = None  # the first look, and then the last that saw an answer, or nobody wait
        self._is_measured = False
        self._heard: list[SourceRecord] = []  # requests that were answered since the last look
        self._requests = TopicReader(kafka, topics.requests, on_restart=self._answered.clear)
        self._decisions = TopicReader(kafka, topics.decisions, on_restart=lambda: None)
        self._letters = TopicReader(kafka, topics.dead_letters, on_restart=lambda: None)
        self._newest_ms: dict[TopicReader, int] = {}
        self._problems = deque[tuple[int, tuple[str, str]]](maxlen=_SAMPLE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        for reader in (self._requests, self._decisions, self._letters):
            reader.close()

    def flow(self) -> Flow | None:
        """The newest request and answer; None if there are no topics yet. Raises KafkaError."""
        try:
            request_ms, topic_id = self._newest(self._requests, 1), self._requests.topic_id()
        except TopicLostError:
            return None
        for reader, most in ((self._decisions, _DECISIONS), (self._letters, _SAMPLE)):
            with suppress(TopicLostError):
                self._newest(reader, most)
        answers = [self._newest_ms[each] for each in (self._decisions, self._letters) if each in self._newest_ms]
        waiting, now_s = self._waiting(topic_id), self._clock_s()
        if (self._heard and self._since_s is not None) or not waiting:
            self._since_s, self._is_measured = now_s, True
        self._since_s = since_s = now_s if self._since_s is None else self._since_s
        self._heard.clear()
        return Flow(request_ms, max(answers, default=None), waiting, int((now_s - since_s) * 1000), self._is_measured)

    def dead_letters(self, now_ms: int) -> DeadLettersSeen | None:
        """Those of the last hour; call `flow` before. None if there is no topic yet. Raises KafkaError."""
        try:
            count = self._letters.count_since(now_ms - HOUR_MS)
        except TopicLostError:
            return None
        problems = Counter(problem for at_ms, problem in self._problems if at_ms >= now_ms - HOUR_MS)
        field, text = problems.most_common(1)[0][0] if problems else ("", "")
        return DeadLettersSeen(count, f"{field}: {text}" if field else text)

    def _waiting(self, topic_id: str | None) -> int:
        """The requests without an answer, by the offsets that answers name, but for those of forged answers."""
        ends = self._requests.offsets()
        for event in self._heard:
            is_there = event.topic_id in (None, topic_id) and event.partition in ends
            if is_there and event.offset < ends[event.partition].end:
                self._answered[event.partition] = max(event.offset + 1, self._answered.get(event.partition, 0))
        firsts = self._answered or {partition: each.first for partition, each in ends.items()}
        found = ((ends[partition], first) for partition, first in firsts.items() if partition in ends)
        return sum(max(0, each.end - max(first, each.first)) for each, first in found)

    def _newest(self, reader: TopicReader, most: int) -> int | None:
        """The time of the newest record, of which the last `most` of each partition are read; None without any."""
        reader.skip_to_last(dict.fromkeys(reader.partitions(), most))
        for _, record in reader.read_to_end():
            self._newest_ms[reader] = max(record.timestamp_ms, self._newest_ms.get(reader, 0))
            answered = None if reader is self._requests else answered_event(record.value)
            if answered is not None and answered.topic == self._topics.requests:
                self._heard.append(answered)
            if reader is self._letters:
                self._problems.append((record.timestamp_ms, problem_of(record.value)))
        return self._newest_ms.get(reader)
