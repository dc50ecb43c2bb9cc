"""Metrics of single clients and of gateways for Prometheus: a bounded number of series, out of the newest decisions."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from heapq import nlargest
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.insight.live import Bounds, CounterId, CounterState, GatewaySeen, LiveModel
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.state.troubles import Facts

LABELS = ("quota", "user", "client_id", "topic", "partition", "tenant", "mode")

MAX_LABEL_LENGTH = 100
"""Characters of a name in a label."""

NEWEST_DECISIONS = 2_000
"""Most decisions that are read at a time. A client that sends much is among the newest, and reading all costs more."""

_BOUNDS = Bounds(counters=20_000, name_characters=2_000_000, waits=0, recent=0, recent_bytes=0, gateways=100)
"""Bounds of the watched counters: of more, those that were charged last are kept."""

_FORGOTTEN_MS = 600_000
"""A gateway that was silent for so long has no series any more: it was taken away."""

_HEARD_MS = 10_000
"""A gateway heard of so lately is alive; the last heartbeat of one that ended may have been decided late."""

_RIGHT_MS = 1_000
"""A clock that is ahead by so little counts as right."""

_COLLECT_MS = 1_000
"""Scrapes within this time get the same answer: ranking all counters takes tens of milliseconds."""

_DIGEST_DIGITS = 8

_GAUGES = (
    ("sluice_client_limit", "Limit of the counter, in its quota's unit", LABELS),
    ("sluice_client_rate", "Rate of the counter, in its quota's unit", LABELS),
    ("sluice_client_remaining", "Rest of the limit; of a controller quota, its tokens", LABELS),
    ("sluice_client_waited_seconds", "Seconds of the last minute in which the counter's clients waited", LABELS),
    ("sluice_client_below_quota_seconds", "Those of them, if less than 0.9 of the limit is in use", LABELS),
    ("sluice_quota_rate", "Sum of the rates of a quota's counters", ("quota", "mode")),
    ("sluice_quota_waiting_counters", "Counters whose clients waited in the last minute", ("quota", "mode")),
    ("sluice_gateway_silent_seconds", "Since the newest heartbeat of the gateway that was seen", ("gateway",)),
    ("sluice_gateway_threads_down", "Threads of the gateway that should work and don't", ("gateway",)),
    ("sluice_gateway_metrics_seen", "0 while its broker doesn't hand over its metrics", ("gateway",)),
    ("sluice_gateway_not_exempt", "Logins with a client-id of Sluice that its broker doesn't exempt", ("gateway",)),
    ("sluice_gateway_clock_ahead_seconds", "By which its clock was ahead of the job's, at most 60", ("gateway",)),
    ("sluice_gateway_clock_behind_seconds", "By which its clock is behind the other gateways'", ("gateway",)),
    ("sluice_broker_load", "Greatest part of a broker's load, mean of 10 s; 0.9: full", ("gateway",)),
    ("sluice_broker_load_part", "What its load is made of, mean of 10 s; 0.9: full", ("gateway", "part")),
    ("sluice_cluster_load", "Load of the busiest broker", ()),
    ("sluice_broker_disk_free_bytes", "Free bytes on the volume of the log directory", ("gateway", "log_dir")),
    ("sluice_broker_disk_bytes", "All bytes of the volume of the log directory", ("gateway", "log_dir")),
    ("sluice_broker_disk_low", "1 while a log directory is below the floor, so that producers are held", ("gateway",)),
)


class ClientMetrics(Collector):
    """Gauges `sluice_client_*` of the `top` counters nearest to their limits, sums by quota, and states of gateways.

    `on_record` gets the records of the decisions topic. Thread-safe. A counter with rate 0 that is not throttled is
    never among the nearest. `clock_ms` is the clock, in epoch milliseconds.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        top: int,
        clock_ms: Callable[[], int] = now_ms,
        limits: BrokerLimits = NO_LIMITS,
    ) -> None:
        self._model = LiveModel(settings, _BOUNDS, limits)
        self._top = top
        self._clock_ms = clock_ms
        self.is_stale: Callable[[int], bool] = lambda _: False
        """True while decisions are old: then there are no series, as their figures would be of then, or 0."""
        self._lock = Lock()
        self._collected: list[Metric] = []
        self._collected_ms: int | None = None

    def on_record(self, value: bytes | None) -> None:
        """Apply a record. One that holds no decision changes nothing."""
        self._model.on_record(value, self._clock_ms())

    def facts(self, now_ms: int) -> Facts:
        """The heartbeats of gateways that were heard lately, their capacities and their clocks."""
        ahead_ms = {name: ahead or -(behind or 0) for name, (ahead, behind) in self._clocks_ms(now_ms).items()}
        return replace(self._model.facts(now_ms), ahead_ms=ahead_ms)

    def collect(self) -> Iterator[Metric]:
        """The present metrics, or those of less than _COLLECT_MS ago."""
        with self._lock:
            now_ms = self._clock_ms()
            if self._collected_ms is None or not 0 <= now_ms - self._collected_ms < _COLLECT_MS:
                self._collected, self._collected_ms = self._measure(now_ms), now_ms
            return iter(self._collected)

    def describe(self) -> Iterator[Metric]:
        """The metrics without values."""
        yield from _gauges().values()

    def _measure(self, now_ms: int) -> list[Metric]:
        gauges = _gauges()
        if self.is_stale(now_ms):
            return list(gauges.values())
        with self._model.lock:
            counters = self._model.counters()
            self._add_nearest(gauges, counters, now_ms)
            self._add_sums(gauges, counters, now_ms)
            self._add_gateways(gauges, now_ms)
            self._add_loads(gauges, now_ms)
        return list(gauges.values())

    def _add_nearest(self, gauges: Mapping[str, GaugeMetricFamily], counters: list[CounterState], now_ms: int) -> None:
        usage, series = self._model.usage, dict[tuple[str, ...], CounterState]()
        for counter in nlargest(self._top, counters, key=lambda counter: self._nearness(counter, now_ms)):
            if self._nearness(counter, now_ms) > (False, 0.0):
                series.setdefault(client_labels(counter.key), counter)  # a forged name may have the labels of another
        for labels, counter in series.items():
            gauges["sluice_client_limit"].add_metric(labels, counter.limit or 0.0)
            gauges["sluice_client_rate"].add_metric(labels, usage.rate(counter, now_ms) or 0.0)
            gauges["sluice_client_remaining"].add_metric(labels, usage.remaining(counter, now_ms) or 0.0)
            gauges["sluice_client_waited_seconds"].add_metric(labels, counter.waited_ms(now_ms) / 1000)
            gauges["sluice_client_below_quota_seconds"].add_metric(labels, usage.below_quota_ms(counter, now_ms) / 1000)

    def _nearness(self, counter: CounterState, now_ms: int) -> tuple[bool, float]:
        """The order: throttled counters first, then by share of the limit; a counter without limit is last."""
        share = self._model.usage.share(counter, now_ms)
        return (False, 0.0) if share is None else (counter.throttled(now_ms), share)

    def _add_sums(self, gauges: Mapping[str, GaugeMetricFamily], counters: list[CounterState], now_ms: int) -> None:
        rates: dict[tuple[str, str], float] = defaultdict(float)
        throttled: dict[tuple[str, str], int] = defaultdict(int)
        for counter in counters:
            labels = counter.key.kind.value, _mode(counter.key)
            rates[labels] += self._model.usage.rate(counter, now_ms) or 0.0
            throttled[labels] += counter.throttled(now_ms)
        for labels, rate in rates.items():
            gauges["sluice_quota_rate"].add_metric(labels, rate)
            gauges["sluice_quota_waiting_counters"].add_metric(labels, throttled[labels])

    def _newest_of_gateways(self) -> dict[str, GatewaySeen]:
        return {label_of(name): seen for name, seen in self._model.newest_gateways().items()}

    def _clocks_ms(self, now_ms: int) -> dict[str, tuple[int, int | None]]:
        """By how many ms each clock is ahead of the job's, and behind the other gateways'; None of a silent one."""
        ahead_ms, behind_ms = dict[str, int](), dict[str, int]()
        for label, seen in self._newest_of_gateways().items():
            if now_ms - seen.read_ms < _FORGOTTEN_MS:
                ahead_ms[label] = max(0, seen.at_ms - seen.read_ms)
            if now_ms - seen.read_ms < _HEARD_MS:
                behind_ms[label] = seen.read_ms - seen.at_ms
        # a slow job reads all of them late
        least_ms = max(0, min((each for each in behind_ms.values() if -each <= _RIGHT_MS), default=0))
        late_ms = {label: max(0, each - least_ms) for label, each in behind_ms.items()}
        return {label: (ahead, late_ms.get(label)) for label, ahead in ahead_ms.items()}

    def _add_gateways(self, gauges: Mapping[str, GaugeMetricFamily], now_ms: int) -> None:
        for label, seen in self._newest_of_gateways().items():
            if now_ms - seen.read_ms < _FORGOTTEN_MS:
                gauges["sluice_gateway_silent_seconds"].add_metric((label,), (now_ms - seen.read_ms) / 1000)
                gauges["sluice_gateway_threads_down"].add_metric((label,), seen.heartbeat.threads_down)
                gauges["sluice_gateway_metrics_seen"].add_metric((label,), float(seen.heartbeat.metrics_seen))
                gauges["sluice_gateway_not_exempt"].add_metric((label,), len(seen.heartbeat.not_exempt))
        for label, (ahead, behind) in self._clocks_ms(now_ms).items():
            gauges["sluice_gateway_clock_ahead_seconds"].add_metric((label,), ahead / 1000)
            if behind is not None:
                gauges["sluice_gateway_clock_behind_seconds"].add_metric((label,), behind / 1000)

    def _add_loads(self, gauges: Mapping[str, GaugeMetricFamily], now_ms: int) -> None:
        """The loads of all gateways, a late process of one left out where there is a newer one."""
        loads = {each.gateway.instance: each for each in self._model.loads(now_ms)}
        of_label = {label: seen.instance for label, seen in self._newest_of_gateways().items()}
        newest = {label: loads[instance] for label, instance in of_label.items() if instance in loads}
        for label, seen in newest.items():
            if seen.load is not None:
                gauges["sluice_broker_load"].add_metric((label,), seen.load.rho)
                for part, load in seen.load.parts.items():
                    gauges["sluice_broker_load_part"].add_metric((label, part), load)
            if log_dirs := {label_of(each.path): each for each in seen.mean.log_dirs}:
                gauges["sluice_broker_disk_low"].add_metric((label,), float(seen.low_disk is not None))
                for path, log_dir in log_dirs.items():
                    gauges["sluice_broker_disk_free_bytes"].add_metric((label, path), log_dir.free_bytes)
                    gauges["sluice_broker_disk_bytes"].add_metric((label, path), log_dir.total_bytes)
        if rhos := [seen.load.rho for seen in newest.values() if seen.load is not None]:
            gauges["sluice_cluster_load"].add_metric((), max(rhos))


def _gauges() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, meaning, labels=labels) for name, meaning, labels in _GAUGES}


def client_labels(key: CounterId) -> tuple[str, ...]:
    """The values of LABELS; empty where the counter has no such tag: to Prometheus an empty label is a missing one."""
    partition = "" if key.partition < 0 else str(key.partition)
    names = (key.user, key.client_id, key.topic or "")
    return (key.kind.value, *map(label_of, names), partition, label_of(key.tenant), _mode(key))


def label_of(name: str) -> str:
    """The name as a label: unprintable characters are replaced, and a long name is cut.

    A digest of the name follows a changed label, so that two names remain two.

    >>> label_of("alice"), label_of("al\\nice")
    ('alice', 'al\ufffdice…8570c32e')
    """
    label = "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:MAX_LABEL_LENGTH])
    if label == name:
        return label
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{label}…{digest[:_DIGEST_DIGITS]}"


def _mode(key: CounterId) -> str:
    return "shadow" if key.shadow else ""
