"""A gateway's metrics for Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gateways.client.client import Gateway


class GatewayCollector(Collector):
    """Metrics `sluice_gateway_*`, collected at each scrape: `registry.register(GatewayCollector(gateway))`."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """One metric family for each field of GatewayStats, labelled with the gateway's name."""
        stats, name = self._gateway.stats(), self._gateway.options.name
        limits_version = -1 if stats.limits_version is None else stats.limits_version
        gauges: dict[str, tuple[str, float]] = {
            "muted_counters": ("Counters whose clients have to wait", stats.muted),
            "is_current": ("1 when all waits that were decided before the start are known", stats.is_current),
            "limits_version": ("Version of the limits in force; -1 before one is complete", limits_version),
            "unsent_events": ("Events that wait for Kafka", stats.unsent),
            "stale_seconds": ("Age of the oldest event that may be without a decision", stats.stale_s),
        }
        for metric, (text, value) in gauges.items():
            family = GaugeMetricFamily(f"sluice_gateway_{metric}", text, labels=["gateway"])
            family.add_metric([name], value)
            yield family
        ages = GaugeMetricFamily(
            "sluice_gateway_decision_age_seconds",
            "From a request's timestamp to its decision's arrival, over recent decisions",
            labels=["gateway", "quantile"],
        )
        ages.add_metric([name, "0.5"], stats.decision_age_p50_ms / 1000)
        ages.add_metric([name, "0.99"], stats.decision_age_p99_ms / 1000)
        yield ages
        counters = {
            "decisions": ("Decisions read", stats.decisions),
            "evicted_mutes": ("Waits given up because there were too many", stats.evicted),
            "capped_mutes": ("Waits that asked for more than max_mute_ms", stats.capped),
            "allowed_before_limits": ("Requests let through before the limits were known", stats.allowed_before_limits),
            "allowed_before_current": (
                "Requests let through before all waits decided earlier were known",
                stats.allowed_before_current,
            ),
            "unreadable_records": ("Records of any topic that were skipped", stats.unreadable_records),
            "reader_restarts": ("Readers that failed and were started again", stats.reader_restarts),
            "published_events": ("Events that Kafka has", stats.published),
            "dropped_events": ("Events dropped because too many waited", stats.dropped),
            "failed_events": ("Events given up", stats.failed),
        }
        for metric, (text, number) in counters.items():
            counter = CounterMetricFamily(f"sluice_gateway_{metric}", text, labels=["gateway"])
            counter.add_metric([name], number)
            yield counter
