"""Where the enforce query begins to read the requests topic."""

import json

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.streaming.balances.imported import read_imported_start
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

_EARLIEST = -2  # in Spark's JSON of offsets


def starting_offsets(settings: Settings) -> str:
    """The option `startingOffsets` of Spark's Kafka source.

    A checkpoint with imported balances names an offset per partition; partitions added since then are read from
    their beginning. Raises CheckpointError if the topic has lost partitions, KafkaUnavailableError.
    """
    start = read_imported_start(Checkpoint(settings.enforce.checkpoint))
    if start is None:
        return settings.enforce.starting_offsets
    topic = settings.topics.requests
    with TopicReader(settings.kafka, topic) as reader:
        partitions = reader.partitions()
    lost = start.offsets.keys() - partitions
    if lost:
        raise CheckpointError(
            f"topic {topic} has no partition {min(lost)}, which the balances in {settings.enforce.checkpoint} were"
            " charged from; name the topic they come from, or a new enforce.checkpoint (balances start from zero)"
        )
    return json.dumps({topic: {str(number): start.offsets.get(number, _EARLIEST) for number in sorted(partitions)}})
