"""Counting what comes out of the job: decisions, dead letters and who is throttled."""

import json
import time
from collections import Counter, deque
from threading import Event, Lock, Thread
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from configs.settings import Settings
from sinks.topics import connect

_SHOWN_DECISIONS = 5
_POLL_MS = 200


class Tally:
    """What the decisions and dead-letter topics got since it was made; filled by a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        topics = settings.topics
        self._decisions_topic = topics.decisions
        self._lock = Lock()
        self._stop = Event()
        self.verdicts: Counter[str] = Counter()
        self.throttled_ms: Counter[str] = Counter()
        self.dead_letters = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=_SHOWN_DECISIONS)
        self._ids: set[str] = set()
        self.duplicates = 0
        self._delays_ms: deque[int] = deque(maxlen=10_000)
        self._consumer = connect(KafkaConsumer, settings.kafka, enable_auto_commit=False)
        partitions = [
            TopicPartition(topic, partition)
            for topic in (topics.decisions, topics.dead_letters)
            for partition in self._consumer.partitions_for_topic(topic) or ()
        ]
        self._consumer.assign(partitions)
        self._consumer.seek_to_end()
        for partition in partitions:
            self._consumer.position(partition)  # fixes the end here and now
        self._thread = Thread(target=self._run, name="tally", daemon=True)
        self._thread.start()

    @property
    def decisions(self) -> int:
        """How many decisions there were."""
        return sum(self.verdicts.values())

    @property
    def answered(self) -> int:
        """How many events got a decision or a dead letter."""
        return self.decisions + self.dead_letters

    def most_throttled(self, count: int) -> list[tuple[str, int]]:
        """The clients with the longest waits, and the sum of the waits in ms."""
        with self._lock:
            return self.throttled_ms.most_common(count)

    def last(self) -> list[dict[str, Any]]:
        """The latest decisions that weren't a plain ALLOW."""
        with self._lock:
            return list(self.recent)

    def median_delay_ms(self) -> int | None:
        """Median time from an event to its decision's arrival here."""
        with self._lock:
            delays = sorted(self._delays_ms)
        return delays[len(delays) // 2] if delays else None

    def close(self) -> None:
        """Stop counting."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
                with self._lock:
                    for record in records:
                        self._count(record.topic, record.value)

    def _count(self, topic: str, value: bytes) -> None:
        if topic != self._decisions_topic:
            self.dead_letters += 1
            return
        decision = json.loads(value)
        if decision["decision_id"] in self._ids:
            self.duplicates += 1
            return
        self._ids.add(decision["decision_id"])
        self.verdicts[decision["verdict"]] += 1
        self._delays_ms.append(max(0, time.time_ns() // 1_000_000 - decision["timestamp_ms"]))
        if decision["throttle_time_ms"]:
            self.throttled_ms[f"{decision['user'] or ''} | {decision['client_id'] or ''}"] += decision[
                "throttle_time_ms"
            ]
            self.recent.append(decision)
