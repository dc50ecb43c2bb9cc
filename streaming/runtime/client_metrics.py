"""Metrics of single clients for Prometheus: a bounded number of series, for the counters nearest to their limits."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import nlargest
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.insight.live import Bounds, CounterKey, CounterState, LiveModel
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.kinds import QuotaSettings

LABELS = ("quota", "user", "client_id", "topic", "partition", "mode")

MAX_LABEL_LENGTH = 100
"""Characters of a name in a label."""

NEWEST_DECISIONS = 2_000
"""Decisions to read at each look, if there are so many: a client that sends much is among them, at little cost."""

_BOUNDS = Bounds(counters=20_000, name_characters=2_000_000, waits=0, recent=0, recent_bytes=0, gateways=0)
"""Counters that are watched. Of more, those that were charged last."""

_COLLECT_MS = 1_000
"""Scrapes within this time get the same answer: ranking all counters takes tens of milliseconds."""

_DIGEST_DIGITS = 8


class ClientMetrics(Collector):
    """Gauges `sluice_client_*` of the `top` counters nearest to their limits, and sums of all counters by quota.

    Feed it records of the decisions topic with `take`. Thread-safe. A counter whose rate has come down to 0, and that
    waits for nothing, is none of the nearest. `clock_ms` is the clock, in epoch milliseconds.
    """

    def __init__(self, settings: QuotaSettings, top: int, clock_ms: Callable[[], int] = now_ms) -> None:
        self._model = LiveModel(settings, _BOUNDS)
        self._top = top
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._collected: list[Metric] = []
        self._collected_ms: int | None = None

    def take(self, value: bytes | None) -> None:
        """Take over one record; what is no decision changes nothing."""
        self._model.take(value, self._clock_ms())

    def collect(self) -> Iterator[Metric]:
        """The metrics now, or those of a moment ago."""
        with self._lock:
            now_ms = self._clock_ms()
            if self._collected_ms is None or not 0 <= now_ms - self._collected_ms < _COLLECT_MS:
                self._collected, self._collected_ms = self._measure(now_ms), now_ms
            return iter(self._collected)

    def describe(self) -> Iterator[Metric]:
        """The metrics without values."""
        yield from _Gauges().families

    def _measure(self, now_ms: int) -> list[Metric]:
        gauges = _Gauges()
        with self._model.lock:
            counters = self._model.counters()
            nearest = nlargest(self._top, counters, key=lambda counter: self._nearness(counter, now_ms))
            for counter in nearest:
                if self._nearness(counter, now_ms) > (False, 0.0):
                    self._add(gauges, counter, now_ms)
            self._add_sums(gauges, counters, now_ms)
        return gauges.families

    def _nearness(self, counter: CounterState, now_ms: int) -> tuple[bool, float]:
        """Those that wait come first, then by share of the limit; nothing for a counter without limit."""
        share = self._model.usage.share(counter, now_ms)
        return (False, 0.0) if share is None else (counter.wait_ms(now_ms) > 0, share)

    def _add(self, gauges: "_Gauges", counter: CounterState, now_ms: int) -> None:
        labels = client_labels(counter.key)
        if labels in gauges.seen:  # a forged name: Prometheus takes no series twice
            return
        gauges.seen.add(labels)
        usage = self._model.usage
        gauges.limit.add_metric(labels, counter.limit or 0.0)
        gauges.rate.add_metric(labels, usage.rate(counter, now_ms) or 0.0)
        gauges.remaining.add_metric(labels, usage.remaining(counter, now_ms) or 0.0)
        gauges.wait.add_metric(labels, counter.wait_ms(now_ms) / 1000)

    def _add_sums(self, gauges: "_Gauges", counters: list[CounterState], now_ms: int) -> None:
        rates: dict[tuple[str, str], float] = defaultdict(float)
        waiting: dict[tuple[str, str], int] = defaultdict(int)
        for counter in counters:
            labels = counter.key.kind.value, _mode(counter.key)
            rates[labels] += self._model.usage.rate(counter, now_ms) or 0.0
            waiting[labels] += counter.wait_ms(now_ms) > 0
        for labels, rate in rates.items():
            gauges.quota_rate.add_metric(labels, rate)
            gauges.waiting.add_metric(labels, waiting[labels])


class _Gauges:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self.limit = GaugeMetricFamily(
            "sluice_client_limit", "Limit of the counter, in its quota's unit", labels=LABELS
        )
        self.rate = GaugeMetricFamily("sluice_client_rate", "Rate of the counter, in its quota's unit", labels=LABELS)
        self.remaining = GaugeMetricFamily(
            "sluice_client_remaining", "What is left of the limit; of a controller quota, its tokens", labels=LABELS
        )
        self.wait = GaugeMetricFamily("sluice_client_wait_seconds", "What is left of the counter's wait", labels=LABELS)
        self.quota_rate = GaugeMetricFamily(
            "sluice_quota_rate", "Sum of the rates of a quota's counters", labels=("quota", "mode")
        )
        self.waiting = GaugeMetricFamily(
            "sluice_quota_waiting_counters", "Counters of a quota whose clients wait", labels=("quota", "mode")
        )
        self.seen: set[tuple[str, ...]] = set()

    @property
    def families(self) -> list[Metric]:
        return [self.limit, self.rate, self.remaining, self.wait, self.quota_rate, self.waiting]


def client_labels(key: CounterKey) -> tuple[str, ...]:
    """The values of LABELS; empty where the counter has no such tag, as Prometheus writes a label that isn't there."""
    partition = "" if key.partition < 0 else str(key.partition)
    names = (key.user, key.client_id, key.topic or "")
    return (key.kind.value, *map(label_of, names), partition, _mode(key))


def label_of(name: str) -> str:
    """The name as a label: what can't be printed is replaced, and a long name cut.

    A digest of the name then follows, so that two names remain two.

    >>> label_of("alice"), label_of("al\\nice")
    ('alice', 'al\ufffdice…8570c32e')
    """
    label = "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:MAX_LABEL_LENGTH])
    if label == name:
        return label
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{label}…{digest[:_DIGEST_DIGITS]}"


def _mode(key: CounterKey) -> str:
    return "shadow" if key.shadow else ""
