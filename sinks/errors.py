"""The errors of the Kafka topics and Delta tables that Sluice writes to."""

from sluice.state.errors import SluiceError


class EpochMarkerError(SluiceError):
    """The decisions topic doesn't take the markers of a driver that takes over."""


class QuotasTableError(SluiceError):
    """The quotas table is missing, broken or can't be written, or its path holds another table."""


class TableMaintenanceError(SluiceError):
    """A Delta table can't be compacted or cleaned."""
