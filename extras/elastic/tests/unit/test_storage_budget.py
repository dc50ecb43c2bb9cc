"""Storage budgets: topics of tenants, the throttled tenants, and the effects on gateways, tables and metrics."""

import logging
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from prometheus_client import CollectorRegistry, generate_latest

from sluice.configs.quotas import load_quotas_file
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Measured, Override, Overrides
from sluice.state.contract.records import MAX_TIMESTAMP_MS, CountedEntity
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, MAX_TAG_LENGTH, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, check_entries, check_value, quota_kind
from sluice.state.quotas.kinds import Membership, StorageKey
from sluice.state.quotas.limits import LimitsView, overrides_key, overrides_value
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants, check_members
from sluice.state.shares.load import DiskFloor
from sluice.streaming.overrides.watch import OverridesWatch
from sluice_elastic.disk_guard import HEARTBEAT_FRESH_MS, DiskGuard
from sluice_elastic.disks import DisksWatch
from sluice_elastic.log_dirs import FRESH_MS, Disks, LogDirs
from sluice_elastic.storage_budget import MAX_TENANTS, StorageBudgets
from sluice_reading.quota_text import quotas_yaml

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

    def __init__(self, folder: Path, top: int = 1) -> None:
        self.now_ms = 1_000
        self.disks = DisksWatch(lambda: Quotas(ENTRIES), DiskFloor(free_percent=10), HOUR_MS, lambda: self.now_ms)
        deciders = [DiskGuard(self.known), StorageBudgets(lambda: Quotas(ENTRIES), self.known)]
        table = OverridesTable(str(folder / "overrides"), {})
        self.watch = OverridesWatch(deciders, table, top, lambda: self.now_ms)
        self.watch.remember({})
        self.registry = CollectorRegistry()
        self.registry.register(self.disks)
        self.registry.register(self.watch)

    def known(self) -> Disks:
        return self.disks.disks

    def poll(self, *answers: dict[str, Any]) -> tuple[str | None, str | None]:
        """Poll these brokers; the disk and tenant that stop producers then."""
        self.now_ms += 10_000
        self.disks.poll(lambda _: list(answers))
        return self.held()

    def held(self) -> tuple[str | None, str | None]:
        """Ask the deciders: the disk that is low, and the throttled tenant."""
        self.watch.decide(self.now_ms)
        disks, tenants = (self.watch.said[name].overrides for name in ("disk_guard", "stored_bytes"))
        tenant = next((each.entity.tenant for each in tenants if each.entity is not None), None)
        return next((each.reason for each in disks), None), tenant

    def metric(self, metric: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, labels)

    def hold_metric(self, decider: str, tenant: str = "") -> float | None:
        names = {"gateway": "", "tenant": tenant, "user": "", "client_id": ""}
        return self.metric("sluice_override", decider=decider, kind="hold", **names)


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(tmp_path)


def full_disk(stored: int = 120) -> dict[str, Any]:
    topics = [{"name": "shop.a", "partitions": [{"partition_size": stored, "is_future_key": False}]}]
    return {"log_dir": "/data", "error_code": 0, "topics": topics, "total_bytes": 100, "usable_bytes": 5}


@pytest.mark.parametrize("away", [[], [broker(2)], [broker(2, {**full_disk(), "error_code": 56, "topics": []})]])
def test_a_broker_that_is_away_with_a_full_disk_releases_nobody_while_it_is_remembered(
    looks: Looks, away: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """It isn't in the cluster any more, doesn't answer, or its log directory has failed, as a full one does."""
    others, low = broker(1, log_dir(10)), "broker 2: /data has 5 B of 100 B free"
    assert looks.poll(others, broker(2, full_disk())) == (low, "shop")
    assert looks.metric("sluice_brokers_disks_unknown") == 0.0

    for _ in range(300):
        assert looks.poll(others, *away) == (low, "shop")
    has_answered = bool(away and away[0]["log_dirs"])
    assert looks.metric("sluice_brokers_disks_unknown") == float(not has_answered)
    assert sum("doesn't say what is on its disks" in message for message in caplog.messages) == (not has_answered)

    looks.now_ms += HOUR_MS
    assert looks.poll(others, *away) == (None, None)


def test_nobody_is_released_while_no_broker_can_be_asked_and_what_they_said_counts(looks: Looks) -> None:
    """A job that knows nothing yet holds nobody."""

    def no_answer(_: object) -> list[dict[str, Any]]:
        raise KafkaUnavailableError("no broker answers")

    with pytest.raises(KafkaUnavailableError):
        looks.disks.poll(no_answer)
    assert looks.held() == (None, None)

    looks.poll(broker(2, full_disk()))
    looks.now_ms += 90_000
    with pytest.raises(KafkaUnavailableError):
        looks.disks.poll(no_answer)
    assert looks.held() == ("broker 2: /data has 5 B of 100 B free", "shop")
    assert looks.hold_metric("disk_guard") == 0.0
    assert looks.metric("sluice_brokers_disks_unknown") == 1.0


def test_a_broker_that_didnt_answer_is_asked_last(looks: Looks) -> None:
    asked = []
    looks.poll(broker(1, log_dir(10)), broker(2))

    def read(late: frozenset[int]) -> list[dict[str, Any]]:
        asked.append(late)
        return [broker(1, log_dir(10)), broker(2, log_dir(10))]

    looks.disks.poll(read)
    looks.disks.poll(read)
    assert asked == [{2}, set()]


def budgets() -> StorageBudgets:
    return StorageBudgets(Quotas, Disks)


def test_a_tenant_is_held_at_its_whole_budget_and_released_at_nine_tenths() -> None:
    rule, tenants = budgets(), Tenants([QuotaEntity(tenant="shop", topic="shop.*")])

    def is_held(stored: int) -> bool:
        by_topic = {"shop.a": stored // 2, "shop.b": stored - stored // 2, "other": 900}
        return bool(rule.of_sizes(by_topic, tenants, {"shop": 100.0}).overrides)

    assert [is_held(stored) for stored in (99, 100, 150, 91, 90, 99)] == [False, True, True, True, False, False]


def test_those_nearest_to_their_budgets_come_first_and_a_state_has_a_bound() -> None:
    names = [f"t-{number}" for number in range(MAX_TENANTS + 2)]
    tenants = Tenants([QuotaEntity(tenant=name, topic=name) for name in names])
    stored = {name: number for number, name in enumerate(names)}

    decided = budgets().of_sizes(stored, tenants, dict.fromkeys(names, 1001.0))

    assert len(decided.measured) == MAX_TENANTS
    assert [each.name for each in decided.measured[:2]] == ["t-1001", "t-1000"]
    assert [each.entity for each in decided.overrides] == [CountedEntity(tenant="t-1001")]


@pytest.mark.parametrize("budget", [1.234567e18, 0.5], ids=["none held", "all held"])
def test_the_largest_record_fits_into_kafkas(budget: float) -> None:
    names = [f"{number:0>4}".ljust(MAX_TAG_LENGTH, "\x01") for number in range(MAX_TENANTS)]
    tenants = Tenants([QuotaEntity(tenant=name, topic=name[:4]) for name in names])

    decided = budgets().of_sizes({name[:4]: 1 for name in names}, tenants, dict.fromkeys(names, budget))

    assert 250 < len(decided.measured) < MAX_TENANTS
    record = Overrides(2**63 - 1, MAX_TIMESTAMP_MS, FRESH_MS, [*decided.overrides], [*decided.measured])
    assert len(overrides_value(record)) < KafkaProducer.DEFAULT_CONFIG["max_request_size"] - 1_000


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


def test_readers_of_the_limits_topic_know_what_a_decider_said_last() -> None:
    held = Override("hold", entity=CountedEntity(tenant="shop"), reason="all is taken")
    view, said = LimitsView(), Overrides(7, 5_000, FRESH_MS, [held], [Measured("shop", 120, 100.0)])
    view.take(overrides_key("stored_bytes"), overrides_value(said))
    assert view.overrides == {"stored_bytes": said}
    too_large = b'{"name": "shop", "value": 1%s, "bound": 1}' % (b"0" * 400)
    for measured in (b'{"name": "shop"}', too_large):  # the console couldn't show so many bytes
        record = b'{"number": 1, "at_ms": 1, "fresh_ms": 1, "measured": [%s]}' % measured
        with pytest.raises(InvalidQuotaError, match="the record overrides nothing"):
            view.take(overrides_key("stored_bytes"), record)
    view.take(overrides_key("stored_bytes"), None)
    assert view.overrides == {}


def test_the_job_says_once_who_is_held_and_has_metrics_of_the_nearest(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.overrides")
    for stored in (1_000, 1_200, 50):
        looks.poll(broker(2, full_disk(stored) | {"usable_bytes": 5 if stored > 50 else 50}))
        shown = generate_latest(looks.registry).decode()
        is_held = stored > 50
        assert looks.hold_metric("stored_bytes", "shop") == (0.0 if is_held else None)
        assert looks.hold_metric("disk_guard") == (0.0 if is_held else None)
        assert looks.metric("sluice_override_measured", decider="stored_bytes", name="shop") == stored
        assert looks.metric("sluice_override_bound", decider="stored_bytes", name="shop") == 100.0
        assert "bank" not in shown

    said = [message.partition("): ")[2] for message in caplog.messages]
    assert said == [
        "All producers are throttled: broker 2: /data has 5 B of 100 B free",
        "Producers of tenant 'shop' are throttled: its topics take all of its stored_bytes",
        "nothing is overridden",
        "nothing is overridden",
    ]


def test_nobody_is_held_when_no_broker_could_be_asked_for_a_minute(looks: Looks) -> None:
    looks.poll(broker(2, full_disk()))
    looks.now_ms += FRESH_MS + 1

    assert looks.held() == (None, None)
    assert looks.hold_metric("disk_guard") is None
    assert "shop" not in generate_latest(looks.registry).decode()


def test_the_guard_holds_until_the_disk_has_room_or_its_broker_falls_silent() -> None:
    guard = DiskGuard(Disks)

    def hear(instance: str, low_disk: str | None, now_ms: int) -> None:
        guard.on_heartbeat(DecidedHeartbeat(instance, "", 0, low_disk=low_disk), now_ms)

    def low(now_ms: int) -> list[str]:
        return [each.reason for each in guard.decide(now_ms).overrides]

    hear("b-1", "disk 1", 0)
    hear("b-2", "disk 2", 5_000)
    hear("b-1", None, 6_000)
    assert low(6_000) == low(5_000 + HEARTBEAT_FRESH_MS) == ["disk 2"]
    assert low(5_001 + HEARTBEAT_FRESH_MS) == []

    hear("b-2", "disk 2", 100_000)
    hear("b-2", None, 101_000)
    assert low(101_000) == []
