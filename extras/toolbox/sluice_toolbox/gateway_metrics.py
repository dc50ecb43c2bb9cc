"""Metrics of gateways and of brokers' loads for Prometheus, by the heartbeats among the newest decisions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.process.clock import now_ms
from sluice.process.format import label_of
from sluice.state.contract.projection import projects
from sluice.state.contract.records import Decision, Heartbeat
from sluice.state.errors import UNREADABLE
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.state.troubles import Facts
from sluice.streaming.runtime.observers import Observer
from sluice_reading.gateways_seen import FUTURE_MS, GatewaySeen, GatewaysSeen

_MOST_GATEWAYS = 100

_FORGOTTEN_MS = 600_000
"""A gateway that was silent for so long has no series any more: it was taken away."""

_HEARD_MS = 10_000
"""A gateway heard of so lately is alive; the last heartbeat of one that ended may have been decided late."""

_RIGHT_MS = 1_000
"""A clock that is ahead by so little counts as right."""

_GAUGES = (
    ("sluice_gateway_silent_seconds", "Since its newest heartbeat; gone ten minutes after the last", ("gateway",)),
    ("sluice_gateway_threads_down", "Threads of the gateway that should work and don't", ("gateway",)),
    ("sluice_gateway_metrics_seen", "0 while its broker doesn't hand its metrics to the plugin", ("gateway",)),
    ("sluice_gateway_not_exempt", "Logins with a client-id of Sluice that its broker doesn't exempt", ("gateway",)),
    ("sluice_gateway_clock_ahead_seconds", "Lead of its clock over the job's, at most 60", ("gateway",)),
    ("sluice_gateway_clock_behind_seconds", "Lag of its clock behind the least late gateway's", ("gateway",)),
    ("sluice_broker_load", "Load of a broker, mean of 10 s; 0.9 is full; gone after 30 s", ("gateway",)),
    ("sluice_broker_load_part", "Parts of its load, mean of 10 s; 0.9 is full", ("gateway", "part")),
    ("sluice_cluster_load", "Load of the busiest broker", ()),
    ("sluice_broker_disk_free_bytes", "Free bytes on the volume of the log directory", ("gateway", "log_dir")),
    ("sluice_broker_disk_bytes", "All bytes of the volume of the log directory", ("gateway", "log_dir")),
    ("sluice_broker_disk_low", "1 while a log directory is below the floor", ("gateway",)),
)


@projects(Decision)
class _Beat(msgspec.Struct):
    """The fields of a decision on a heartbeat."""

    timestamp_ms: int
    decided_at_ms: int
    gateway: str | None = None
    instance: str | None = None
    heartbeat: Heartbeat | UnsetType = UNSET


_BEAT = msgspec.json.Decoder(_Beat)


class GatewayMetrics(Observer):
    """Gauges `sluice_gateway_*` and `sluice_broker_*`, and the facts of heartbeats.

    `on_record` gets the records of the decisions topic. Thread-safe. `clock_ms` is the clock, in epoch milliseconds.
    """

    def __init__(self, limits: BrokerLimits = NO_LIMITS, clock_ms: Callable[[], int] = now_ms) -> None:
        super().__init__()
        self._seen = GatewaysSeen(limits, _MOST_GATEWAYS)
        self._clock_ms = clock_ms

    def on_record(self, value: bytes | None) -> None:
        """Take a record. One that holds no decision on a heartbeat changes nothing."""
        try:
            beat = _BEAT.decode(value or b"")
        except UNREADABLE:
            return
        if beat.heartbeat is not UNSET:
            now_ms = self._clock_ms()
            at_ms = min(beat.timestamp_ms, now_ms + FUTURE_MS)
            self._seen.add(beat.gateway, beat.instance, beat.heartbeat, at_ms, now_ms, beat.decided_at_ms)

    def facts(self, now_ms: int) -> Facts:
        """The heartbeats of gateways that were heard lately, their capacities and their clocks."""
        ahead_ms = {name: ahead or -(behind or 0) for name, (ahead, behind) in self._clocks_ms(now_ms).items()}
        return replace(self._seen.facts(now_ms), ahead_ms=ahead_ms)

    def collect(self) -> Iterator[Metric]:
        """The present metrics."""
        gauges, now_ms = _gauges(), self._clock_ms()
        if not self.is_stale(now_ms):
            self._add_gateways(gauges, now_ms)
            self._add_loads(gauges, now_ms)
        return iter(gauges.values())

    def describe(self) -> Iterator[Metric]:
        """The metrics without values."""
        return iter(_gauges().values())

    def _newest(self) -> dict[str, GatewaySeen]:
        return {label_of(name): seen for name, seen in self._seen.newest().items()}

    def _clocks_ms(self, now_ms: int) -> dict[str, tuple[int, int | None]]:
        """By how many ms each clock is ahead of the job's, and behind the other gateways'; None of a silent one."""
        ahead_ms, behind_ms = dict[str, int](), dict[str, int]()
        for label, seen in self._newest().items():
            if now_ms - seen.read_ms < _FORGOTTEN_MS:
                ahead_ms[label] = max(0, seen.at_ms - seen.read_ms)
            if now_ms - seen.read_ms < _HEARD_MS:
                behind_ms[label] = seen.read_ms - seen.at_ms
        # a slow job reads all of them late
        least_ms = max(0, min((each for each in behind_ms.values() if -each <= _RIGHT_MS), default=0))
        late_ms = {label: max(0, each - least_ms) for label, each in behind_ms.items()}
        return {label: (ahead, late_ms.get(label)) for label, ahead in ahead_ms.items()}

    def _add_gateways(self, gauges: Mapping[str, GaugeMetricFamily], now_ms: int) -> None:
        for label, seen in self._newest().items():
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
        loads = {each.gateway.instance: each for each in self._seen.loads(now_ms)}
        of_label = {label: seen.instance for label, seen in self._newest().items()}
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
