"""Reads the client quotas of a Kafka cluster: for the mirror, the doctor and commands."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, for_code
from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.process.format import error_line
from sluice_toolbox.cluster import ClusterQuota


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


class ClusterQuotasReader(AbstractContextManager["ClusterQuotasReader"]):
    """Reads the client quotas of the cluster that the Kafka client properties lead to, again and again.

    It keeps its connection, and so reads from one broker while that answers: two brokers may know a change at different
    times. One reader must not be used by two threads at a time.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._admin: ClientQuotasAdmin | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self) -> list[ClusterQuota]:
        """The quotas now; on a connection that was lost since the last reading it tries a new one.

        Raises KafkaUnavailableError if the cluster can't be reached or refuses (Kafka asks for DescribeConfigs on it).
        """
        if self._admin is not None:
            with suppress(KafkaUnavailableError):
                return describe_quotas(self._admin, self._kafka)
            self.close()
        self._admin = connect(ClientQuotasAdmin, self._kafka)
        try:
            return describe_quotas(self._admin, self._kafka)
        except KafkaUnavailableError:
            self.close()  # the next reading connects at once, and asks a cluster that refuses once
            raise

    def close(self) -> None:
        """End the connection; the next reading makes a new one."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def describe_quotas(admin: ClientQuotasAdmin, kafka: Mapping[str, str]) -> list[ClusterQuota]:
    """The client quotas that this client reads. Raises KafkaUnavailableError if the cluster is away or refuses."""
    try:
        return admin.describe_client_quotas()
    except (KafkaError, OSError) as error:
        raise KafkaUnavailableError(
            f"the client quotas at {kafka['bootstrap.servers']} can't be read ({error_line(error)}); check"
            " that a broker answers there and that the login has DescribeConfigs on the cluster"
        ) from error


def read_cluster_quotas(kafka: Mapping[str, str]) -> list[ClusterQuota]:
    """The client quotas of the cluster, read once. Raises KafkaUnavailableError as `ClusterQuotasReader.read` does."""
    with ClusterQuotasReader(kafka) as reader:
        return reader.read()
