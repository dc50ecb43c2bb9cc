"""Changes the page count of a checkpoint: prepares a new one in the same folder, and swaps them."""

import os
from itertools import count
from typing import NamedTuple

from sluice.configs.settings import Settings
from sluice.streaming.balances.extract import last_committed, required_origin, stored_balances
from sluice.streaming.balances.file import Balances
from sluice.streaming.balances.imported import read_imported_start, store_imported
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice.streaming.checkpoint.origin import PREPARED_SUFFIX, keep_job_identity, new_pages, read_origin
from sluice.streaming.checkpoint.spark_files import stored_partitions
from sluice.streaming.errors import CheckpointError
from sluice.streaming.leadership.leader_epochs import keep_epoch


class Resharded(NamedTuple):
    """The balances as they are now, how many pages they had, and where the old checkpoint is."""

    balances: Balances
    pages_before: int
    kept: str


def reshard_checkpoint(settings: Settings) -> Resharded | None:
    """Make a new checkpoint with the balances of the job's, in the pages of the settings; keep the old one.

    None, and nothing is changed, if the checkpoint has these pages and shuffle partitions already.
    If this is interrupted, either nothing has changed or `finish_reshard` completes it.
    Raises CheckpointError and StateError.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    difference = required_origin(checkpoint).difference_but_pages(settings)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} was made with {difference}; set it back: balances can move to other"
            " pages, not to other windows or another topic"
        )
    prepared, kept = checkpoint.with_suffix(PREPARED_SUFFIX), _free_name(checkpoint)
    with locked(checkpoint):
        if _is_as_wanted(checkpoint, settings):
            return None
        before = stored_balances(settings)
        balances = before.resharded(new_pages(settings))
        prepared.clear()
        store_imported(prepared, balances)
        keep_job_identity(checkpoint, prepared)
        keep_epoch(checkpoint, prepared)
        checkpoint.move(kept)
        prepared.move(checkpoint)
    return Resharded(balances, before.origin.pages, kept.location)


def _is_as_wanted(checkpoint: Checkpoint, settings: Settings) -> bool:
    """True if a checkpoint with balances has the pages and the shuffle partitions of the settings."""
    if required_origin(checkpoint).pages != new_pages(settings):
        return False
    committed = last_committed(settings, checkpoint)
    if committed < 0:  # the first micro-batch will fix the partitions
        return read_imported_start(checkpoint) is not None
    wanted = settings.enforce.shuffle_partitions
    if wanted is None and settings.spark["spark.master"] == "local[*]":
        wanted = os.cpu_count()
    return wanted is not None and stored_partitions(checkpoint, committed) == wanted


def finish_reshard(settings: Settings) -> bool:
    """Move a prepared checkpoint to its place if an interrupted reshard left it whole alone; returns whether it did."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    prepared = checkpoint.with_suffix(PREPARED_SUFFIX)
    if read_origin(checkpoint) is not None or read_origin(prepared) is None:
        return False
    if not checkpoint.is_new():  # pieces of one, on S3
        checkpoint.move(_free_name(checkpoint))
    checkpoint.clear()
    prepared.move(checkpoint)
    return True


def _free_name(checkpoint: Checkpoint) -> Checkpoint:
    """A name for the old checkpoint that no earlier one has."""
    names = (checkpoint.with_suffix(f".before-reshard-{number}") for number in count(1))
    return next(name for name in names if name.is_new())
