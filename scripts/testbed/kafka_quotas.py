"""Sets Kafka's own client quotas, as `kafka-configs` does."""

from collections.abc import Mapping

from kafka.errors import for_code
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from sluice.kafka_io.kafka_python import ClientQuotasAdmin


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
