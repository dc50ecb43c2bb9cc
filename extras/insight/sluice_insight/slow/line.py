"""The line of time of a client: decisions, what deciders said, and telemetry in; rows and evidence out. Pure."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import msgspec
from msgspec import UNSET

from sluice.process.format import duration, moment, percent
from sluice.process.texts import counter_text
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import Decision
from sluice.state.overrides.operator_holds import OperatorHolds
from sluice.state.quotas.entity import Tags
from sluice_insight.reports.span import Span
from sluice_insight.row_marks import stops
from sluice_insight.slow.verdict import BUSY_IDLE, LEAST_IDLE, QUEUE_MS, SLOW_MS, Broker, Evidence, Own, Wait
from sluice_insight.texts import tightened_text
from sluice_insight.waits import Waited, reported_waits

MINUTE_MS = 60_000
MOST_ROWS = 30
_STEPS_MS = (10_000, 30_000, MINUTE_MS, 300_000, 900_000, 3_600_000, 6 * 3_600_000, 86_400_000)

_Key = tuple[str, Tags]


class Telemetry(msgspec.Struct):
    """A record of the telemetry topic: the figures of a client, by the names of KIP-714, or of a broker."""

    kind: str
    at_ms: int
    broker: str = ""
    client_instance_id: str = ""
    client_id: str = ""
    user: str = ""
    metrics: dict[str, float | None] = {}


@dataclass(slots=True)
class Row:
    """A step of the line: times waited in ms, the highest use of a limit, and what client and brokers said of it."""

    at_ms: int
    sent_bytes: int = 0
    requests: int = 0
    used: float | None = None
    waited_ms: int = 0
    """The waits that brokers and gateways applied, or else the job's."""
    decided_ms: int = 0
    """The waits that the job decided."""
    by: list[str] = field(default_factory=list)
    """Quotas and deciders that the client waited for, the longest first."""
    client: dict[str, float] = field(default_factory=dict)
    """The client's own figures, by the fields of `Own`; empty without telemetry."""
    brokers: list[str] = field(default_factory=list)
    """Brokers that were busy, each with its signal."""


def step_ms(span: Span) -> int:
    """The length of a step, so that there are at most MOST_ROWS.

    >>> step_ms(Span(0, 600_000))
    30000
    """
    return next((each for each in _STEPS_MS if span.length_ms <= MOST_ROWS * each), _STEPS_MS[-1])


class _Union:
    """The union of some waits, by steps and in the last minute of a span."""

    def __init__(self, span: Span, step: int) -> None:
        self.by_step, self.last_minute_ms, self.events, self.tight = Tally[int](), 0, 0, 0
        self._span, self._step, self._waited = span, step, Waited()

    def add(self, lane: str, at_ms: int, wait_ms: int) -> None:
        self.count(*self._waited.add(lane, at_ms, wait_ms))

    def end(self) -> None:
        self.count(*self._waited.until(self._span.end_ms))

    @property
    def total_ms(self) -> int:
        return self.by_step.total()

    def count(self, begin_ms: int, end_ms: int) -> None:
        end_ms = min(end_ms, self._span.end_ms)
        self.last_minute_ms += max(0, end_ms - max(begin_ms, self._span.end_ms - MINUTE_MS))
        at_ms = max(begin_ms, self._span.start_ms)
        while at_ms < end_ms:
            number = (at_ms - self._span.start_ms) // self._step
            until_ms = min(end_ms, self._span.start_ms + (number + 1) * self._step)
            self.by_step[number] += until_ms - at_ms
            at_ms = until_ms


class LineOfTime:
    """Takes the decisions on a client in the order of their times, and those of a while before the span too."""

    def __init__(self, span: Span) -> None:
        self.span, self.step = span, step_ms(span)
        count = -(-span.length_ms // self.step)
        self.rows = [Row(span.start_ms + number * self.step) for number in range(count)]
        self.servers = set[str]()
        self._waits = dict[_Key, _Union]()
        self._waited, self._decided = _Union(span, self.step), _Union(span, self.step)
        self._limits = dict[_Key, float]()
        self._used = dict[_Key, dict[int, float]]()
        self._why = dict[_Key, str]()
        self._produced, self._produces = 0, 0

    def take(self, decision: Decision) -> None:
        """Take a decision on a request of the client."""
        at_ms, server = decision.timestamp_ms, server_text(decision.instance, decision.gateway)
        lane = "|".join((decision.user or "", decision.client_id or "", decision.instance or "", decision.api))
        waits = reported_waits(decision)
        is_tight = decision.elastic is not UNSET and decision.elastic.factor < 1.0
        for key in {*self._waits, *waits}:
            union = self._waits.setdefault(key, _Union(self.span, self.step))
            union.add(lane, at_ms, wait_ms := waits.get(key, 0))
            union.events += wait_ms > 0
            union.tight += wait_ms > 0 and is_tight
            if wait_ms > 0 and is_tight and decision.elastic is not UNSET:
                self._why[key] = tightened_text(server, decision.elastic.reason)
        self._waited.add(lane, at_ms, max(waits.values(), default=0))
        self._decided.add(lane, at_ms, decision.throttle_time_ms)
        if self.span.start_ms <= at_ms < self.span.end_ms:
            self._amounts(decision, (at_ms - self.span.start_ms) // self.step)
            self.servers |= {server} - {""}

    def _amounts(self, decision: Decision, number: int) -> None:
        row, amounts = self.rows[number], decision.amounts
        if amounts is not UNSET:
            partitions = sum(each.bytes for each in amounts.topic_partitions)
            size = partitions if amounts.bytes is None else amounts.bytes
            row.sent_bytes += 0 if amounts.withheld else size
            row.requests += amounts.requests
            if decision.api == "Produce":
                self._produced, self._produces = self._produced + size, self._produces + amounts.requests
        for charge in decision.charges:
            if charge.mode is UNSET and charge.limit:
                key = charge.quota, Tags.of(charge.entity)
                self._limits[key] = charge.limit
                if charge.rate is not None:
                    self._used.setdefault(key, {})[number] = charge.rate / charge.limit

    def ended(
        self, telemetry: Iterable[Telemetry] = (), stopped: Mapping[str, tuple[Sequence[tuple[int, int]], str]] = {}
    ) -> Evidence:
        """The evidence, when all was taken; the rows have it too.

        `stopped` is, by decider, the times in which it stopped the client, which may have sent nothing then, and why.
        """
        for each in (*self._waits.values(), self._waited, self._decided):
            each.end()
        self._fill_rows()
        said = [each for each in telemetry if self.span.start_ms <= each.at_ms < self.span.end_ms]
        clients = [each for each in said if each.kind == "client"]
        brokers = [each for each in said if each.kind == "broker" and self._is_used(each)]
        self._add_telemetry(clients, brokers)
        limited = dict.fromkeys([*self._waits, *self._limits])
        waits = [self._wait(key, self._waits.get(key) or _Union(self.span, self.step)) for key in limited]
        waits = [each for each in waits if each.quota not in stopped] + list(self._stops(waits, stopped))
        length_ms = self.span.length_ms
        own = own_of(clients, brokers, self.span)
        if self._produces:
            per_s = self._produces * 1000 / length_ms
            own = Own(**_fields(own) | {"produce_bytes": self._produced / self._produces, "produces_per_s": per_s})
        return Evidence(length_ms, waits, self._waited.total_ms / length_ms, _busy(brokers), own, bool(clients))

    def _is_used(self, record: Telemetry) -> bool:
        """True if the client sends to this broker, or nobody knows to which it does."""
        return not self.servers or f"broker {record.broker}" in self.servers

    def _fill_rows(self) -> None:
        for number, row in enumerate(self.rows):
            row.waited_ms, row.decided_ms = self._waited.by_step[number], self._decided.by_step[number]
            by = Tally({key[0]: union.by_step[number] for key, union in self._waits.items()})
            row.by = [name for name, ms in by.most_common() if ms]
            used = [shares[number] for shares in self._used.values() if number in shares]
            row.used = max(used, default=None)

    def _wait(self, key: _Key, union: _Union) -> Wait:
        quota, tags = key
        length_ms, used = self.span.length_ms, self._used.get(key)
        tight = union.tight / union.events if union.events else 0.0
        return Wait(
            quota,
            counter_text(tags),
            union.total_ms / length_ms,
            union.last_minute_ms / min(MINUTE_MS, length_ms),
            self._limits.get(key),
            fmean(used.values()) if used else None,
            tight,
            self._why.get(key, ""),
        )

    def _stops(
        self, waits: Sequence[Wait], stopped: Mapping[str, tuple[Sequence[tuple[int, int]], str]]
    ) -> Iterator[Wait]:
        """The waits by deciders: those that gateways told, or the times in which the stop was in force if longer."""
        for decider, (times, why) in stopped.items():
            union, counted_ms = _Union(self.span, self.step), self.span.start_ms
            for begin_ms, end_ms in sorted(times):
                union.count(max(begin_ms, counted_ms), end_ms)
                counted_ms = max(counted_ms, end_ms)
            told = [each for each in waits if each.quota == decider]
            if not told and decider != OperatorHolds.name and not self._produces:
                continue  # it stops producers alone
            for number, row in enumerate(self.rows):
                if union.by_step[number] and decider not in row.by:
                    row.by.insert(0, decider)
            share = max([union.total_ms / self.span.length_ms, *(each.share for each in told)])
            last = max([union.last_minute_ms / MINUTE_MS, *(each.last_minute for each in told)])
            yield Wait(decider, told[0].whose if told else "the client", share, last, why=why)

    def _add_telemetry(self, clients: Sequence[Telemetry], brokers: Sequence[Telemetry]) -> None:
        for row in self.rows:
            within = Span(row.at_ms, row.at_ms + self.step)
            mine = [each for each in clients if within.start_ms <= each.at_ms < within.end_ms]
            row.client = {name: value for name, value in _fields(own_of(mine, [], within)).items() if value and mine}
            busy = _busy([each for each in brokers if within.start_ms <= each.at_ms < within.end_ms])
            row.brokers = [f"{each.name}: {each.signal}" for each in busy if each.busy]


def _fields(own: Own) -> dict[str, float]:
    return {name: getattr(own, name) for name in Own.__dataclass_fields__ if getattr(own, name) is not None}


_NAMES: Mapping[str, tuple[str, ...]] = {
    "between_polls_ms": ("consumer.time.between.poll.avg",),
    "poll_idle": ("consumer.poll.idle.ratio.avg",),
    "latency_ms": (
        "producer.request.latency.avg",
        "producer.node.request.latency.avg",
        "consumer.coordinator.commit.latency.avg",
        "consumer.coordinator.heartbeat.response.time.max",
    ),
    "throttle_ms": ("producer.produce.throttle.time.avg", "consumer.fetch.manager.fetch.throttle.time.avg"),
}
"""The field of `Own` -> the metrics of KIP-714, and of Java's clients, that give it: the first one that there is.

A fetch waits for records, so the latency of fetches says nothing of the network."""

_REBALANCED = "consumer.coordinator.rebalance.latency.total"


def own_of(clients: Sequence[Telemetry], brokers: Sequence[Telemetry], span: Span) -> Own:
    """The client's own figures, as means of what its instances said, and the brokers' time for a Produce.

    >>> said = [Telemetry("client", 5, metrics={"consumer.poll.idle.ratio.avg": share}) for share in (0.1, 0.3)]
    >>> own_of(said, [], Span(0, 10)).poll_idle
    0.2
    """
    found = {name: mean for name, metrics in _NAMES.items() if (mean := _mean(clients, metrics)) is not None}
    instances = len({each.client_instance_id for each in clients}) or 1
    rebalanced_ms = sum(each.metrics.get(_REBALANCED) or 0.0 for each in clients) / instances
    parts = [_mean(brokers, (name,)) for name in ("request_queue_ms_p99", "local_ms_p99.Produce")]
    known = [part for part in parts if part is not None]
    return Own(**found, rebalancing=min(1.0, rebalanced_ms / span.length_ms), broker_ms=sum(known) if known else None)


def _mean(records: Iterable[Telemetry], names: Iterable[str]) -> float | None:
    for name in names:
        if values := [value for each in records if (value := each.metrics.get(name)) is not None]:
            return fmean(values)
    return None


def busy_signal(metrics: Mapping[str, float | None]) -> str | None:
    """The reason why a broker is busy, by its figures of 10 s; None if it isn't.

    >>> [busy_signal({"request_queue_ms_p99": 140.0, "request_handler_idle": idle}) for idle in (0.2, 0.6)]
    ['request queue (99 % wait up to 140 ms)', None]
    """
    queue_ms, idle_part = metrics.get("request_queue_ms_p99") or 0.0, metrics.get("request_handler_idle")
    if queue_ms >= (QUEUE_MS if idle_part is not None and idle_part < BUSY_IDLE else SLOW_MS):
        return f"request queue (99 % wait up to {duration(queue_ms)})"
    for name, threads in (("request_handler_idle", "request handlers"), ("network_idle", "network threads")):
        if (idle := metrics.get(name)) is not None and idle < LEAST_IDLE:
            return f"{threads} ({percent(1 - idle)} busy)"
    disk_ms = max(metrics.get(name) or 0.0 for name in ("log_flush_ms_p99", "local_ms_p99.Produce"))
    return f"disk (99 % of writes take up to {duration(disk_ms)})" if disk_ms >= SLOW_MS else None


def _busy(records: Iterable[Telemetry]) -> list[Broker]:
    """The brokers by their records, the busiest first."""
    signals = dict[str, list[str | None]]()
    for each in records:
        signals.setdefault(each.broker, []).append(busy_signal(each.metrics))
    found = []
    for broker, said in signals.items():
        busy = [each for each in said if each]
        found.append(Broker(f"broker {broker}", len(busy) / len(said), busy[-1] if busy else ""))
    return sorted(found, key=lambda each: -each.busy)


def stops_of(
    said: Iterable[tuple[str, Overrides]], span: Span, client: Tags
) -> dict[str, tuple[list[tuple[int, int]], str]]:
    """The times in which deciders stopped a client, whose tags are all that is known of it, and the last reason.

    `said` are the records of deciders by time; each counts until the decider's next one.

    >>> from sluice.state.contract.gateway_topics import Override
    >>> hold = Override("hold", reason="broker 2: /data is full", until_ms=9_000)
    >>> stops_of([("disk_guard", Overrides(1, 1_000, 60_000, [hold]))], Span(0, 20_000), Tags("alice"))
    {'disk_guard': ([(1000, 9000)], 'broker 2: /data is full, until 1970-01-01 00:00:09')}
    """
    by_decider, found = dict[str, list[Overrides]](), dict[str, tuple[list[tuple[int, int]], str]]()
    for decider, record in said:
        by_decider.setdefault(decider, []).append(record)
    for decider, records in by_decider.items():
        ends_ms = [*(each.at_ms for each in records[1:]), span.end_ms]
        for record, end_ms in zip(records, ends_ms, strict=True):
            for each in record.overrides:
                end = min(end_ms, span.end_ms, each.until_ms or span.end_ms)
                if stops(each, client) and max(record.at_ms, span.start_ms) < end:
                    times, _ = found.setdefault(decider, ([], ""))
                    times.append((record.at_ms, end))
                    until = "" if each.until_ms is None else f", until {moment(each.until_ms)}"
                    found[decider] = times, each.reason + until
    return found
