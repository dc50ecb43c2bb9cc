"""Reads the ends of topics alone: whether requests are decided, and what is wrong with those that can't be."""

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.topic_reader import TopicReader
from sluice.state.contract.projection import projects
from sluice.state.contract.records import DeadLetter, FieldError
from sluice.state.errors import UNREADABLE
from sluice.state.troubles import HOUR_MS, DeadLettersSeen, Flow

_SAMPLE = 500
"""Newest dead letters of a partition, or of all, that are read for their problems."""

_AT_ONCE_MS = 3_000
"""Age of the newest answer against the newest request up to which nothing waits: that is the time of a micro-batch."""


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


class NewestRecords:
    """The newest records of requests, decisions and dead letters. Its connections stay until `close`."""

    def __init__(self, kafka: Mapping[str, str], topics: TopicSettings) -> None:
        self._topics = topics
        self._requests = TopicReader(kafka, topics.requests, on_restart=lambda: None)
        self._decisions = TopicReader(kafka, topics.decisions, on_restart=lambda: None)
        self._letters = TopicReader(kafka, topics.dead_letters, on_restart=lambda: None)
        self._newest_ms: dict[TopicReader, int] = {}
        self._problems = deque[tuple[int, tuple[str, str]]](maxlen=_SAMPLE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        for reader in (self._requests, self._decisions, self._letters):
            reader.close()

    def flow(self) -> Flow | None:
        """The newest request and answer; None if there are no topics yet. Raises KafkaError."""
        try:
            request_ms = self._newest(self._requests, 1)
        except TopicLostError:
            return None
        with suppress(TopicLostError):
            self._newest(self._decisions, 1)
        with suppress(TopicLostError):
            self._newest(self._letters, _SAMPLE)
        answers = [self._newest_ms[each] for each in (self._decisions, self._letters) if each in self._newest_ms]
        answer_ms = max(answers, default=None)
        is_behind = request_ms is not None and (answer_ms is None or request_ms - answer_ms > _AT_ONCE_MS)
        waiting = self._requests.count_since(0 if answer_ms is None else answer_ms + 1) if is_behind else 0
        return Flow(request_ms, answer_ms, waiting)

    def dead_letters(self, now_ms: int) -> DeadLettersSeen | None:
        """Those of the last hour; call `flow` before. None if there is no topic yet. Raises KafkaError."""
        try:
            count = self._letters.count_since(now_ms - HOUR_MS)
        except TopicLostError:
            return None
        problems = Counter(problem for at_ms, problem in self._problems if at_ms >= now_ms - HOUR_MS)
        field, text = problems.most_common(1)[0][0] if problems else ("", "")
        return DeadLettersSeen(count, f"{field}: {text}" if field else text)

    def _newest(self, reader: TopicReader, most: int) -> int | None:
        """The time of the newest record, of which the last `most` of each partition are read; None without any."""
        reader.skip_to_last(dict.fromkeys(reader.partitions(), most))
        for _, record in reader.read_to_end():
            self._newest_ms[reader] = max(record.timestamp_ms, self._newest_ms.get(reader, 0))
            if reader is self._letters:
                self._problems.append((record.timestamp_ms, problem_of(record.value)))
        return self._newest_ms.get(reader)
