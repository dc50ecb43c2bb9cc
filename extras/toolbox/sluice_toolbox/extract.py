"""Reads balances from the enforce query's checkpoint, as of its last committed micro-batch."""

from collections.abc import Sequence

from msgspec import structs

from sluice.configs.settings import Settings
from sluice.state.store.codec import pages_of
from sluice.streaming.balances.imported import ImportedBalances, ImportedStart, read_imported_start
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin, charged_topic_id, read_origin
from sluice.streaming.checkpoint.page_keys import page_of_spark_key
from sluice.streaming.checkpoint.spark_files import (
    check_enforce_checkpoint,
    check_spark_files,
    read_offsets,
    stored_partitions,
)
from sluice.streaming.errors import CheckpointError
from sluice_toolbox.balances import Balances


def required_origin(checkpoint: Checkpoint) -> Origin:
    """The settings that the checkpoint was made with. Raises CheckpointError if there is none."""
    origin = read_origin(checkpoint)
    if origin is None:
        raise CheckpointError(
            f"{checkpoint.location} has no balances; name the enforce.checkpoint of a job that has run"
        )
    return origin


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
    begun = BatchLog(checkpoint).last.batch_id
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


def committed_pages(settings: Settings, parts: Sequence[bytes]) -> tuple[Origin, int, dict[int, bytes]]:
    """The checkpoint's origin, its last committed micro-batch, and the pages then that have any of `parts`.

    A job may work on the checkpoint meanwhile: a committed version doesn't change, and Spark keeps a hundred of them.
    The micro-batch is -1 for balances that are imported and not charged yet. Raises CheckpointError without balances.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    origin, start = required_origin(checkpoint), read_imported_start(checkpoint)
    if (difference := origin.difference_but_pages(settings)) is not None:
        raise CheckpointError(f"{checkpoint.location} was made with {difference}; give the settings of its job")
    committed = check_spark_files(checkpoint).committed
    origin, pages = all_pages(settings, origin, start, committed)
    return origin, committed, {number: page for number, page in pages.items() if any(part in page for part in parts)}


def all_pages(
    settings: Settings, origin: Origin, start: ImportedStart | None, committed: int
) -> tuple[Origin, dict[int, bytes]]:
    """All pages after a micro-batch, -1 for those that are imported alone, and the origin with as many pages.

    Raises CheckpointError without balances.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    if start is None and committed < 0:
        raise CheckpointError(f"{checkpoint.location} has no balances yet: its job has committed no micro-batch")
    pages = ImportedBalances.at(checkpoint, start).all_pages()
    if committed < 0:
        return origin, pages
    stored = _stored_pages(settings, origin, committed)  # a stored page includes what was imported
    return structs.replace(origin, pages=next(map(pages_of, stored.values()), origin.pages)), pages | stored


def _stored_pages(settings: Settings, origin: Origin, batch_id: int) -> dict[int, bytes]:
    from sluice_toolbox.stored_state import stored_pages  # py4j isn't always needed

    checkpoint = Checkpoint(settings.enforce.checkpoint)
    partitions = stored_partitions(checkpoint, batch_id)
    if partitions is None:
        raise checkpoint.spark.damaged_file(f"offsets/{batch_id}", "it has no number of shuffle partitions")
    of_key = stored_pages(settings, checkpoint, batch_id, partitions)
    return {page_of_spark_key(key, origin.pages): page for key, page in of_key.items()}
