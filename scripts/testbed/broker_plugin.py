"""Clusters whose brokers are gateways: with the broker plugin, and a look at its heartbeats."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from scripts.testbed.cluster import Cluster
from scripts.testbed.job import wait_until
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.kafka_io.client import connect
from sluice.state.decisions.request import HEARTBEAT_API, Heartbeat, Share
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from sluice.state.shares.alive import is_late

_POLL_MS = 200
_ALIVE_MS = 3_000
_START_S = 300.0


def plugin_cluster(
    folder: Path, size: int, exempt_client_id: str, controllers: int = 0, jvm_options: Sequence[str] = ()
) -> Cluster:
    """So many brokers, and controllers beside them, with the plugin, which uses the topics of the default settings.

    No quota holds clients whose client-id is `exempt_client_id`, or begins with it and a hyphen.
    """
    topics = load_settings().topics

    def properties(bootstrap_servers: str, node_id: int) -> dict[str, str]:
        return {
            **plugin_properties({"bootstrap.servers": bootstrap_servers}, topics),
            "sluice.gateway.name": f"broker-{node_id}",
            "sluice.exempt.client.id": exempt_client_id,
        }

    return Cluster(folder, size, properties, [plugin_jar()], controllers, jvm_options)


def new_exempt_client_id() -> str:
    """A client-id that nobody else knows, for `plugin_cluster` and for `client.id` of the job's Kafka properties."""
    return f"sluice-{secrets.token_hex(8)}"


def publish_limits(servers: str, entries: Sequence[QuotaEntry], version: int, options: Mapping[str, Any]) -> None:
    """Publish a version of the limits, as the job does; `options` are those of kafka-python's producer."""
    with KafkaProducer(bootstrap_servers=servers, **options) as producer:
        for entry in entries:
            producer.send("quota-limits", limit_value(entry, version), limit_key(entry), partition=0)
        producer.send("quota-limits", version_end(version, len(entries)), VERSION_KEY, partition=0).get(10)


class _DecidedHeartbeat(msgspec.Struct):
    """The part of a decision that says how a gateway is; absent from other decisions."""

    api: str = ""
    gateway: str | None = None
    instance: str | None = None
    timestamp_ms: int = 0
    heartbeat: Heartbeat | None = None


class Heartbeats:
    """The newest decided heartbeat of each gateway, read in a background thread until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._stop = Event()
        self._lock = Lock()
        self._last: dict[str, _DecidedHeartbeat] = {}
        self._newest_ms = 0
        topic = settings.topics.decisions
        self._consumer = connect(KafkaConsumer, settings.kafka, enable_auto_commit=False)
        partitions = [TopicPartition(topic, number) for number in self._consumer.partitions_for_topic(topic) or ()]
        self._consumer.assign(partitions)
        self._consumer.seek_to_end()
        self._thread = Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def shares(self) -> dict[str, list[Share]]:
        """Gateway name -> its busiest shares, of the gateways whose heartbeats go on; sorted by name."""
        with self._lock:
            alive = [
                (heard.gateway or instance, heard.heartbeat.shares)
                for instance, heard in self._last.items()
                if heard.heartbeat and self._newest_ms - heard.timestamp_ms <= _ALIVE_MS
            ]
        return dict(sorted(alive))

    def take(self, record: bytes) -> None:
        """Take over a record of the decisions topic."""
        decided = msgspec.json.decode(record, type=_DecidedHeartbeat)
        if decided.api == HEARTBEAT_API and decided.instance:
            with self._lock:
                known = self._last.get(decided.instance)
                if known is None or not is_late(decided.timestamp_ms, known.timestamp_ms):
                    self._last[decided.instance] = decided
                self._newest_ms = max(self._newest_ms, decided.timestamp_ms)

    def _run(self) -> None:
        while not self._stop.is_set():
            for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    self.take(record.value)


def wait_for_gateways(settings: Settings, brokers: int) -> None:
    """Wait until a heartbeat of each broker is decided: then they know each other. Raises RunError after 5 minutes."""
    heartbeats = Heartbeats(settings)
    try:
        wait_until(lambda: len(heartbeats.shares()) == brokers, _START_S)
    finally:
        heartbeats.close()
