"""A gateway's metrics for Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.gateways.client.stats import METRICS, Counter
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
