"""Clusters whose brokers are gateways: with the broker plugin, and the reading of its heartbeats."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.process.clock import now_ms
from sluice.state.contract.records import Share
from sluice_demo.cluster import Cluster
from sluice_demo.job import wait_until
from sluice_insight.live import LiveModel
from sluice_reading.gateways_seen import GatewaySeen

_ALIVE_MS = 3_000
_START_S = 300.0


def plugin_cluster(
    folder: Path,
    size: int,
    exempt_client_id: str,
    controllers: int = 0,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Cluster:
    """`size` brokers, and separate controllers, with the plugin, which uses the topics of the default settings.

    Clients whose client-id is `exempt_client_id`, or begins with it and a hyphen, are exempt from quotas. Brokers have
    `more` server properties.
    """
    topics = load_settings().topics

    def properties(bootstrap_servers: str, node_id: int) -> dict[str, str]:
        return {
            **plugin_properties({"bootstrap.servers": bootstrap_servers}, topics),
            "sluice.gateway.name": f"broker-{node_id}",
            "sluice.exempt.client.id": exempt_client_id,
            **more,
        }

    return Cluster(folder, size, properties, [plugin_jar()], controllers)


def new_exempt_client_id() -> str:
    """A secret client-id, for `plugin_cluster` and for `client.id` of the job's Kafka properties."""
    return f"sluice-{secrets.token_hex(8)}"


class Heartbeats:
    """The newest decided heartbeat of each gateway, read in the background until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._model = LiveModel()
        reading = Reading(settings.topics.decisions, lambda _, value: self._model.on_record(value, now_ms()), now_ms())
        self._reader = TopicFollower(settings.kafka, reading)
        self._reader.start()

    def close(self) -> None:
        """Stop reading."""
        self._reader.stop()

    def shares(self) -> dict[str, list[Share]]:
        """Broker or gateway -> its busiest shares, of the gateways whose heartbeats go on; sorted by name."""
        return {each.text: each.heartbeat.shares for each in self._alive()}

    def instances(self) -> list[str]:
        """The processes whose heartbeats go on."""
        return [each.instance for each in self._alive()]

    def _alive(self) -> list[GatewaySeen]:
        seen = self._model.gateways.all()
        newest_ms = max((each.at_ms for each in seen), default=0)
        return [each for each in seen if newest_ms - each.at_ms <= _ALIVE_MS]


def wait_for_gateways(settings: Settings, brokers: int, is_over: Callable[[], bool] = lambda: False) -> None:
    """Wait until a heartbeat of each broker is decided, when they know each other, or it `is_over`.

    Raises RunError after 5 minutes, and as `is_over`.
    """
    with closing(Heartbeats(settings)) as heartbeats:
        wait_until(lambda: is_over() or len(heartbeats.shares()) == brokers, _START_S)
