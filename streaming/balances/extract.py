"""Reads balances from the enforce query's checkpoint, as of its last committed micro-batch."""

from collections.abc import Sequence

from msgspec import structs

from sluice.configs.settings import Settings
from sluice.state.store.codec import pages_of
from sluice.streaming.balances.imported import ImportedBalances, ImportedStart, read_imported_start
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin, read_origin
from sluice.streaming.checkpoint.page_keys import page_of_spark_key
from sluice.streaming.checkpoint.spark_files import check_spark_files, stored_partitions
from sluice.streaming.errors import CheckpointError


def required_origin(checkpoint: Checkpoint) -> Origin:
    """The settings that the checkpoint was made with. Raises CheckpointError if there is none."""
    origin = read_origin(checkpoint)
    if origin is None:
        raise CheckpointError(
            f"{checkpoint.location} has no balances; name the enforce.checkpoint of a job that has run"
        )
    return origin


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
    from sluice.streaming.balances.stored_state import stored_pages  # py4j isn't always needed

    checkpoint = Checkpoint(settings.enforce.checkpoint)
    partitions = stored_partitions(checkpoint, batch_id)
    if partitions is None:
        raise checkpoint.spark.damaged_file(f"offsets/{batch_id}", "it has no number of shuffle partitions")
    of_key = stored_pages(settings, checkpoint, batch_id, partitions)
    return {page_of_spark_key(key, origin.pages): page for key, page in of_key.items()}
