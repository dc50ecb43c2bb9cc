"""The gauge of what is wrong now, by the facts of the job and of an extra that polls topics, brokers and tables."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.state.troubles import KNOWN, Trouble


class TroublesMetric(Collector):
    """The gauge `sluice_trouble`: 1 for each trouble there is, and 0 for all others, so that an alert sees its end."""

    def __init__(self, troubles: Callable[[], list[Trouble]]) -> None:
        self._troubles = troubles

    def collect(self) -> Iterator[Metric]:
        """The present metric."""
        return iter([self._gauge({(each.name, each.severity) for each in self._troubles()})])

    def describe(self) -> Iterator[Metric]:
        """The metric without values."""
        return iter([self._gauge(set())])

    @staticmethod
    def _gauge(there: set[tuple[str, str]]) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(
            "sluice_trouble", "1 while it is wrong, else 0; /readyz has its words", labels=("name", "severity")
        )
        for name, severities in KNOWN.items():
            for severity in severities:
                gauge.add_metric((name, severity), float((name, severity) in there))
        return gauge
