"""The errors of the Kafka topics and Delta tables that Sluice writes to."""

from state.errors import SluiceError


class TopicCreationError(SluiceError):
    """The cluster refuses to create a topic."""


class EpochMarkerError(SluiceError):
    """The decisions topic doesn't take the markers of a driver that takes over."""


class QuotasTableError(SluiceError):
    """The quotas table is missing, broken or can't be written, or its path holds another table."""


class TableMaintenanceError(SluiceError):
    """A Delta table can't be compacted or cleaned."""


class QueryError(SluiceError):
    """An SQL query over the Delta tables is wrong, or a table that it names can't be read."""


class UsageUnknownError(SluiceError):
    """There is no table of metrics yet, or it can't be read, so nobody knows what clients used."""
