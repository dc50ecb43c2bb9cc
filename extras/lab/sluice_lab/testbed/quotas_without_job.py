"""Quotas that no job sets: Kafka's own of a cluster, and a version of the limits topic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from kafka import KafkaProducer
from kafka.errors import for_code
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Page
from sluice.streaming.enforce.pipeline import ChargedRows, decide, plan
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source
from sluice_toolbox.cluster_quotas import ClientQuotasAdmin


class AlteringAdmin(ClientQuotasAdmin):
    """kafka-python's admin client with a request that it lacks: AlterClientQuotas (KIP-546)."""

    def alter(self, entity: Mapping[str, str | None], values: Mapping[str, float], *, remove: bool = False) -> None:
        """Set or remove quotas of an entity: type (user, client-id) to name, None the default. Raises KafkaError."""
        response = self._manager.run(self._alter, entity, values, remove)
        for entry in response.entries:
            if entry.error_code:
                raise for_code(entry.error_code)(entry.error_message)

    async def _alter(
        self, entity: Mapping[str, str | None], values: Mapping[str, float], remove: bool
    ) -> AlterClientQuotasResponse:
        entry = AlterClientQuotasRequest.EntryData
        parts = [entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        operations = [entry.OpData(key=key, value=value, remove=remove) for key, value in values.items()]
        request = AlterClientQuotasRequest(entries=[entry(entity=parts, ops=operations)], validate_only=False)
        return await self._manager.send(request)


def set_kafkas_quotas(servers: str, entity: Mapping[str, str | None], values: Mapping[str, float]) -> None:
    """Set Kafka's own quotas of an entity: type (user, client-id, ip) to name, None the default."""
    with connect(AlteringAdmin, {"bootstrap.servers": servers}) as admin:
        admin.alter(entity, values)


def settings_with_limits(servers: str, entries: Sequence[QuotaEntry], **options: Any) -> Settings:
    """The default settings of a job on these brokers, once its topics are there and have a version of the limits."""
    settings = with_bootstrap_servers(load_settings(environment={}), servers)
    ensure_topics(settings.topics, settings.kafka)
    publish_limits(servers, entries, 1, options)
    return settings


def publish_limits(
    servers: str, entries: Sequence[QuotaEntry], version: int, options: Mapping[str, Any], topic: str = "quota-limits"
) -> None:
    """Publish a version of the limits, as the job does; `options` are those of kafka-python's producer."""
    with KafkaProducer(bootstrap_servers=servers, **options) as producer:
        for entry in entries:
            producer.send(topic, limit_value(entry, version), limit_key(entry), partition=0)
        producer.send(topic, version_end(version, len(entries)), VERSION_KEY, partition=0).get(10)


class JobInMemory:
    """Decides events of a topic under these quotas, as the job does, with its counters in memory."""

    def __init__(self, settings: Settings, entries: Sequence[QuotaEntry]) -> None:
        self.pipeline = PipelineSettings.of(settings)
        self._quotas, self._page, self._batches = Quotas(entries, version=1), Page(), count()

    def decide(self, values: Iterable[bytes | None], first_offset: int = 0) -> tuple[ChargedRows, Iterator[bytes]]:
        """The decisions on a micro-batch, and the records of its sums."""
        events = [(value, Source("", 0, place, now_ms())) for place, value in enumerate(values, first_offset)]
        planned = plan(events, self._quotas, self.pipeline, now_ms())
        decided = decide(self._page, [each for made in planned for each in made.values()], self.pipeline)
        return decided, decided.sums.records("bench", next(self._batches), 1)
