"""The limits topic on a real broker: what gateways read of it, through changes, losses and forged records."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from sluice import Gateway
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.sinks.limits import limits_publisher
from sluice.state.contract.gateway_topics import Measured, Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import (
    VERSION_KEY,
    LimitsView,
    limit_key,
    limit_value,
    overrides_key,
    overrides_value,
    version_end,
)
from sluice_demo.gateways import gateway_options
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import quota
from tests.deciding_side import own_topics, read_limits
from tests.integration.job_process import JobProcess
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

ALICE = quota(QuotaKind.PRODUCER_BYTE_RATE, 1024.0, user="alice")
BOB = quota(QuotaKind.PRODUCER_BYTE_RATE, 2048.0, user="bob")


class InForce:
    """The quotas in force, as the job would say them."""

    def __init__(self, *entries: QuotaEntry) -> None:
        self.now: tuple[int, tuple[QuotaEntry, ...]] = (0, entries)

    def change(self, *entries: QuotaEntry) -> None:
        self.now = (self.now[0] + 1, entries)


@pytest.fixture
def topics() -> TopicSettings:
    return own_topics(partitions=1)


@contextmanager
def publishing(topics: TopicSettings, servers: str, in_force: InForce) -> Iterator[None]:
    with limits_publisher(topics, {"bootstrap.servers": servers}, lambda: in_force.now):
        yield


def wait_for(topics: TopicSettings, servers: str, is_so: Callable[[LimitsView], bool]) -> LimitsView:
    deadline_s = time.monotonic() + 120
    while True:
        try:
            view = read_limits(topics, servers)
            if is_so(view):
                return view
        except Exception:
            view = LimitsView()
        assert time.monotonic() < deadline_s, view.entries
        time.sleep(0.1)


def has(version: int, *entries: QuotaEntry) -> Callable[[LimitsView], bool]:
    return lambda view: (
        view.in_force is not None
        and view.in_force.version == version
        and sorted(view.entries) == sorted(map(limit_key, entries))
    )


def test_another_table_has_its_quotas_published_though_its_version_is_the_same_or_lower(
    topics: TopicSettings, kafka_broker: str
) -> None:
    in_force = InForce(ALICE)
    in_force.now = (7, (ALICE,))
    with publishing(topics, kafka_broker, in_force):
        wait_for(topics, kafka_broker, has(7, ALICE))
        in_force.now = (7, (BOB,))
        wait_for(topics, kafka_broker, has(7, BOB))
        in_force.now = (0, (ALICE,))
        wait_for(topics, kafka_broker, has(0, ALICE))


def test_a_restart_writes_only_what_changed_meanwhile(topics: TopicSettings, kafka_broker: str) -> None:
    in_force = InForce(ALICE)
    with publishing(topics, kafka_broker, in_force):
        wait_for(topics, kafka_broker, has(0, ALICE))
    in_force.change(ALICE, BOB)
    with publishing(topics, kafka_broker, in_force):
        wait_for(topics, kafka_broker, has(1, ALICE, BOB))

    partition = TopicPartition(topics.limits, 0)
    with closing(KafkaConsumer(bootstrap_servers=kafka_broker)) as consumer:
        assert consumer.end_offsets([partition])[partition] == 4  # alice, end of 0, bob, end of 1


def test_a_topic_that_was_deleted_is_whole_again(topics: TopicSettings, kafka_broker: str) -> None:
    with publishing(topics, kafka_broker, InForce(ALICE, BOB)):
        wait_for(topics, kafka_broker, has(0, ALICE, BOB))
        with closing(KafkaAdminClient(bootstrap_servers=kafka_broker)) as admin:
            admin.delete_topics([topics.limits])
        time.sleep(1)
        wait_for(topics, kafka_broker, has(0, ALICE, BOB))


def test_a_decider_is_heard_when_gateways_would_act_by_it_or_forget_it_soon(
    topics: TopicSettings, kafka_broker: str
) -> None:
    """Not with each poll, which finds another number of bytes."""

    def said(at_ms: int, *overrides: Override, bound: float = 100.0) -> Overrides:
        return Overrides(1, at_ms, 60_000, [*overrides], [Measured("shop", at_ms / 1000, bound)])

    held = Override("hold", entity=CountedEntity(tenant="shop"), reason="120 of 100 B")
    looks = [
        Overrides(0, 0, 60_000),
        *(said(at_ms) for at_ms in range(1_000, 41_000, 5_000)),
        said(41_000, held),
        said(42_000, Override("hold", reason="5 bytes free"), held),
        said(43_000, Override("hold", reason="4 bytes free"), held),
        said(44_000, Override("hold", reason="4 bytes free"), held, bound=200.0),
        (last := Overrides(2, 999_000, 60_000)),
    ]
    says = iter([{"stored_bytes": look} for look in looks])
    servers = {"bootstrap.servers": kafka_broker}
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: next(says, {"stored_bytes": last})):
        wait_for(topics, kafka_broker, lambda view: view.overrides.get("stored_bytes") == last)

    found = [
        msgspec.json.decode(record.value or b"", type=Overrides) for record in records(topics.limits, kafka_broker)
    ]
    assert [each.at_ms for each in found] == [1_000, 21_000, 41_000, 42_000, 44_000, 999_000]


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_a_driver_that_takes_over_knows_what_is_left_of_a_hold_though_the_other_ones_clock_was_wrong(
    topics: TopicSettings, kafka_broker: str, ahead_ms: int
) -> None:
    """By the brokers' clock, which says how much time has passed since the record."""
    began_ms = now_ms()
    at_ms = began_ms + ahead_ms
    hold = Override("hold", entity=CountedEntity(client_id="app"), until_ms=at_ms + 600_000, consumers=True)
    said = {"operator": Overrides(1, at_ms, 600_000, [hold], command=7)}
    servers, known = {"bootstrap.servers": kafka_broker}, list[Mapping[str, Overrides]]()
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: said, known.append):
        wait_for(topics, kafka_broker, lambda view: view.overrides == said)
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: {}, known.append):
        eventually(lambda: len(known) == 2)
    first, [again] = known[0], known[1].values()

    assert first == {}
    assert began_ms <= again.at_ms <= now_ms()
    assert again.command == 7
    assert [(each.until_ms or 0) - again.at_ms for each in again.overrides] == [600_000]


def test_a_driver_that_takes_over_passes_over_what_a_stranger_wrote_beside_the_holds(
    topics: TopicSettings, kafka_broker: str
) -> None:
    """Neither another spelling of a key nor half of a record ends the publishing, or makes a hold last longer."""
    began_ms, servers = now_ms(), {"bootstrap.servers": kafka_broker}
    configs = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}  # so the stranger sets the time
    with connect(KafkaAdminClient, servers) as admin:
        admin.create_topics({topics.limits: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
        admin.wait_for_topics([topics.limits], timeout_ms=30_000)
    hold = Override("hold", entity=CountedEntity(client_id="app"), until_ms=began_ms + 600_000, consumers=True)
    said = {"operator": Overrides(1, began_ms, 600_000, [hold], command=7)}
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: said):
        wait_for(topics, kafka_broker, lambda view: view.overrides == said)
    tight = overrides_value(Overrides(1, began_ms, 600_000, [Override("tighten", 0.5, gateway="b-1")]))
    known = list[Mapping[str, Overrides]]()
    with closing(connect(KafkaProducer, servers)) as stranger:
        stranger.send(topics.limits, tight, b'"overrides:\\u0065lastic"', partition=0)
        stranger.send(topics.limits, b"half", overrides_key("operator"), partition=0, timestamp_ms=began_ms + 600_000)
        stranger.flush()
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: {}, known.append):
        eventually(lambda: len(known) == 1)

    assert known[0].keys() == {"operator"}
    assert known[0]["operator"].at_ms < began_ms + 300_000


def test_overrides_that_others_write_are_taken_back(topics: TopicSettings, kafka_broker: str) -> None:
    """Under any key, with any value. Before the deciders have spoken, what is under their names may be theirs."""
    hold = Override("hold", entity=CountedEntity(client_id="app"), consumers=True)
    said = {"operator": Overrides(1, now_ms(), 600_000, [hold], command=7), "disk_guard": Overrides(1, 0, 60_000)}
    forged = overrides_value(Overrides(9, now_ms(), 2**31 - 1, [Override("hold", reason="forged")]))
    forgotten = overrides_value(msgspec.structs.replace(said["operator"], fresh_ms=1))
    renamed = overrides_value(msgspec.structs.replace(said["operator"], number=2))  # gateways would do the same by it
    servers, says = {"bootstrap.servers": kafka_broker}, list[Mapping[str, Overrides]]()
    with limits_publisher(topics, servers, lambda: (0, ()), lambda: says[0] if says else {}):
        wait_for(topics, kafka_broker, has(0))
        with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer:
            for key in (
                overrides_key("eve"),
                b'"overrides:\\u006fperator"',
                b'"overrides:eve',
                overrides_key("operator"),
            ):
                producer.send(topics.limits, forged, key)
            producer.flush()
            wait_for(topics, kafka_broker, lambda view: view.overrides.keys() == {"operator"})
            says.append(said)
            assert_says(topics, kafka_broker, said)
            for value in (b"", b"garbage", b'{"number":"1"}', b"[" * 100_000, None, forged, forgotten, renamed):
                producer.send(topics.limits, value, overrides_key("operator")).get(120)
                assert_says(topics, kafka_broker, said)
            producer.send(topics.limits, b"garbage", overrides_key("disk_guard")).get(120)
            eventually(lambda: overrides_in(topics, kafka_broker).get(overrides_key("disk_guard")) != b"garbage")


def assert_says(topics: TopicSettings, servers: str, said: Mapping[str, Overrides]) -> None:
    """Wait until the topic has what was said, and nothing else."""
    values = {overrides_key(name): overrides_value(each) for name, each in said.items() if not each.is_neutral}
    eventually(lambda: overrides_in(topics, servers) == values)


def overrides_in(topics: TopicSettings, servers: str) -> dict[bytes, bytes]:
    """The last value of each key that overrides limits, without those that are removed."""
    last = last_values(topics, servers)
    return {key: value for key, value in last.items() if key and value is not None and LimitsView.is_override(key)}


def last_values(topics: TopicSettings, servers: str) -> dict[bytes | None, bytes | None]:
    """The last value of each key."""
    with TopicReader({"bootstrap.servers": servers}, topics.limits) as reader:
        return {record.key: record.value for _, record in reader.read_to_end()}


def records(topic: str, servers: str) -> list[FetchedRecord]:
    """Those of a decider that the topic has."""
    with TopicReader({"bootstrap.servers": servers}, topic) as reader:
        return [record for _, record in reader.read_to_end() if record.key == overrides_key("stored_bytes")]


def test_a_topic_of_an_earlier_release_is_kept_short_from_now_on(topics: TopicSettings, kafka_broker: str) -> None:
    """A config that an operator has set stays."""
    kafka = {"bootstrap.servers": kafka_broker}
    made = {
        topics.limits: {"cleanup.policy": "compact", "segment.ms": "7000"},
        topics.waits: {"cleanup.policy": "compact"},
        topics.decisions: {},
    }
    with connect(KafkaAdminClient, kafka) as admin:
        admin.create_topics(
            {name: {"num_partitions": 1, "replication_factor": 1, "configs": each} for name, each in made.items()}
        )
        admin.wait_for_topics(list(made), timeout_ms=30_000)
        ensure_topics(topics, kafka)
        ensure_topics(topics, kafka)
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in made]
        found = admin.describe_configs(asked)["topic"]

    ratio = {"min.cleanable.dirty.ratio": "0.1"}
    assert {name: {key: each["value"] for key, each in configs.items()} for name, configs in found.items()} == {
        topics.limits: made[topics.limits] | {"message.timestamp.type": "LogAppendTime"} | ratio,
        topics.waits: {"cleanup.policy": "compact", "segment.ms": "60000", "delete.retention.ms": "60000"} | ratio,
        topics.decisions: {},
    }


def test_a_gateway_that_was_away_while_removals_went_from_the_topic_reads_it_again(kafka_broker: str) -> None:
    """As after `delete.retention.ms`: of a quota that was removed meanwhile nothing is there, not even its removal."""
    settings = replace(with_bootstrap_servers(load_settings(), kafka_broker), topics=own_topics(partitions=1))
    topic, partition = settings.topics.limits, TopicPartition(settings.topics.limits, 0)
    with closing(KafkaAdminClient(bootstrap_servers=kafka_broker)) as admin:
        ensure_topics(settings.topics, settings.kafka)
        # so its first records may be removed, as if it was compacted since
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "compact,delete"})])

        def send(*records: tuple[bytes, bytes]) -> None:
            with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer:
                for key, value in records:
                    producer.send(topic, value, key).get(120)

        send((limit_key(ALICE), limit_value(ALICE, 0)), (VERSION_KEY, version_end(0, 1)))
        with Gateway(settings.kafka, gateway_options(settings)) as gateway:
            eventually(lambda: gateway.stats().limits_version == 0)
            admin.delete_records({partition: 2})
            send((limit_key(BOB), limit_value(BOB, 1)), (VERSION_KEY, version_end(1, 1)))
            eventually(lambda: gateway.stats().limits_version == 1)


@pytest.mark.spark
def test_a_running_job_publishes_each_change(shared_job: JobProcess, kafka_broker: str) -> None:
    """Though no request comes; `./scripts/closed-loop` measures when."""
    settings = shared_job.settings
    table = QuotasAdmin(settings.delta.quotas)
    before = table.entries()
    wait_for(settings.topics, kafka_broker, has(table.version(), *before))
    version = table.alter(lambda entries: [*entries, ALICE], "test", datetime.now(UTC))
    wait_for(settings.topics, kafka_broker, has(version, *before, ALICE))


def test_what_others_write_is_put_right(topics: TopicSettings, kafka_broker: str) -> None:
    with publishing(topics, kafka_broker, InForce(ALICE, BOB)):
        wait_for(topics, kafka_broker, has(0, ALICE, BOB))
        with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer:
            for key in (limit_key(BOB), VERSION_KEY, b"{}", b"x"):
                producer.send(topics.limits, b"garbage", key)
            raised = QuotaEntry(ALICE.entity, ALICE.kind, 1e12)
            of_a_later_release = (limit_value(ALICE, 0), limit_key(ALICE))
            producer.send(
                topics.limits, *(part.replace(b"producer_byte", b"newer_byte") for part in of_a_later_release)
            )
            producer.send(topics.limits, limit_value(raised, 0), limit_key(ALICE))
            for number in range(15):  # more than readers remember
                producer.send(topics.limits, b"garbage", b"%d" % number + b"x" * 900_000)
            producer.flush()
        wait_for(topics, kafka_broker, lambda view: view.garbage == 20)  # soon: brokers compact the topic later
        entries = {limit_key(ALICE): ALICE, limit_key(BOB): BOB}
        wait_for(topics, kafka_broker, lambda view: view.entries == entries and not view.unreadable)
        keys = {limit_key(ALICE), limit_key(BOB), VERSION_KEY}
        eventually(
            lambda: {key for key, value in last_values(topics, kafka_broker).items() if value is not None} == keys
        )
