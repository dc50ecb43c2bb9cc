"""The errors of what Sluice writes to: Kafka topics and Delta tables."""

from state.errors import SluiceError


class KafkaUnavailableError(SluiceError):
    """No broker answers at `bootstrap.servers`, or it refuses the connection."""


class TopicCreationError(SluiceError):
    """The cluster refuses to create a topic."""


class UnsupportedPropertyError(SluiceError):
    """A Kafka property means something that the Python client can't do; the message names a way that works."""


class QuotasTableError(SluiceError):
    """The quotas table is missing, broken, no quotas table, or can't be written."""


class GatewayClosedError(SluiceError):
    """An event came to a gateway client that is closed."""


class TableMaintenanceError(SluiceError):
    """A Delta table can't be compacted or cleaned."""
