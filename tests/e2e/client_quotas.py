"""Sets client quotas on a cluster, as kafka-configs.sh does."""

from collections.abc import Mapping

from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from streaming.runtime.cluster_quotas import ClientQuotasAdmin


class AlteringAdmin(ClientQuotasAdmin):
    """Sets quotas on the cluster, which kafka-python's admin client can't either."""

    def alter(self, entity: Mapping[str, str | None], values: Mapping[str, float], *, remove: bool) -> None:
        response = self._manager.run(self._alter, entity, values, remove)
        assert [entry.error_code for entry in response.entries] == [0], response

    async def _alter(
        self, entity: Mapping[str, str | None], values: Mapping[str, float], remove: bool
    ) -> AlterClientQuotasResponse:
        entry = AlterClientQuotasRequest.EntryData
        parts = [entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        operations = [entry.OpData(key=key, value=value, remove=remove) for key, value in values.items()]
        request = AlterClientQuotasRequest(entries=[entry(entity=parts, ops=operations)], validate_only=False)
        return await self._manager.send(request)
