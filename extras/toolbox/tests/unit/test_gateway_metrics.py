"""Metrics of gateways and of brokers' loads."""

import json

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluice.process.clock import now_ms
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import NO_LIMITS, BrokerLimits, Capacities, Capacity, DiskFloor
from sluice.streaming.runtime.job_parts import JobView
from sluice_toolbox.gateway_metrics import GatewayMetrics
from sluice_toolbox.troubles_watch import parts
from tests.builders import AT_MS, DEFAULTS, Json, changed, decision, heartbeat_of


class Scraped:
    """GatewayMetrics with a clock of its own, read as Prometheus reads it."""

    def __init__(self, limits: BrokerLimits = NO_LIMITS) -> None:
        self.now_ms = AT_MS
        self.metrics = GatewayMetrics(limits, lambda: self.now_ms)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def read(self, *beats: Json) -> None:
        for beat in beats:
            self.metrics.on_record(json.dumps(beat).encode())

    def series(self, name: str, labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        samples = [sample for family in families if family.name == name for sample in family.samples]
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def test_a_gateway_that_falls_silent_and_one_with_a_dead_thread_are_seen_until_they_are_long_gone() -> None:
    scraped = Scraped()
    scraped.read(heartbeat_of("a", "a-1", 1), heartbeat_of("b", "b-1"))
    assert scraped.series("sluice_gateway_threads_down", ("gateway",)) == {("a",): 1.0, ("b",): 0.0}

    scraped.now_ms += 90_000
    scraped.read(heartbeat_of("a", "a-2"))
    assert scraped.series("sluice_gateway_silent_seconds", ("gateway",)) == {("a",): 0.0, ("b",): 90.0}
    assert scraped.series("sluice_gateway_threads_down", ("gateway",))["a",] == 0.0

    scraped.now_ms += 600_000
    assert scraped.series("sluice_gateway_silent_seconds", ("gateway",)) == {}


def test_a_job_that_can_be_asked_has_metrics_of_gateways() -> None:
    assert not parts(JobView(changed(DEFAULTS, "health", port=0), Quotas)).observers
    gateways = parts(JobView(changed(DEFAULTS, "health", port=9464), Quotas)).observers["gateways"]
    registry = CollectorRegistry()
    registry.register(gateways)
    gateways.on_record(json.dumps(heartbeat_of("a") | {"timestamp_ms": now_ms()}).encode())
    gateways.on_record(json.dumps(decision(now_ms())).encode())

    assert 'sluice_gateway_silent_seconds{gateway="a"}' in generate_latest(registry).decode()


def test_a_broker_that_does_not_hand_over_its_metrics_is_seen_until_it_does_again() -> None:
    scraped = Scraped()
    scraped.read(heartbeat_of("a", "a-1", metrics_seen=False), heartbeat_of("b", "b-1"))
    assert scraped.series("sluice_gateway_metrics_seen", ("gateway",)) == {("a",): 0.0, ("b",): 1.0}

    scraped.now_ms += 2_000
    scraped.read(heartbeat_of("a", "a-1"))
    assert scraped.series("sluice_gateway_metrics_seen", ("gateway",))["a",] == 1.0


def test_a_broker_that_does_not_exempt_a_login_of_sluice_is_seen() -> None:
    scraped, held = Scraped(), [{"principal": "User:sluice", "client_id": "sluice"}]
    scraped.read(heartbeat_of("a", "a-1", not_exempt=held), heartbeat_of("b", "b-1"))

    assert scraped.series("sluice_gateway_not_exempt", ("gateway",)) == {("a",): 1.0, ("b",): 0.0}


def test_a_gateway_whose_clock_is_ahead_is_seen_by_how_much_up_to_a_minute() -> None:
    scraped = Scraped()
    for name, ahead_ms in (("a", 20_000), ("b", 1_200_000), ("c", -700)):
        beat = {**heartbeat_of(name, f"{name}-1"), "timestamp_ms": AT_MS + ahead_ms}
        scraped.read(beat)

    ahead = scraped.series("sluice_gateway_clock_ahead_seconds", ("gateway",))
    assert ahead == {("a",): 20.0, ("b",): 60.0, ("c",): 0.0}


def test_a_gateway_whose_clock_is_behind_is_seen_beside_the_others_however_late_the_job_is() -> None:
    scraped = Scraped()
    for name, ahead_ms in (("ended", -400_000), ("a", -30_000), ("b", -30_900), ("slow", -210_000), ("fast", 50_000)):
        scraped.now_ms += 11_000 if name == "a" else 0
        beat = {**heartbeat_of(name, f"{name}-1"), "timestamp_ms": scraped.now_ms + ahead_ms}
        scraped.read(beat)

    behind = scraped.series("sluice_gateway_clock_behind_seconds", ("gateway",))
    assert behind == {("a",): 0.0, ("b",): 0.9, ("slow",): 180.0, ("fast",): 0.0}


def test_a_gateway_whose_clock_is_behind_is_seen_beside_one_that_is_a_moment_ahead() -> None:
    scraped = Scraped()
    for name, ahead_ms in (("moment", 5), ("slow", -210_000)):
        beat = {**heartbeat_of(name, f"{name}-1"), "timestamp_ms": AT_MS + ahead_ms}
        scraped.read(beat)

    behind = scraped.series("sluice_gateway_clock_behind_seconds", ("gateway",))
    assert behind == {("moment",): 0.0, ("slow",): 210.0}


def test_the_load_of_brokers_what_it_is_made_of_and_their_disks_are_seen() -> None:
    limits = BrokerLimits(Capacities(((1, Capacity(1000.0, 1000.0)),)), DiskFloor(free_percent=10))
    scraped = Scraped(limits=limits)
    log_dirs = [{"path": "/d1", "free_bytes": 5, "total_bytes": 100}, {"path": "/d2", "free_bytes": 50}]
    log_dirs[1]["total_bytes"] = 100
    load = {"broker_id": 1, "bytes_in_per_s": 950.0, "bytes_out_per_s": 100.0, "log_dirs": log_dirs}
    scraped.read(heartbeat_of("a", "a-1", load=load), heartbeat_of("b", "b-1", load={"handler_idle": 0.75}))

    assert scraped.series("sluice_broker_load", ("gateway",)) == {("a",): 0.95, ("b",): 0.25}
    parts = scraped.series("sluice_broker_load_part", ("gateway", "part"))
    assert parts == {("a", "in"): 0.95, ("a", "out"): 0.1, ("b", "handlers"): 0.25}
    assert scraped.series("sluice_cluster_load", ()) == {(): 0.95}
    free = scraped.series("sluice_broker_disk_free_bytes", ("gateway", "log_dir"))
    assert free == {("a", "/d1"): 5.0, ("a", "/d2"): 50.0}
    assert scraped.series("sluice_broker_disk_low", ("gateway",)) == {("a",): 1.0}
