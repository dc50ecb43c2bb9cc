"""The line of time of a client: decisions, what deciders said, and telemetry in; rows and evidence out. Pure."""

from array import array
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

import msgspec
import numpy as np
from msgspec import UNSET

from sluice.process.format import moment, percent
from sluice.process.texts import counter_text
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import MAX_APPLIED_MS, Decision
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import OPERATOR
from sluice_insight.arrays import Integers
from sluice_insight.reports.recorded_waits import Waits, union_of_waits
from sluice_insight.reports.span import Span
from sluice_insight.row_marks import stops
from sluice_insight.slow.verdict import BUSY_IDLE, LEAST_IDLE, QUEUE_MS, SLOW_MS, Broker, Evidence, Own, Wait
from sluice_insight.texts import tightened_text
from sluice_insight.waits import reported_waits
from sluice_reading.times import duration

MINUTE_MS = 60_000
MOST_ROWS = 30
_STEPS_MS = (10_000, 30_000, MINUTE_MS, 300_000, 900_000, 3_600_000, 6 * 3_600_000, 86_400_000)

_Key = tuple[str, Tags]
Stops = tuple[Sequence[tuple[int, int]], str]
"""The times in which a decider stopped a client, which may overlap, and why."""

_WAITED, _DECIDED, _FIRST = 0, 1, 2
"""The numbers of the longest wait of all at each time, of the one that the job decided, and of the first limit."""


class Telemetry(msgspec.Struct):
    """A record of the telemetry topic: the figures of a client, by the names of KIP-714, or of a broker."""

    kind: str
    at_ms: int
    broker: str = ""
    client_instance_id: str = ""
    client_id: str = ""
    user: str = ""
    metrics: dict[str, float | None] = {}

    def is_in(self, span: Span) -> bool:
        """True if it was said in a span."""
        return span.start_ms <= self.at_ms < span.end_ms


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


@dataclass(slots=True)
class _Limit:
    """A limit or a decider, by its number; `tight` has of each of its waits if it was at a tightened server."""

    number: int
    limit: float | None = None
    used: dict[int, float] = field(default_factory=dict)
    tight: list[bool] = field(default_factory=list)
    why: str = ""


class LineOfTime:
    """Takes the decisions on a client, those of a while before the span too."""

    def __init__(self, span: Span) -> None:
        self.span, self.step = span, step_ms(span)
        self.rows = [Row(at_ms) for at_ms in range(span.start_ms, span.end_ms, self.step)]
        self.servers = set[str]()
        self._limits = dict[_Key, _Limit]()
        self._lanes = dict[tuple[int, str], int]()
        self._events = array("q")
        """Waits as `union_of_waits` takes them, each by the numbers of its limit and lane, its time and its ms."""
        self._produced, self._produces, self._fetches, self._first_ms = 0, 0, 0, span.end_ms

    def take(self, decision: Decision) -> None:
        """Take a decision on a request of the client."""
        at_ms, elastic = decision.timestamp_ms, decision.elastic
        server = server_text(decision.instance, decision.gateway)
        lane = "|".join((decision.user or "", decision.client_id or "", decision.instance or "", decision.api))
        waits = reported_waits(decision)
        self._note(_WAITED, lane, at_ms, max(waits.values(), default=0))
        self._note(_DECIDED, lane, at_ms, decision.throttle_time_ms)
        for key, wait_ms in waits.items():
            limit = self._of(key)
            limit.tight += [elastic is not UNSET and elastic.factor < 1.0] if wait_ms else []
            if elastic is not UNSET and limit.tight[-1:] == [True]:
                limit.why = tightened_text(server, elastic.reason)
        for key, limit in self._limits.items():
            if limit.tight:  # somebody has waited for it
                self._note(limit.number, lane, at_ms, waits.get(key, 0))
        if self.span.start_ms <= at_ms < self.span.end_ms:
            self._amounts(decision, (at_ms - self.span.start_ms) // self.step)
            self.servers |= {server} - {""}
            self._first_ms = min(self._first_ms, at_ms)

    def _of(self, key: _Key) -> _Limit:
        return self._limits.setdefault(key, _Limit(_FIRST + len(self._limits)))

    def _note(self, number: int, lane: str, at_ms: int, wait_ms: int) -> None:
        self._events.extend((number, self._lanes.setdefault((number, lane), len(self._lanes)), at_ms, wait_ms))

    def _amounts(self, decision: Decision, number: int) -> None:
        row, amounts = self.rows[number], decision.amounts
        self._fetches += decision.api == "Fetch"
        if amounts is not UNSET:
            partitions = sum(each.bytes for each in amounts.topic_partitions)
            size = partitions if amounts.bytes is None else amounts.bytes
            row.sent_bytes += 0 if amounts.withheld else size
            row.requests += amounts.requests
            if decision.api == "Produce":
                self._produced, self._produces = self._produced + size, self._produces + amounts.requests
        for charge in decision.charges:
            if charge.mode is UNSET and charge.limit:
                limit = self._of((charge.quota, Tags.of(charge.entity)))
                limit.limit = charge.limit
                if charge.rate is not None:
                    limit.used[number] = min(1.0, charge.rate / charge.limit)  # it passes the limit after each charge

    def ended(self, telemetry: Iterable[Telemetry] = (), stopped: Mapping[str, Stops] = {}) -> Evidence:
        """The evidence, when all was taken; the rows have it too. `stopped` are deciders that stopped the client."""
        is_seen = bool(self._events)
        for decider, (times, why) in stopped.items():
            self._stop(decider, times, why)
        lanes = np.array(self._events, np.int64).reshape(-1, 4).T
        waits, length_ms = union_of_waits(lanes[0], lanes[1], lanes[2], lanes[3], self.span.end_ms), self.span.length_ms
        steps = self._by_step(waits, self.span, self.step)
        minute = Span(max(self.span.start_ms, self.span.end_ms - MINUTE_MS), self.span.end_ms)
        shares = steps.sum(axis=1) / length_ms, self._by_step(waits, minute, MINUTE_MS).sum(axis=1) / minute.length_ms
        said = [each for each in telemetry if each.is_in(self.span)]
        clients = [each for each in said if each.kind == "client"]
        brokers = [each for each in said if each.kind == "broker"]
        if self.servers:  # else nobody knows to which it sends
            brokers = [each for each in brokers if f"broker {each.broker}" in self.servers]
        for number, row in enumerate(self.rows):
            self._fill(row, steps[:, number], number, clients, brokers)
        found = [
            self._wait(key, *(float(each[limit.number]) for each in shares)) for key, limit in self._limits.items()
        ]
        begin_ms = min((each.at_ms - self.step for each in clients), default=self.span.end_ms)
        begin_ms = max(self.span.start_ms, min(begin_ms, self._first_ms))
        brokers = [each for each in brokers if each.at_ms >= begin_ms]  # those that the client can have met
        own = own_of(clients, brokers, self.span)
        if self._produces:
            size, per_s = self._produced / self._produces, self._produces * 1000 / length_ms
            own = replace(own, produce_bytes=size, produces_per_s=per_s)
        seen_ms = self.span.end_ms - begin_ms
        return Evidence(
            length_ms, found, float(shares[0][_WAITED]), self._busy(brokers), own, bool(clients), is_seen, seen_ms
        )

    def _stop(self, decider: str, times: Sequence[tuple[int, int]], why: str) -> None:
        """Add the times in which a decider stopped the client, who may have sent nothing then, to the waits by it."""
        key = next((key for key in self._limits if key[0] == decider), None)
        if key is None and decider != OPERATOR and not self._produces:
            return  # it stops producers alone
        limit = self._of(key or (decider, Tags()))
        limit.why = why
        for begin_ms, end_ms in times:
            for at_ms in range(begin_ms, end_ms, MAX_APPLIED_MS):  # a wait is no longer
                wait_ms = min(end_ms - at_ms, MAX_APPLIED_MS)
                self._note(limit.number, f"{decider} {len(self._events)}", at_ms, wait_ms)

    def _by_step(self, waits: Waits, span: Span, step: int) -> Integers:
        """The milliseconds of each step of a span that were waited for each limit, by its number."""
        begin_ms = np.maximum(waits.begin_ms, span.start_ms) - span.start_ms
        end_ms = np.minimum(waits.end_ms, span.end_ms) - span.start_ms
        within = end_ms > begin_ms
        parts = Waits(waits.clients[within], begin_ms[within], end_ms[within]).by_period(step)
        sums = np.zeros((_FIRST + len(self._limits), -(-span.length_ms // step)), np.int64)
        np.add.at(sums, (parts.clients, parts.begin_ms // step), parts.end_ms - parts.begin_ms)
        return sums

    def _fill(
        self, row: Row, waited_ms: Integers, number: int, clients: Sequence[Telemetry], brokers: Sequence[Telemetry]
    ) -> None:
        """Fill a row with the milliseconds waited for each limit, and what was said in its time."""
        row.waited_ms, row.decided_ms = int(waited_ms[_WAITED]), int(waited_ms[_DECIDED])
        by = Tally({key[0]: int(waited_ms[limit.number]) for key, limit in self._limits.items()})
        row.by = [name for name, ms in by.most_common() if ms]
        uses = (limit.used.get(number) for limit in self._limits.values())
        row.used = max((used for used in uses if used is not None), default=None)
        within = Span(row.at_ms, row.at_ms + self.step)
        mine, busy = ([each for each in said if each.is_in(within)] for said in (clients, brokers))
        own = asdict(own_of(mine, [], within)) if mine else {}
        row.client = {name: value for name, value in own.items() if value is not None}
        row.brokers = [f"{each.name}: {each.signal}" for each in self._busy(busy) if each.busy]

    def _busy(self, records: Iterable[Telemetry]) -> list[Broker]:
        """The brokers by their records, the busiest first."""
        signals = dict[str, list[str | None]]()
        work = "reads" if self._fetches and not self._produces else "writes"
        for each in records:
            signals.setdefault(each.broker, []).append(busy_signal(each.metrics, work))
        found = []
        for broker, said in signals.items():
            busy = [each for each in said if each]
            found.append(Broker(f"broker {broker}", len(busy) / len(said), busy[-1] if busy else ""))
        return sorted(found, key=lambda each: -each.busy)

    def _wait(self, key: _Key, share: float, last_minute: float) -> Wait:
        (quota, tags), limit = key, self._limits[key]
        whose = counter_text(tags) if tags != Tags() else "the client"
        used = fmean(limit.used.values()) if limit.used else None
        tight = fmean(limit.tight) if limit.tight else 0.0
        return Wait(quota, whose, share, last_minute, limit.limit, used, tight, limit.why)


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

_REBALANCED, _REBALANCES = "consumer.coordinator.rebalance.latency.total", "consumer.coordinator.rebalance.total"
"""The ms that rebalances took since the last push, and their number, of which librdkafka says nothing."""


def own_of(clients: Sequence[Telemetry], brokers: Sequence[Telemetry], span: Span) -> Own:
    """The client's own figures, as means of what its instances said, and the brokers' time for a Produce.

    >>> said = [Telemetry("client", 5, metrics={"consumer.poll.idle.ratio.avg": share}) for share in (0.1, 0.3)]
    >>> own_of(said, [], Span(0, 10)).poll_idle
    0.2
    """
    found = {name: mean for name, metrics in _NAMES.items() if (mean := _mean(clients, metrics)) is not None}
    instances = len({each.client_instance_id for each in clients}) or 1
    first_ms = min((each.at_ms for each in clients), default=span.start_ms)
    told_ms = instances * min(span.length_ms, max(MINUTE_MS, span.end_ms - first_ms))  # a client may be new
    rebalanced_ms = [each.metrics.get(_REBALANCED) or 0.0 for each in clients]
    counts = [each.metrics.get(_REBALANCES) or float(ms > 0) for each, ms in zip(clients, rebalanced_ms, strict=True)]
    parts = [_mean(brokers, (name,)) for name in ("request_queue_ms_p99", "local_ms_p99.Produce")]
    known = [part for part in parts if part is not None]
    return Own(
        **found,
        rebalancing=min(1.0, sum(rebalanced_ms) / told_ms),
        rebalances_per_min=sum(counts) * MINUTE_MS / told_ms,
        broker_ms=sum(known) if known else None,
    )


def _mean(records: Iterable[Telemetry], names: Iterable[str]) -> float | None:
    for name in names:
        if values := [value for each in records if (value := each.metrics.get(name)) is not None]:
            return fmean(values)
    return None


def busy_signal(metrics: Mapping[str, float | None], work: str = "writes") -> str | None:
    """The reason why a broker is busy for clients with such work (of _DISK), by its figures of 10 s; None if it isn't.

    >>> [busy_signal({"request_queue_ms_p99": 140.0, "request_handler_idle": idle}) for idle in (0.2, 0.6)]
    ['request queue (99 % wait up to 140 ms)', None]
    """
    queue_ms, idle_part = metrics.get("request_queue_ms_p99") or 0.0, metrics.get("request_handler_idle")
    if queue_ms >= (QUEUE_MS if idle_part is not None and idle_part < BUSY_IDLE else SLOW_MS):
        return f"request queue (99 % wait up to {duration(queue_ms)})"
    for name, threads in (("request_handler_idle", "request handlers"), ("network_idle", "network threads")):
        if (idle := metrics.get(name)) is not None and idle < LEAST_IDLE:
            return f"{threads} ({percent(1 - idle)} busy)"
    disk_ms = max(metrics.get(name) or 0.0 for name in _DISK[work])
    return f"disk (99 % of {work} take up to {duration(disk_ms)})" if disk_ms >= SLOW_MS else None


_DISK = {"writes": ("log_flush_ms_p99", "local_ms_p99.Produce"), "reads": ("local_ms_p99.FetchConsumer",)}
"""The figures of the disk, by the work that waits for them."""


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
