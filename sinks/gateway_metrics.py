"""A gateway's numbers for Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from sinks.gateway import Gateway


class GatewayCollector(Collector):
    """Metrics `sluice_gateway_*`, read when Prometheus asks: `registry.register(GatewayCollector(gateway))`."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """One family for each number of GatewayStats, labelled with the gateway's name."""
        stats, name = self._gateway.stats(), self._gateway.options.name
        gauges: dict[str, tuple[str, float]] = {
            "muted_clients": ("Clients that are muted now", stats.muted),
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
            "evicted_mutes": ("Mutes given up because the table was full", stats.evicted),
            "published_events": ("Events that Kafka has", stats.published),
            "dropped_events": ("Events dropped because too many waited", stats.dropped),
            "failed_events": ("Events given up", stats.failed),
        }
        for metric, (text, number) in counters.items():
            counter = CounterMetricFamily(f"sluice_gateway_{metric}", text, labels=["gateway"])
            counter.add_metric([name], number)
            yield counter
