"""Answers to the requests of a run, counted live: by verdict, with their delay; and a live model of all decisions."""

import statistics
from collections import Counter, deque
from threading import Lock
from typing import Any

import msgspec

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.process.clock import now_ms
from sluice.state.contract.decision_id import DecisionId
from sluice.state.contract.records import Verdict
from sluice_insight.live import LiveModel


class _Decision(msgspec.Struct):
    """A decision, as far as it is counted."""

    decision_id: str
    verdict: Verdict
    timestamp_ms: int


class _Place(msgspec.Struct):
    partition: int
    offset: int


class _Letter(msgspec.Struct):
    """A dead letter, as far as it is counted."""

    source: _Place


_DECISION, _LETTER = msgspec.json.Decoder(_Decision), msgspec.json.Decoder(_Letter)

Source = tuple[int, int]
"""Place where a request is stored: partition and offset."""


class Answers:
    """Counts the answers that the topics receive from now on, from `start` to `close`. Thread-safe.

    Own requests are those that `sent` is told of, by the place where they are stored: others may send the same request
    ids. Answers to other requests are kept too, because an answer may come before the acknowledgement of its request.
    """

    def __init__(self, settings: Settings) -> None:
        self.model = LiveModel(settings.quota)
        self.verdicts: Counter[str] = Counter()
        self.dead_letters = 0
        self.duplicates = 0
        self._lock = Lock()
        self._own: set[Source] = set()
        self._answered: set[Source] = set()
        self._others: dict[Source, tuple[_Decision | _Letter, int]] = {}
        self._delays_ms: deque[int] = deque(maxlen=10_000)
        followed = ((settings.topics.decisions, self.decision), (settings.topics.dead_letters, self.dead_letter))
        since_ms = now_ms()
        self._readers = [
            TopicFollower(settings.kafka, Reading(topic, on_record, since_ms, fenced=True))
            for topic, on_record in followed
        ]

    def start(self) -> None:
        """Begin to read."""
        for reader in self._readers:
            reader.start()

    def close(self) -> None:
        """Stop counting."""
        for reader in self._readers:
            reader.stop()

    @property
    def decisions(self) -> int:
        """Number of decisions, without duplicates."""
        return sum(self.verdicts.values())

    @property
    def answered(self) -> int:
        """Number of own requests with a decision or a dead letter."""
        return self.decisions + self.dead_letters

    @property
    def waiting(self) -> int:
        """Number of own requests that are stored, and have no answer yet."""
        with self._lock:
            return len(self._own) - self.answered

    @property
    def others(self) -> int:
        """Number of answers to requests that are not known as own ones."""
        return len(self._others)

    def sent(self, stored: Any) -> None:
        """Note an own request; `stored` has its partition and offset."""
        source = (stored.partition, stored.offset)
        with self._lock:
            self._own.add(source)
            if answer := self._others.pop(source, None):
                self._count(source, *answer)

    def decision(self, _: bytes | None, value: bytes | None) -> None:
        """Count a record of the decisions topic. Raises ValueError, which its reader passes over, if it is none."""
        self.model.on_record(value, now_ms())
        decision = _DECISION.decode(value or b"")
        source = DecisionId.of(decision.decision_id)
        if source is None:
            raise ValueError(f"{decision.decision_id!r} is no decision's id")
        self._take((source.partition, source.offset), decision)

    def dead_letter(self, _: bytes | None, value: bytes | None) -> None:
        """Count a record of the dead-letter topic. Raises as `decision` does."""
        letter = _LETTER.decode(value or b"")
        self._take((letter.source.partition, letter.source.offset), letter)

    def median_delay_ms(self) -> int | None:
        """Median time from an event to the arrival of its decision here."""
        with self._lock:
            return round(statistics.median(self._delays_ms)) if self._delays_ms else None

    def forget_delays(self) -> None:
        """Count the median from now on: answers of a job that was not warm yet say nothing of it."""
        with self._lock:
            self._delays_ms.clear()

    def _take(self, source: Source, answer: _Decision | _Letter) -> None:
        with self._lock:
            if source in self._answered:
                self.duplicates += 1
            elif source in self._own:
                self._count(source, answer, now_ms())
            else:
                self._others[source] = (answer, now_ms())

    def _count(self, source: Source, answer: _Decision | _Letter, arrived_ms: int) -> None:
        self._answered.add(source)
        if isinstance(answer, _Letter):
            self.dead_letters += 1
            return
        self.verdicts[answer.verdict] += 1
        self._delays_ms.append(max(0, arrived_ms - answer.timestamp_ms))
