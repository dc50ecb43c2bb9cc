"""The counts of a gateway, and its metrics for Prometheus."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.gateways.client.options import GatewayOptions
from sluice.state.contract.records import Share

_SHARE_LABELS = ["gateway", "quota", "user", "client_id", "topic", "partition", "tenant"]


class Gauge(NamedTuple):
    """The metric `sluice_gateway_*` of a count: its text, its name where that is another one, and a divisor."""

    text: str
    name: str | None = None
    divisor: int = 1


class Counter(Gauge):
    """The metric of a count that only grows."""


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counts of one gateway. A decision's age is from a heartbeat's timestamp to the arrival of what was decided.

    The percentiles cover the last 1 024 heartbeats of all gateways. Heartbeats are events too. `limits_version` is None
    before the limits are read. `instances` are the names of the other gateways that are alive.
    """

    decided_waits: Annotated[int, Gauge("Counters that wait by decisions on events that weren't charged inline")]
    evicted_waits: Annotated[int, Counter("Decided waits given up because there were too many")]
    capped_waits: Annotated[int, Counter("Decided waits that asked for more than max_wait_ms")]
    sums: Annotated[int, Counter("Sums of entities that were read, one for each and micro-batch")]
    decision_age_p50_ms: int
    decision_age_p99_ms: int
    stale_s: Annotated[float, Gauge("Age of the oldest event that may be without a decision", "stale_seconds")]
    published: Annotated[int, Counter("Events that Kafka has", "published_events")]
    unsent: Annotated[int, Gauge("Events that wait for Kafka", "unsent_events")]
    dropped: Annotated[int, Counter("Events dropped because too many waited", "dropped_events")]
    failed: Annotated[int, Counter("Events given up", "failed_events")]
    limits_version: Annotated[int | None, Gauge("Version of the limits in force; -1 before one is complete")]
    allowed_before_limits: Annotated[int, Counter("Requests let through before the limits were known")]
    is_current: Annotated[bool, Gauge("1 when all waits that were decided before the start are known")]
    allowed_before_current: Annotated[int, Counter("Requests let through before all waits decided earlier were known")]
    unreadable_records: Annotated[int, Counter("Records of any topic that were skipped")]
    fenced_records: Annotated[int, Counter("Records of sums and waits left out that a replaced driver wrote")]
    reader_restarts: Annotated[int, Counter("Readers that failed and were started again")]
    charged_inline: Annotated[int, Counter("Requests charged inline")]
    throttled_inline: Annotated[int, Counter("Requests charged inline that had to wait")]
    throttled_inline_ms: Annotated[int, Counter("Their waits in all", "throttled_inline_seconds", 1000)]
    inline_waits: Annotated[int, Gauge("Counters that wait by inline charging")]
    counters: Annotated[int, Gauge("Counters of own clients that are kept")]
    forgotten: Annotated[int, Counter("Counters forgotten because there were too many", "forgotten_counters")]
    gateways: Annotated[int, Gauge("Gateways that are alive, this one included")]
    instances: tuple[str, ...]


METRICS: dict[str, Gauge] = {
    field: hint.__metadata__[0]
    for field, hint in get_type_hints(GatewayStats, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""Field of GatewayStats -> its metric."""


class Counted(Protocol):
    """The part of a `Gateway` that is collected."""

    options: GatewayOptions

    def stats(self) -> GatewayStats:
        """Its counts."""

    def shares(self) -> list[Share]:
        """Its busiest counters."""


class GatewayCollector(Collector):
    """Metrics `sluice_gateway_*`, collected at each scrape: `registry.register(GatewayCollector(gateway))`."""

    def __init__(self, gateway: Counted) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The counts of GatewayStats, labelled with the gateway's name, and the shares of its busiest counters."""
        stats, name = self._gateway.stats(), self._gateway.options.name
        for field, metric in METRICS.items():
            of_kind = CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily
            family = of_kind(f"sluice_gateway_{metric.name or field}", metric.text, labels=["gateway"])
            count = getattr(stats, field)
            family.add_metric([name], -1 if count is None else count / metric.divisor)
            yield family
        ages = GaugeMetricFamily(
            "sluice_gateway_decision_age_seconds",
            "From a heartbeat's timestamp to its decision's arrival, over recent heartbeats of all gateways",
            labels=["gateway", "quantile"],
        )
        ages.add_metric([name, "0.5"], stats.decision_age_p50_ms / 1000)
        ages.add_metric([name, "0.99"], stats.decision_age_p99_ms / 1000)
        yield ages
        yield from _shares(self._gateway.shares(), name)


def _shares(shares: list[Share], name: str) -> Iterator[Metric]:
    """The busiest counters: at most as many label sets as a heartbeat names shares."""
    gauges = {
        "share": ("This gateway's share of the limit, per second", "share"),
        "share_limit": ("The limit, per second", "limit"),
        "share_charged": ("Rate of this gateway's own traffic, per second", "charged"),
    }
    for metric, (text, field) in gauges.items():
        family = GaugeMetricFamily(f"sluice_gateway_{metric}", text, labels=_SHARE_LABELS)
        for share in shares:
            entity = share.entity
            partition = "" if entity.partition is None else str(entity.partition)
            labels = [entity.user or "", entity.client_id or "", entity.topic or "", partition, entity.tenant or ""]
            family.add_metric([name, share.quota, *labels], getattr(share, field))
        yield family
