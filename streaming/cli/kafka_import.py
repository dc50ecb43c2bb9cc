"""Reads the client quotas of a Kafka cluster, for `sluice quotas import`."""

from collections.abc import Mapping
from typing import NamedTuple

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, for_code
from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse

from configs.errors import KafkaUnavailableError
from configs.kafka import connect


class ClusterQuota(NamedTuple):
    """The quotas of one entity as the cluster returns them: entity type to name, None for the default."""

    entity: dict[str, str | None]
    values: dict[str, float]


class ClientQuotasAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python ships no type hints
    """kafka-python's admin client with the one request it lacks: DescribeClientQuotas (KIP-546)."""

    def describe_client_quotas(self) -> list[ClusterQuota]:
        """The quotas of every entity. Raises KafkaError."""
        response = self._manager.run(self._describe)
        if response.error_code:
            raise for_code(response.error_code)(response.error_message)
        return [
            ClusterQuota(
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or []
        ]

    async def _describe(self) -> DescribeClientQuotasResponse:
        # no condition and not strict: everything
        return await self._manager.send(DescribeClientQuotasRequest(components=[], strict=False))


def read_cluster_quotas(kafka: Mapping[str, str]) -> list[ClusterQuota]:
    """The client quotas of the cluster that the Kafka client properties lead to.

    Raises KafkaUnavailableError if it can't be reached or refuses (Kafka asks for DescribeConfigs on the cluster).
    """
    with connect(ClientQuotasAdmin, kafka) as admin:
        try:
            quotas: list[ClusterQuota] = admin.describe_client_quotas()
        except (KafkaError, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise KafkaUnavailableError(
                f"the client quotas at {kafka['bootstrap.servers']} can't be read ({reason}); check that the login may"
                " describe the cluster's configs"
            ) from error
    return quotas
