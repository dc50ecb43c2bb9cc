"""A broker with the plugin, and clients that go as fast as it lets them."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.jvm.jars import JarSet
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.decisions.checks import EventLimits
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import overrides_key, overrides_value
from sluice.streaming.enforce.parsing import parse_request
from sluice.streaming.enforce.wire import Source
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jmx import read_beans
from sluice_lab.testbed.quotas_without_job import AlteringAdmin, publish_limits
from tests.broker_plugin import SECRET, plugin_properties
from tests.builders import changed
from tests.kafka_bound import BURST_S, check_bound
from tests.waiting import eventually

_VALUE = bytes(50_000)

FETCH_BYTES = 100_000
"""Size of what `consume` asks for in one request."""

Login = Mapping[str, Any]
"""Options of a kafka-python client with which it logs in."""


class PluginBroker:
    """A broker with the plugin, and what its meters were charged.

    `properties` replace those of the server. `login` is what Sluice's own clients in the test log in with.
    """

    def __init__(
        self,
        folder: Path,
        classes: list[Path],
        jars: JarSet = BROKER_JARS,
        properties: Mapping[str, str] | None = None,
        login: Login | None = None,
    ) -> None:
        self._sums = folder / "sums.json"
        self._login = {"client_id": SECRET, **(login or {})}
        all_properties = plugin_properties() | {"test.meter.sums": str(self._sums), "message.max.bytes": "9000000"}
        all_properties |= properties or {}
        all_properties["metric.reporters"] += ",sluice.kafka.MeterSums"
        self.log = folder / "broker.log"
        self.broker = Broker(folder, properties=all_properties, jars=jars, plugins=classes, jmx=True)

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def create_topics(self, *topics: str) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.servers, **self._login)) as admin:
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in topics})

    def delete_topics(self, *topics: str) -> None:
        """Returns when they are gone."""
        with closing(KafkaAdminClient(bootstrap_servers=self.servers, **self._login)) as admin:
            admin.delete_topics(list(topics))
            eventually(lambda: not {*topics} & {*admin.list_topics()})

    def publish_limits(self, entries: Sequence[QuotaEntry], version: int = 1) -> None:
        publish_limits(self.servers, entries, version, self._login)

    def override(self, decider: str, *overrides: Override) -> None:
        """Publish what a decider of the job would say."""
        publish_overrides(self.servers, decider, overrides, **self._login)

    def events(self) -> list[dict[str, Any]]:
        """All events that were published."""
        return published(self.servers)

    def alter_kafka_quota(self, client_id: str, key: str, value: float) -> None:
        """Set a quota as `kafka-configs --alter` does."""
        with closing(AlteringAdmin(bootstrap_servers=self.servers, **self._login)) as admin:
            admin.alter({"client-id": client_id}, {key: value})

    def charged(self, of: str = "sum") -> dict[tuple[str, str], float]:
        """The charges of each meter (group, client-id) in the last ten seconds, by Kafka's own methods.

        `of` "total" is the sum of all charges, of a meter that is charged for no longer than that at a time.
        """
        sums = json.loads(self._sums.read_text())
        return {(each["group"], each["client_id"]): each[of] for each in sums}

    def metric(self, name: str) -> float:
        """An attribute of the plugin's own bean."""
        (value,) = read_beans(self.broker.jmx_port, "sluice:type=gateway,*", name).values()
        return value


def publish_overrides(servers: str, decider: str, overrides: Sequence[Override], **login: Any) -> None:
    """Publish to the limits topic what a decider of the job would say."""
    said = overrides_value(Overrides(now_ms(), now_ms(), 60_000, [*overrides]))
    with closing(KafkaProducer(bootstrap_servers=servers, **login)) as producer:
        producer.send("quota-limits", said, overrides_key(decider), partition=0).get(120)


def produce(servers: str, client_id: str, seconds: float, most: int = 10**9, **login: Any) -> int:
    """Produce as fast as the broker lets it, once it knows the topic; returns the bytes that were accepted."""
    accepted = 0
    producer = KafkaProducer(bootstrap_servers=servers, client_id=client_id, acks=1, batch_size=0, retries=0, **login)
    producer.partitions_for("orders")
    until = time.monotonic() + seconds
    while time.monotonic() < until and accepted < most:
        try:
            producer.send("orders", _VALUE, partition=0).get(max(0.01, until - time.monotonic()))
        except KafkaError:
            break  # it was muted to the end
        accepted += len(_VALUE)
    with suppress(KafkaError):
        producer.close(timeout=0)
    producer._sender.force_close()  # what is still on its way is given up
    return accepted


def check_throttled(servers: str, client_id: str, quota: float, **login: Any) -> None:
    """Fails if more than a fresh meter lets through at once is accepted before Kafka admits it."""
    began_ms, amount = now_ms(), int(1.5 * BURST_S * quota)
    accepted = produce(servers, client_id, 120, amount, **login)
    assert accepted >= amount
    check_bound([(now_ms(), accepted)], quota, began_ms, len(_VALUE))


def consume(servers: str, client_id: str, seconds: float, most: int = 10**9) -> int:
    """Consume as fast as the broker lets it, once it knows the topic; returns the bytes that came."""
    consumer = KafkaConsumer(bootstrap_servers=servers, client_id=client_id, max_partition_fetch_bytes=FETCH_BYTES)
    consumer.partitions_for_topic("orders")
    consumer.assign([TopicPartition("orders", 0)])
    consumer.seek_to_beginning()
    read, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and read < most:
        for records in consumer.poll(timeout_ms=int(left * 1000)).values():
            read += sum(len(record.value) for record in records)
    consumer.close()
    return read


def published(servers: str, **login: Any) -> list[dict[str, Any]]:
    """All events of the requests topic, without the control records of `sluice unmute`; the job accepts each."""
    consumer = KafkaConsumer(bootstrap_servers=servers, client_id=SECRET, consumer_timeout_ms=500, **login)
    partition = TopicPartition("quota-requests", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    end, events = consumer.end_offsets([partition])[partition], []
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                event = json.loads(record.value)
                if "control" in event:
                    continue
                source = Source("quota-requests", 0, record.offset, record.timestamp)
                parse_request(record.value, source, EventLimits(10**6, 60_000))
                events.append(event)
    consumer.close()
    return events


def proxy_settings(servers: str, **topics: Any) -> Settings:
    """Settings of a proxy in front of these brokers, which have its topics, with one partition each."""
    settings = changed(with_bootstrap_servers(load_settings(), servers), "topics", partitions=1, **topics)
    ensure_topics(settings.topics, settings.kafka)
    return settings


def published_bytes(servers: str, client_id: str = "greedy", **login: Any) -> Counter[str]:
    """Bytes in the events of a client-id, by API."""
    sums: Counter[str] = Counter()
    for event in published(servers, **login):
        if "bytes" in event and event["client_id"] == client_id:
            sums[event["api"]] += event["bytes"]
    return sums
