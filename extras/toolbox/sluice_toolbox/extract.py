"""Reads all balances from the enforce query's checkpoint, as of its last committed micro-batch, for an export."""

from sluice.configs.settings import Settings
from sluice.streaming.balances.extract import all_pages, required_origin
from sluice.streaming.balances.imported import read_imported_start
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import charged_topic_id
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint, check_spark_files, read_offsets
from sluice.streaming.errors import CheckpointError
from sluice_toolbox.balances import Balances


def stored_balances(settings: Settings) -> Balances:
    """The balances in the checkpoint of the settings, whose lock the caller holds.

    Starts Java if the query has committed a micro-batch. Raises CheckpointError if there are no balances, or if a
    micro-batch was begun and not committed: only this checkpoint's own query can repeat it without writing its
    decisions twice.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    origin, start = required_origin(checkpoint), read_imported_start(checkpoint)
    committed = last_committed(settings, checkpoint)
    offsets = start.offsets if start else {}
    if committed >= 0:
        offsets = committed_offsets(checkpoint, committed, origin.requests_topic)
    origin, pages = all_pages(settings, origin, start, committed)
    if committed >= 0 and last_committed(settings, checkpoint) != committed:  # a URI can't be locked
        raise CheckpointError(f"a job works on {checkpoint.location}; stop it with SIGTERM first")
    return Balances(origin, offsets, pages, charged_topic_id(checkpoint))


def last_committed(settings: Settings, checkpoint: Checkpoint) -> int:
    """The last micro-batch, -1 without any. Raises CheckpointError if it isn't committed, or the files are damaged."""
    check_enforce_checkpoint(settings)
    committed = check_spark_files(checkpoint).committed
    begun = BatchLog(checkpoint).last_begun
    if begun > committed:
        raise CheckpointError(
            f"micro-batch {begun} in {checkpoint.location} was begun and isn't committed; start the job once with the"
            " settings it ran with, let it go on, and stop it with SIGTERM"
        )
    return committed


def committed_offsets(checkpoint: Checkpoint, batch_id: int, topic: str) -> dict[int, int]:
    """The offset after the last record of a micro-batch, by partition. Raises CheckpointError."""
    topics = read_offsets(checkpoint, batch_id)
    if topic not in topics:
        raise CheckpointError(
            f"offsets/{batch_id} in {checkpoint.location} doesn't say where {topic} was read to; restore the checkpoint"
            " from a backup"
        )
    return topics[topic]
