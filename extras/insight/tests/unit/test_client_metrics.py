"""Metrics of single clients: a bounded number of series, true figures, and names that can forge nothing."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluice.process.clock import now_ms
from sluice.process.format import MAX_LABEL_LENGTH, label_of
from sluice.state.quotas.kinds import QuotaSettings
from sluice.streaming.runtime.observers import observers_of
from sluice_insight.client_metrics import LABELS, ClientMetrics
from tests.builders import AT_MS, DEFAULTS, changed, decision

Series = dict[tuple[str, ...], float]


class Scraped:
    """ClientMetrics with a clock of its own, read as Prometheus reads it."""

    def __init__(self, top: int = 20) -> None:
        self.now_ms = AT_MS
        self.metrics = ClientMetrics(QuotaSettings(), top, lambda: self.now_ms)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def charge(self, user: str = "alice", rate: float = 800.0, wait_ms: int = 0, **charge: Any) -> None:
        entity = {"user": user} | charge.pop("entity", {})
        decided = decision(self.now_ms, charge={"entity": entity, "rate": rate} | charge, wait_ms=wait_ms)
        self.metrics.on_record(json.dumps(decided).encode())

    def series(self, name: str, labels: tuple[str, ...] = ("user",)) -> Series:
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        samples = [sample for family in families if family.name == name for sample in family.samples]
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def test_a_client_has_limit_rate_rest_and_wait() -> None:
    scraped = Scraped()
    scraped.charge(rate=1_250.0, wait_ms=2_500)
    scraped.now_ms += 4_000

    alice = ("producer_byte_rate", "alice", "", "", "", "", "")
    assert scraped.series("sluice_client_limit", LABELS) == {alice: 1_000.0}
    assert scraped.series("sluice_client_rate", LABELS) == {alice: 1_250.0}
    assert scraped.series("sluice_client_remaining", LABELS) == {alice: 0.0}
    assert scraped.series("sluice_client_waited_seconds", LABELS) == {alice: 2.5}


def test_while_decisions_are_old_nothing_has_a_series() -> None:
    """A rate of 0, and a gateway that seems silent, would be figures of then."""
    scraped = Scraped()
    scraped.charge(rate=800.0, wait_ms=3_000)
    assert scraped.series("sluice_client_rate") != {}

    scraped.now_ms += 1_000
    scraped.metrics.is_stale = lambda _: True

    assert [family.samples for family in scraped.metrics.collect() if family.samples] == []


def test_a_shadow_quota_one_of_a_partition_and_those_of_tenants_are_told_apart_by_labels() -> None:
    scraped = Scraped()
    scraped.charge(mode="shadow")
    for tenant in ("shop", "bank"):
        scraped.charge(user="", entity={"tenant": tenant})
    scraped.charge(user="", quota="producer.byte.rate", entity={"topic": "orders", "partition": 3})

    assert set(scraped.series("sluice_client_rate", LABELS)) == {
        ("producer_byte_rate", "alice", "", "", "", "", "shadow"),
        ("producer_byte_rate", "", "", "", "", "shop", ""),
        ("producer_byte_rate", "", "", "", "", "bank", ""),
        ("producer.byte.rate", "", "", "orders", "3", "", ""),
    }


def test_only_the_nearest_to_their_limits_have_series_and_throttled_ones_come_first() -> None:
    scraped = Scraped(top=3)
    for number in range(10):
        scraped.charge(f"user-{number}", rate=number * 100.0)
    scraped.charge("late", rate=150.0, wait_ms=1_000)

    assert list(scraped.series("sluice_client_rate")) == [("late",), ("user-9",), ("user-8",)]


def test_a_client_that_leaves_the_top_has_no_series_any_more() -> None:
    scraped = Scraped(top=1)
    scraped.charge("alice", rate=500.0)
    assert list(scraped.series("sluice_client_rate")) == [("alice",)]

    scraped.now_ms += 2_000
    scraped.charge("bob", rate=900.0)

    assert [list(scraped.series(f"sluice_client_{name}")) for name in ("limit", "rate", "remaining")] == [
        [("bob",)]
    ] * 3


def test_a_client_that_sends_no_more_has_no_series_once_its_windows_are_over() -> None:
    scraped = Scraped()
    scraped.charge()
    assert scraped.series("sluice_client_rate") == {("alice",): 800.0}

    scraped.now_ms += 11_000

    assert scraped.series("sluice_client_rate") == {}


def test_a_throttle_time_runs_down_from_scrape_to_scrape() -> None:
    scraped = Scraped()
    scraped.charge(rate=2_000.0, wait_ms=5_000)
    scraped.now_ms += 3_000

    assert scraped.series("sluice_client_waited_seconds") == {("alice",): 3.0}


def test_a_client_without_a_limit_has_no_series_and_counts_in_the_sum() -> None:
    scraped = Scraped()
    scraped.charge("alice", rate=500.0)
    scraped.charge("bob", rate=250.0, limit=None)

    assert list(scraped.series("sluice_client_rate")) == [("alice",)]
    assert scraped.series("sluice_quota_rate", ("quota", "mode")) == {("producer_byte_rate", ""): 750.0}


def test_sums_are_there_where_no_names_of_clients_are_published() -> None:
    scraped = Scraped(top=0)
    scraped.charge(rate=500.0)

    assert scraped.series("sluice_client_rate") == {}
    assert scraped.series("sluice_quota_rate", ("quota",)) == {("producer_byte_rate",): 500.0}


def test_a_job_finds_the_observer_of_clients() -> None:
    (observer,) = observers_of(changed(DEFAULTS, "metrics", top_clients=1))
    for user in ("alice", "bob"):
        observer.on_record(json.dumps(decision(now_ms(), charge={"entity": {"user": user}, "rate": 900.0})).encode())

    (limits,) = (family for family in observer.collect() if family.name == "sluice_client_limit")
    assert len(limits.samples) == 1


def test_throttled_clients_are_counted_also_beyond_the_top() -> None:
    scraped = Scraped(top=1)
    for user in ("alice", "bob", "carol"):
        scraped.charge(user, rate=2_000.0, wait_ms=1_000)

    assert scraped.series("sluice_quota_waiting_counters", ("quota",)) == {("producer_byte_rate",): 3.0}


def test_scrapes_within_a_second_have_the_same_answer() -> None:
    """Frequent scrapes cost little: the counters are ranked once a second."""
    scraped = Scraped()
    scraped.charge(rate=500.0)
    first = scraped.series("sluice_client_rate")
    scraped.charge(rate=900.0)

    assert scraped.series("sluice_client_rate") == first
    scraped.now_ms += 1_000
    assert scraped.series("sluice_client_rate") == {("alice",): 900.0}


def test_a_name_can_forge_no_line_and_no_label() -> None:
    hostile = 'x",quota="forged"} 1\nsluice_query_up{query="enforce"} 0\n# \u202e\x00\\'
    scraped = Scraped()
    scraped.charge(hostile)

    exposition = generate_latest(scraped.registry).decode()
    assert not [line for line in exposition.splitlines() if line.startswith("sluice_query_up")]
    assert list(scraped.series("sluice_client_rate", ("quota", "user"))) == [("producer_byte_rate", label_of(hostile))]


def test_a_name_of_megabytes_is_cut_and_two_of_them_remain_two() -> None:
    scraped = Scraped()
    scraped.charge("x" * 100_000 + "1", rate=900.0)
    scraped.charge("x" * 100_000 + "2", rate=800.0)

    users = [user for (user,) in scraped.series("sluice_client_rate")]
    assert len(set(users)) == 2
    assert all(user.startswith("x" * MAX_LABEL_LENGTH) and len(user) < MAX_LABEL_LENGTH + 10 for user in users)


def test_a_name_that_is_what_another_one_is_cut_to_gives_no_series_twice() -> None:
    """Prometheus refuses a sample that comes twice."""
    scraped = Scraped()
    scraped.charge("\n", rate=900.0)
    scraped.charge(label_of("\n"), rate=100.0)

    lines = generate_latest(scraped.registry).decode().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("sluice_client_rate{")] == ["900.0"]


@given(st.text(st.characters(), max_size=300))
def test_any_name_gives_a_label_that_can_be_written(name: str) -> None:
    """Lone surrogates, which UTF-8 has no bytes for, included."""
    label = label_of(name)

    assert label.isprintable()
    label.encode()
    assert (label == name) == (name.isprintable() and len(name) <= MAX_LABEL_LENGTH)


def test_more_clients_than_are_watched_take_no_more_memory() -> None:
    scraped = Scraped(top=5)
    for number in range(20_050):
        scraped.charge(f"user-{number}")

    assert scraped.series("sluice_quota_rate", ("quota",)) == {("producer_byte_rate",): 20_000 * 800.0}
    assert len(scraped.series("sluice_client_rate")) == 5
