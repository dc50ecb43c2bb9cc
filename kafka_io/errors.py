"""The errors of Kafka: clients, properties and topics."""

from sluice.state.errors import SluiceError


class KafkaUnavailableError(SluiceError):
    """No broker answers at `bootstrap.servers`, or it refuses the connection."""


class UnsupportedPropertyError(SluiceError):
    """A Kafka property means something that the Python client can't do; the message names a way that works."""


class TopicCreationError(SluiceError):
    """The cluster refuses to create a topic."""


class UnfitTopicError(SluiceError):
    """A topic is configured so that it loses records which the job needs."""


class TopicLostError(SluiceError):
    """A topic is not there, was made again, or has lost records while it was read."""
