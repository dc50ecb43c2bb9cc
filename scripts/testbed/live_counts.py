"""Live counts of a job's output: decisions, dead letters, and the usage and waits of the busiest clients."""

import json
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.state.decisions.epochs import Fence

_SHOWN_DECISIONS = 5
_POLL_MS = 200
_RECENT_S = 10
_REMEMBERED = 100_000

Source = tuple[int, int]
"""Where a request is stored: partition and offset."""


class BusyClient(NamedTuple):
    """A client as the last decisions on it say: its fullest quota, and the wait that is left.

    `usage` and `limit` are in the unit of the quota, per second; `quota` is None if no quota limits the client.
    """

    client: str
    quota: str | None
    usage: float
    limit: float | None
    wait_ms: int


class _Charge(NamedTuple):
    """The last charge of a client to one counter; `until_ms` is the end of its wait."""

    quota: str
    rate: float
    limit: float
    until_ms: int


class _Answer(NamedTuple):
    """An answer and when it came; `decision` is None for a dead letter."""

    decision: dict[str, Any] | None
    arrived_ms: int


@dataclass
class Answers:
    """Counts the answers to the requests that it was told of by `sent`; thread-safe.

    The requests are known by where they are stored: others may send the same request ids. Answers to requests that it
    wasn't told of are kept, up to `remembered`, because an answer may come before the acknowledgement of its request.
    """

    remembered: int = _REMEMBERED
    verdicts: Counter[str] = field(default_factory=Counter)
    dead_letters: int = 0
    duplicates: int = 0
    _lock: Lock = field(default_factory=Lock)
    _own: set[Source] = field(default_factory=set)
    _answered: set[Source] = field(default_factory=set)
    _unknown: OrderedDict[Source, _Answer] = field(default_factory=OrderedDict)
    _forgotten: int = 0
    _recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_SHOWN_DECISIONS))
    _delays_ms: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))
    _charges: dict[str, dict[str, _Charge]] = field(default_factory=dict)
    _seconds: deque[tuple[int, Counter[str]]] = field(default_factory=lambda: deque(maxlen=_RECENT_S))

    @property
    def decisions(self) -> int:
        """Number of decisions, without duplicates."""
        return sum(self.verdicts.values())

    @property
    def answered(self) -> int:
        """Number of own requests with a decision or a dead letter."""
        return self.decisions + self.dead_letters

    @property
    def others(self) -> int:
        """Number of answers to requests that are not known as own ones."""
        return len(self._unknown) + self._forgotten

    def sent(self, partition: int, offset: int) -> None:
        """An own request is stored there."""
        with self._lock:
            source = (partition, offset)
            self._own.add(source)
            answer = self._unknown.pop(source, None)
            if answer is not None:
                self._count(source, answer)

    def decision(self, value: bytes, arrived_ms: int) -> None:
        """A record of the decisions topic."""
        decision = json.loads(value)
        _, partition, offset = decision["decision_id"].rsplit("-", 2)
        self._take((int(partition), int(offset)), _Answer(decision, arrived_ms))

    def dead_letter(self, value: bytes, arrived_ms: int) -> None:
        """A record of the dead-letter topic."""
        source = json.loads(value)["source"]
        self._take((source["partition"], source["offset"]), _Answer(None, arrived_ms))

    def busiest(self, count: int, at_ms: int) -> list[BusyClient]:
        """The clients with the most decisions in the last 10 s, busiest first."""
        with self._lock:
            recent: Counter[str] = Counter()
            for second, clients in self._seconds:
                if second > at_ms // 1000 - _RECENT_S:
                    recent.update(clients)
            return [_busy(client, self._charges[client], at_ms) for client, _ in recent.most_common(count)]

    def latest(self) -> list[dict[str, Any]]:
        """The latest decisions that throttled or rejected a request."""
        with self._lock:
            return list(self._recent)

    def median_delay_ms(self) -> int | None:
        """Median time in ms from an event to the arrival of its decision here."""
        with self._lock:
            delays = sorted(self._delays_ms)
        return delays[len(delays) // 2] if delays else None

    def _take(self, source: Source, answer: _Answer) -> None:
        with self._lock:
            if source in self._answered:
                self.duplicates += 1
            elif source in self._own:
                self._count(source, answer)
            else:
                self._unknown[source] = answer
                if len(self._unknown) > self.remembered:
                    self._unknown.popitem(last=False)
                    self._forgotten += 1

    def _count(self, source: Source, answer: _Answer) -> None:
        self._answered.add(source)
        decision = answer.decision
        if decision is None:
            self.dead_letters += 1
            return
        self.verdicts[decision["verdict"]] += 1
        self._delays_ms.append(max(0, answer.arrived_ms - decision["timestamp_ms"]))
        if decision["throttle_time_ms"]:
            self._recent.append(decision)
        client = f"{decision['user'] or ''} | {decision['client_id'] or ''}"
        second = answer.arrived_ms // 1000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][client] += 1
        charges = self._charges.setdefault(client, {})
        for charge in decision["charges"]:
            # A shadow quota delays nobody, and a charge without a limit says nothing of usage.
            if charge["limit"] and charge.get("mode") != "shadow":
                charges[f"{charge['quota']} {charge['entity']}"] = _Charge(
                    charge["quota"],
                    charge["rate"] or 0.0,
                    charge["limit"],
                    decision["timestamp_ms"] + charge["throttle_ms"],
                )


class LiveCounts(Answers):
    """Counts the answers that the decisions and dead-letter topics receive from now on, in a background thread."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        topics = settings.topics
        self._decisions_topic = topics.decisions
        self._fence = Fence()
        self._stop = Event()
        self._consumer = connect(KafkaConsumer, settings.kafka, enable_auto_commit=False)
        partitions = [
            TopicPartition(topic, partition)
            for topic in (topics.decisions, topics.dead_letters)
            for partition in self._consumer.partitions_for_topic(topic) or ()
        ]
        self._consumer.assign(partitions)
        self._consumer.seek_to_end()
        for partition in partitions:
            self._consumer.position(partition)  # seek_to_end is lazy: this reads the end offset now
        self._thread = Thread(target=self._run, name="live-counts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop counting."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _counts(self, record: Any) -> bool:
        """Whether it is an answer that counts for gateways."""
        return record.topic != self._decisions_topic or self._fence.passes_record(record)

    def _run(self) -> None:
        while not self._stop.is_set():
            for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
                arrived_ms = now_ms()
                for record in filter(self._counts, records):
                    count = self.decision if record.topic == self._decisions_topic else self.dead_letter
                    count(record.value, arrived_ms)


def _busy(client: str, charges: dict[str, _Charge], at_ms: int) -> BusyClient:
    """The client with the charge it waits for longest, or the one that is nearest to its limit."""
    if not charges:
        return BusyClient(client, None, 0.0, None, 0)
    fullest = max(charges.values(), key=lambda charge: (max(charge.until_ms, at_ms), charge.rate / charge.limit))
    return BusyClient(client, fullest.quota, fullest.rate, fullest.limit, max(0, fullest.until_ms - at_ms))
