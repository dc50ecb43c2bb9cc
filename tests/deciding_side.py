"""A broker's topics for one test, and the job's arithmetic on them in a thread: the deciding side without the job."""

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.limits import limits_publisher
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.overrides.watch import OverridesWatch
from tests.integration.job_process import TOPICS


def own_topics(partitions: int | None = None) -> TopicSettings:
    """Topics that no other test uses; they don't exist yet. They have the default partitions, if none are named."""
    topics, stem = load_settings(environment={}).topics, uuid.uuid4().hex[:8]
    names: dict[str, Any] = {name: f"{name.replace('_', '-')}-{stem}" for name in TOPICS}
    return replace(topics, **names, partitions=partitions or topics.partitions)


def own_settings(bootstrap_servers: str, partitions: int | None = None) -> Settings:
    """Settings with topics that no other test uses; they exist."""
    settings = replace(with_bootstrap_servers(load_settings(), bootstrap_servers), topics=own_topics(partitions))
    ensure_topics(settings.topics, settings.kafka)
    return settings


def read_events(settings: Settings) -> list[dict[str, Any]]:
    """Every event in the requests topic, heartbeats left out."""
    return [event for event in read_records(settings) if event["api"] != HEARTBEAT_API]


def read_records(settings: Settings) -> list[dict[str, Any]]:
    """Every record in the requests topic."""
    with KafkaConsumer(bootstrap_servers=settings.kafka["bootstrap.servers"], auto_offset_reset="earliest") as consumer:
        topic = settings.topics.requests
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        events: list[dict[str, Any]] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=200).values():
                events += [json.loads(record.value) for record in records]
        return events


@contextmanager
def deciding_side(
    settings: Settings, quotas: Sequence[QuotaEntry], overrides: OverridesWatch | None = None
) -> Iterator[None]:
    """Decides every event of the requests topic in a thread, as the job would, from the beginning of the topic.

    The quotas in force are published, too, and what `overrides` says.
    """
    stop = threading.Event()
    watch = overrides or OverridesWatch([], OverridesTable("none", {}), 0)
    publisher = limits_publisher(
        settings.topics, settings.kafka, lambda: (1, tuple(quotas)), lambda: watch.said, watch.remember
    )
    simulation = Simulation(Quotas(quotas), settings)
    servers, topic = settings.kafka["bootstrap.servers"], settings.topics.requests

    def events() -> Iterator[bytes]:
        with KafkaConsumer(bootstrap_servers=servers) as consumer:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            while not stop.is_set():
                for records in consumer.poll(timeout_ms=50).values():
                    yield from (record.value for record in records)

    def decide() -> None:
        producer = KafkaProducer(bootstrap_servers=servers)
        for decided in simulation.records(events()):
            producer.send(decided.topic, decided.value, decided.key)
        producer.close()

    thread = threading.Thread(target=decide)
    thread.start()
    publisher.start()
    try:
        yield
    finally:
        publisher.stop()
        stop.set()
        thread.join()


def read_limits(topics: TopicSettings, servers: str) -> LimitsView:
    """The limits that a gateway knows when it reads the topic from its beginning now."""
    view, partition = LimitsView(), TopicPartition(topics.limits, 0)
    with closing(KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition], 3_000)[partition]  # a topic that was deleted never answers
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    try:
                        view.take(record.key, record.value)
                    except InvalidQuotaError:
                        continue
    return view
