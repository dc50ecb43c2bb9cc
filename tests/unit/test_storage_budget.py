"""Storage budgets: topics of tenants, the throttled tenants, and the effects on gateways, tables and metrics."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer
from prometheus_client import CollectorRegistry, generate_latest

from sluice.cli.quota_text import quotas_yaml
from sluice.configs.quotas import load_quotas_file
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.state.contract.records import MAX_TIMESTAMP_MS, StorageState, TenantStorage
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, MAX_TAG_LENGTH, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, check_entries, check_value, quota_kind
from sluice.state.quotas.kinds import Membership, StorageKey
from sluice.state.quotas.limits import STORAGE_KEY, LimitsView, state_value
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants, check_members
from sluice.state.shares.disk_guard import DiskFloor
from sluice.state.shares.storage_budget import FRESH_MS, MAX_TENANTS, LogDirs, StorageRule
from sluice.streaming.enforce.storage import StorageWatch

HOUR_MS = 3_600_000
SHOP, BANK = QuotaEntity(tenant="shop"), QuotaEntity(tenant="bank")


def member(**parts: str) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(**parts), Membership.MEMBER, 1.0)


def budget(entity: QuotaEntity, value: float) -> QuotaEntry:
    return QuotaEntry(entity, StorageKey.STORED_BYTES, value)


ENTRIES = [
    member(tenant="shop", user="shop-*"),
    member(tenant="shop", topic="shop.*"),
    member(tenant="bank", topic="ledger"),
    budget(SHOP, 100.0),
]


def log_dir(*sizes: int, path: str = "/data", error_code: int = 0, is_future_key: bool = False) -> dict[str, Any]:
    """Part of an answer to DescribeLogDirs: replicas of topic orders."""
    logs = [{"partition_size": size, "is_future_key": is_future_key} for size in sizes]
    topics = [{"name": "orders", "partitions": logs}] if sizes else []
    return {"log_dir": path, "error_code": error_code, "topics": topics}


def broker(number: int, *log_dirs: dict[str, Any]) -> dict[str, Any]:
    """A broker's answer to DescribeLogDirs."""
    return {"broker": number, "log_dirs": list(log_dirs)}


def test_bytes_of_a_topic_are_those_of_all_replicas_without_copies_that_grow() -> None:
    growing = log_dir(7, path="/other", is_future_key=True)
    known = LogDirs(HOUR_MS)

    known.take([broker(1, log_dir(10, 20)), broker(2, log_dir(12, 20), growing)], 0)

    assert known.stored()["orders"] == 62


def test_replicas_that_no_broker_tells_of_count_as_they_did_for_as_long_as_a_setting_says() -> None:
    """A tenant would else be released because a broker is away or frozen, or a log directory of it."""
    first, second, failed = log_dir(10), log_dir(20, path="/other"), log_dir(path="/other", error_code=56)
    known = LogDirs(HOUR_MS)
    known.take([broker(1, first, second), broker(2, first)], 0)

    def bytes_at(now_ms: int, *answers: dict[str, Any]) -> int:
        known.take(answers, now_ms)
        return known.stored()["orders"]

    assert bytes_at(10_000, broker(1, first, second)) == 40, "broker 2 is away"
    assert bytes_at(15_000, broker(1, first, second), broker(2)) == 40, "broker 2 doesn't answer"
    assert known.unknown == {2}
    assert bytes_at(20_000, broker(1, first, failed), broker(2, first)) == 40
    assert not known.unknown
    assert bytes_at(20_000 + HOUR_MS, broker(1, first, failed), broker(2, first)) == 20


def test_a_log_directory_that_its_broker_names_no_more_counts_no_more() -> None:
    known = LogDirs(HOUR_MS)
    known.take([broker(1, log_dir(10), log_dir(20, path="/other"))], 0)
    known.take([broker(1, log_dir(10))], 10_000)

    assert known.stored()["orders"] == 10


class Looks:
    """A job that guards disks and budgets, and brokers that answer it, or don't."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.watch = StorageWatch(lambda: Quotas(ENTRIES), 1, DiskFloor(free_percent=10), HOUR_MS, lambda: self.now_ms)
        self.registry = CollectorRegistry()
        self.registry.register(self.watch)

    def look(self, *answers: dict[str, Any]) -> StorageState:
        """The state after a poll in which these brokers answer."""
        self.now_ms += 10_000
        self.watch.look(lambda _: list(answers))
        assert self.watch.state is not None
        return self.watch.state

    def unknown(self) -> float | None:
        return self.registry.get_sample_value("sluice_brokers_disks_unknown")


def full_disk(stored: int = 120) -> dict[str, Any]:
    topics = [{"name": "shop.a", "partitions": [{"partition_size": stored, "is_future_key": False}]}]
    return {"log_dir": "/data", "error_code": 0, "topics": topics, "total_bytes": 100, "usable_bytes": 5}


@pytest.mark.parametrize("away", [[], [broker(2)], [broker(2, {**full_disk(), "error_code": 56, "topics": []})]])
def test_a_broker_that_is_away_with_a_full_disk_releases_nobody_while_it_is_remembered(
    away: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """It isn't in the cluster any more, doesn't answer, or its log directory has failed, as a full one does."""
    looks, others = Looks(), broker(1, log_dir(10))
    low = "broker 2: /data has 5 of 100 bytes free"
    first = looks.look(others, broker(2, full_disk()))
    assert (first.low_disk, first.tenants[0].is_held, looks.unknown()) == (low, True, 0.0)

    for _ in range(300):
        state = looks.look(others, *away)
        assert (state.low_disk, state.tenants[0].is_held, state.at_ms) == (low, True, looks.now_ms)
    has_answered = bool(away and away[0]["log_dirs"])
    assert looks.unknown() == float(not has_answered)
    assert sum("doesn't say what is on its disks" in message for message in caplog.messages) == (not has_answered)

    looks.now_ms += HOUR_MS
    state = looks.look(others, *away)
    assert (state.low_disk, state.tenants[0].is_held) == (None, False)


def test_nobody_is_released_while_no_broker_can_be_asked() -> None:
    """The state is renewed from what is known; a job that knows nothing yet says nothing."""
    looks = Looks()

    def no_answer(_: object) -> list[dict[str, Any]]:
        raise KafkaUnavailableError("no broker answers")

    with pytest.raises(KafkaUnavailableError):
        looks.watch.look(no_answer)
    assert looks.watch.state is None

    looks.look(broker(2, full_disk()))
    looks.now_ms += 90_000
    with pytest.raises(KafkaUnavailableError):
        looks.watch.look(no_answer)
    assert looks.watch.state is not None
    assert (looks.watch.state.at_ms, looks.watch.state.tenants[0].is_held) == (looks.now_ms, True)
    assert looks.registry.get_sample_value("sluice_cluster_disk_low") == 1.0
    assert looks.unknown() == 1.0


def test_a_broker_that_didnt_answer_is_asked_last() -> None:
    looks, asked = Looks(), []
    looks.look(broker(1, log_dir(10)), broker(2))

    def read(late: frozenset[int]) -> list[dict[str, Any]]:
        asked.append(late)
        return [broker(1, log_dir(10)), broker(2, log_dir(10))]

    looks.watch.look(read)
    looks.watch.look(read)
    assert asked == [{2}, set()]


def test_a_tenant_is_held_at_its_whole_budget_and_released_at_nine_tenths() -> None:
    rule, tenants = StorageRule(), Tenants([QuotaEntity(tenant="shop", topic="shop.*")])

    def is_held(stored: int) -> bool:
        by_topic = {"shop.a": stored // 2, "shop.b": stored - stored // 2, "other": 900}
        return rule.decide(by_topic, tenants, {"shop": 100.0}, 0).tenants[0].is_held

    assert [is_held(stored) for stored in (99, 100, 150, 91, 90, 99)] == [False, True, True, True, False, False]


def test_those_nearest_to_their_budgets_come_first_and_a_state_has_a_bound() -> None:
    names = [f"t-{number}" for number in range(MAX_TENANTS + 2)]
    tenants = Tenants([QuotaEntity(tenant=name, topic=name) for name in names])
    stored = {name: number for number, name in enumerate(names)}

    state = StorageRule().decide(stored, tenants, dict.fromkeys(names, 1001.0), 0)

    assert len(state.tenants) == MAX_TENANTS
    assert [(each.tenant, each.is_held) for each in state.tenants[:2]] == [("t-1001", True), ("t-1000", False)]


def test_the_largest_state_fits_into_a_record() -> None:
    names = [f"{number:0>4}".ljust(MAX_TAG_LENGTH, "\x01") for number in range(MAX_TENANTS)]

    state = StorageRule().decide({}, Tenants(), dict.fromkeys(names, 1.234567e18), MAX_TIMESTAMP_MS)

    assert 600 < len(state.tenants) < MAX_TENANTS
    assert len(state_value(state)) < KafkaProducer.DEFAULT_CONFIG["max_request_size"] - 1_000


def test_a_topic_is_in_one_tenant_by_its_narrowest_glob_and_clients_dont_match_globs_of_topics() -> None:
    tenants = Tenants([QuotaEntity(tenant="all", topic="*"), *(entry.entity for entry in ENTRIES[:3])])
    assert [tenants.of_topic(topic) for topic in ("shop.orders", "ledger", "x")] == ["shop", "bank", "all"]
    assert (tenants.of("shop.orders", ""), tenants.of("shop-1", "")) == ("", "shop")

    with pytest.raises(InvalidQuotaError, match=r"topic 'shop.\*' of tenant 'shop' is in tenant 'bank' too"):
        check_members([*ENTRIES, member(tenant="bank", topic="shop.*")])


def test_a_tenant_has_its_own_budget_or_that_of_the_default_tenant() -> None:
    default = budget(QuotaEntity(tenant=DEFAULT), 7.0)
    assert Quotas(ENTRIES).storage_budgets() == {"shop": 100.0}
    assert Quotas([*ENTRIES, default]).storage_budgets() == {"bank": 7.0, "shop": 100.0}
    assert Quotas(ENTRIES).is_empty(), "a budget charges nothing"


def test_a_budget_is_whole_bytes_of_a_tenant_and_never_shadow() -> None:
    with pytest.raises(InvalidQuotaError, match="expected a whole number"):
        check_value(StorageKey.STORED_BYTES, 1.5)
    with pytest.raises(InvalidQuotaError, match="stored_bytes is no key of users and client-ids, but of a tenant; "):
        quota_kind(QuotaEntity(user="alice"), "stored_bytes")
    with pytest.raises(InvalidQuotaError, match="stored_bytes is set in mode shadow; expected mode enforce"):
        check_entries([QuotaEntry(SHOP, StorageKey.STORED_BYTES, 1.0, shadow=True)])


def test_a_quota_file_has_topics_and_budgets_of_tenants(tmp_path: Path) -> None:
    text = quotas_yaml(ENTRIES)
    (tmp_path / "quotas.yaml").write_text(text)

    assert "topics:\n  - shop.*" in text
    assert {*load_quotas_file(tmp_path / "quotas.yaml")} == {*ENTRIES}


def test_readers_of_the_limits_topic_know_the_last_state() -> None:
    view, state = LimitsView(), StorageState(5_000, [TenantStorage("shop", 120, 100.0, is_held=True)])
    view.take(STORAGE_KEY, state_value(state))
    assert view.storage == state
    too_large = b'{"tenant": "shop", "stored_bytes": 1%s, "budget_bytes": 1}' % (b"0" * 400)
    everybody = b'{"tenant": "", "stored_bytes": 1, "budget_bytes": 1, "is_held": true}'  # who is in no tenant
    for tenant in (b'{"tenant": "shop"}', too_large, everybody):  # the console couldn't show so many bytes
        with pytest.raises(InvalidQuotaError, match="the record is no state"):
            view.take(STORAGE_KEY, b'{"at_ms": 1, "tenants": [%s]}' % tenant)
    view.take(STORAGE_KEY, None)
    assert view.storage is None


def test_the_job_says_once_that_a_disk_is_low_and_has_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.storage")
    watch, registry = StorageWatch(Quotas, 1, DiskFloor(free_percent=10), HOUR_MS, lambda: 2), CollectorRegistry()
    registry.register(watch)
    shown = []
    for at_ms, low_disk in enumerate(["broker 2: /data has 5 of 100 bytes free"] * 2 + [None]):
        watch.take(StorageState(at_ms, low_disk=low_disk))
        shown.append(registry.get_sample_value("sluice_cluster_disk_low"))

    assert shown == [1.0, 1.0, 0.0]
    assert caplog.messages == [
        "a disk is low, so all producers are held: broker 2: /data has 5 of 100 bytes free",
        "no disk is low any more, as far as brokers say; producers are held no more",
    ]


def test_metrics_say_of_no_disk_that_it_is_low_when_gateways_hold_nobody_any_more() -> None:
    """They forget after a minute in which no broker could be asked."""
    now_ms = [1_000]
    watch, registry = (
        StorageWatch(Quotas, 1, DiskFloor(free_percent=10), HOUR_MS, lambda: now_ms[0]),
        CollectorRegistry(),
    )
    registry.register(watch)
    over = TenantStorage("shop", 1_500_000, 1e6, is_held=True)
    watch.take(StorageState(1_000, [over], "broker 2: /data has 5 of 100 bytes free"))
    before = registry.get_sample_value("sluice_cluster_disk_low")
    now_ms[0] += FRESH_MS + 1

    assert [before, registry.get_sample_value("sluice_cluster_disk_low")] == [1.0, 0.0]
    assert "shop" not in generate_latest(registry).decode()


def test_the_job_says_once_who_is_held_and_has_metrics_of_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.storage")
    watch, registry = StorageWatch(Quotas, 1, DiskFloor(), HOUR_MS, lambda: 2), CollectorRegistry()
    registry.register(watch)
    over = TenantStorage("shop", 1_500_000, 1e6, is_held=True)
    watch.take(StorageState(0, [over, TenantStorage("bank", 1, 1e6)]))
    watch.take(StorageState(1, [over]))
    shown = generate_latest(registry).decode()
    watch.take(StorageState(2, [msgspec.structs.replace(over, is_held=False, stored_bytes=900_000)]))

    assert caplog.messages == [
        "tenant shop has used up its budget, so its producers are held: 1.5 MB of 1 MB",
        "the producers of tenant shop are held no more: 900 kB of 1 MB",
    ]
    assert 'sluice_tenant_stored_bytes{tenant="shop"} 1.5e+06' in shown
    assert 'sluice_tenant_stored_bytes_held{tenant="shop"} 1.0' in shown
    assert "bank" not in shown
