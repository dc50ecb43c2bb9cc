"""Metrics of single clients for Prometheus: a bounded number of series, out of the newest decisions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.process.format import label_of
from sluice.state.quotas.kinds import QuotaSettings
from sluice.streaming.runtime.observers import Observer
from sluice_insight.live import Bounds, CounterId, CounterState, LiveModel

LABELS = ("quota", "user", "client_id", "topic", "partition", "tenant", "mode")

_BOUNDS = Bounds(counters=20_000, name_characters=2_000_000, waits=0, recent=0, recent_bytes=0)
"""Bounds of the watched counters: of more, those that were charged last are kept."""

_COLLECT_MS = 1_000
"""Scrapes within this time get the same answer: ranking all counters takes tens of milliseconds."""

_GAUGES = (
    ("sluice_client_limit", "Limit of the counter, in its quota's unit", LABELS),
    ("sluice_client_rate", "Rate of the counter, in its quota's unit", LABELS),
    ("sluice_client_remaining", "Rest of the limit; of a controller quota, its tokens", LABELS),
    ("sluice_client_waited_seconds", "Seconds of the last minute in which the counter's clients waited", LABELS),
    ("sluice_client_below_quota_seconds", "Those of them, if less than 0.9 of the limit is in use", LABELS),
    ("sluice_quota_rate", "Sum of the rates of a quota's counters", ("quota", "mode")),
    ("sluice_quota_waiting_counters", "Counters whose clients waited in the last minute", ("quota", "mode")),
)


class ClientMetrics(Observer):
    """Gauges `sluice_client_*` of the `top` counters nearest to their limits, and sums by quota.

    `on_record` gets the records of the decisions topic. Thread-safe. A counter with rate 0 that is not throttled is
    never among the nearest. `clock_ms` is the clock, in epoch milliseconds.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        top: int,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        super().__init__()
        self._model = LiveModel(settings, _BOUNDS)
        self._top = top
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._collected: list[Metric] = []
        self._collected_ms: int | None = None

    def on_record(self, value: bytes | None) -> None:
        """Apply a record. One that holds no decision changes nothing."""
        self._model.on_record(value, self._clock_ms())

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


def _gauges() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, meaning, labels=labels) for name, meaning, labels in _GAUGES}


def client_labels(key: CounterId) -> tuple[str, ...]:
    """The values of LABELS; empty where the counter has no such tag: to Prometheus an empty label is a missing one."""
    partition = "" if key.partition < 0 else str(key.partition)
    names = (key.user, key.client_id, key.topic or "")
    return (key.kind.value, *map(label_of, names), partition, label_of(key.tenant), _mode(key))


def _mode(key: CounterId) -> str:
    return "shadow" if key.shadow else ""


def observer(settings: Settings) -> ClientMetrics:
    """The entry point: the metrics of clients of a job with these settings."""
    return ClientMetrics(settings.quota, settings.metrics.top_clients)
