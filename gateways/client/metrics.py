"""A gateway's metrics for Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.gateways.client.stats import GatewayStats
from sluice.state.contract.records import Share

if TYPE_CHECKING:
    from sluice.gateways.client.client import Gateway

_SHARE_LABELS = ["gateway", "quota", "user", "client_id", "topic", "partition", "tenant"]


class GatewayCollector(Collector):
    """Metrics `sluice_gateway_*`, collected at each scrape: `registry.register(GatewayCollector(gateway))`."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The counts of GatewayStats, labelled with the gateway's name, and the shares of its busiest counters."""
        stats, name = self._gateway.stats(), self._gateway.options.name
        yield from _gauges(stats, name)
        yield from _counters(stats, name)
        ages = GaugeMetricFamily(
            "sluice_gateway_decision_age_seconds",
            "From a heartbeat's timestamp to its decision's arrival, over recent heartbeats of all gateways",
            labels=["gateway", "quantile"],
        )
        ages.add_metric([name, "0.5"], stats.decision_age_p50_ms / 1000)
        ages.add_metric([name, "0.99"], stats.decision_age_p99_ms / 1000)
        yield ages
        yield from _shares(self._gateway.shares(), name)


def _gauges(stats: GatewayStats, name: str) -> Iterator[Metric]:
    limits_version = -1 if stats.limits_version is None else stats.limits_version
    gauges: dict[str, tuple[str, float]] = {
        "decided_waits": ("Counters that wait by decisions on events that weren't charged inline", stats.decided_waits),
        "inline_waits": ("Counters that wait by inline charging", stats.inline_waits),
        "counters": ("Counters of own clients that are kept", stats.counters),
        "gateways": ("Gateways that are alive, this one included", stats.gateways),
        "is_current": ("1 when all waits that were decided before the start are known", stats.is_current),
        "limits_version": ("Version of the limits in force; -1 before one is complete", limits_version),
        "unsent_events": ("Events that wait for Kafka", stats.unsent),
        "stale_seconds": ("Age of the oldest event that may be without a decision", stats.stale_s),
    }
    for metric, (text, value) in gauges.items():
        family = GaugeMetricFamily(f"sluice_gateway_{metric}", text, labels=["gateway"])
        family.add_metric([name], value)
        yield family


def _counters(stats: GatewayStats, name: str) -> Iterator[Metric]:
    counters: dict[str, tuple[str, float]] = {
        "sums": ("Sums of entities that were read, one for each and micro-batch", stats.sums),
        "charged_inline": ("Requests charged inline", stats.charged_inline),
        "throttled_inline": ("Requests charged inline that had to wait", stats.throttled_inline),
        "throttled_inline_seconds": ("Their waits in all", stats.throttled_inline_ms / 1000),
        "forgotten_counters": ("Counters forgotten because there were too many", stats.forgotten),
        "evicted_waits": ("Decided waits given up because there were too many", stats.evicted_waits),
        "capped_waits": ("Decided waits that asked for more than max_wait_ms", stats.capped_waits),
        "allowed_before_limits": ("Requests let through before the limits were known", stats.allowed_before_limits),
        "allowed_before_current": (
            "Requests let through before all waits decided earlier were known",
            stats.allowed_before_current,
        ),
        "unreadable_records": ("Records of any topic that were skipped", stats.unreadable_records),
        "fenced_records": ("Records of sums and waits left out that a replaced driver wrote", stats.fenced_records),
        "reader_restarts": ("Readers that failed and were started again", stats.reader_restarts),
        "published_events": ("Events that Kafka has", stats.published),
        "dropped_events": ("Events dropped because too many waited", stats.dropped),
        "failed_events": ("Events given up", stats.failed),
    }
    for metric, (text, number) in counters.items():
        family = CounterMetricFamily(f"sluice_gateway_{metric}", text, labels=["gateway"])
        family.add_metric([name], number)
        yield family


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
