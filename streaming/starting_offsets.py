"""Where the enforce query begins on a new checkpoint."""

import json
from contextlib import closing

from kafka import KafkaConsumer

from configs.settings import Settings
from sinks.topics import connect
from streaming.checkpoint import CheckpointFolder
from streaming.errors import CheckpointError
from streaming.seed import read_start

_EARLIEST = -2  # as Spark writes it


def starting_offsets(settings: Settings) -> str:
    """Where a query on a new checkpoint begins, as Spark's Kafka source takes it.

    A seeded checkpoint names an offset for each partition; one that the topic has gained since is read from its
    beginning. Raises CheckpointError if the topic has lost partitions, KafkaUnavailableError.
    """
    start = read_start(CheckpointFolder(settings.enforce.checkpoint))
    if start is None:
        return settings.enforce.starting_offsets
    topic = settings.topics.requests
    with closing(connect(KafkaConsumer, settings.kafka)) as consumer:
        partitions: set[int] = consumer.partitions_for_topic(topic) or set()
    lost = start.offsets.keys() - partitions
    if lost:
        raise CheckpointError(
            f"topic {topic} has no partition {min(lost)}, which the balances in {settings.enforce.checkpoint} were"
            " charged from; name the topic they come from, or a new enforce.checkpoint (balances start afresh)"
        )
    return json.dumps({topic: {str(number): start.offsets.get(number, _EARLIEST) for number in sorted(partitions)}})
