"""Giving a checkpoint another shard count: a new one is prepared beside it and takes its place."""

from itertools import count
from typing import NamedTuple

from configs.settings import Settings
from streaming.balances import Balances
from streaming.checkpoint import PREPARED_SUFFIX, CheckpointFolder, read_origin
from streaming.checkpoint_lock import locked
from streaming.errors import CheckpointError
from streaming.seed import plant
from streaming.stored_balances import required_origin, stored_balances


class Resharded(NamedTuple):
    """What was done: the balances as they are now, how many shards they had, and where the old checkpoint is."""

    balances: Balances
    shards_before: int
    kept: str


def reshard_checkpoint(settings: Settings) -> Resharded:
    """Make a new checkpoint with the balances of the job's, in the shards of the settings; keep the old one.

    Cut short at any moment it has done nothing, or `finish_reshard` completes it. Raises CheckpointError, StateError.
    """
    folder = CheckpointFolder(settings.enforce.checkpoint)
    difference = required_origin(folder).difference_but_shards(settings)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint {folder.checkpoint} was made with {difference}; set it back: balances can move to other"
            " shards, not to other windows or another topic"
        )
    prepared, kept = _prepared(folder), _free_name(folder)
    with locked(folder):
        before = stored_balances(settings)
        balances = before.resharded(settings.state.shards)
        prepared.clear()
        plant(prepared, balances)
        folder.move(kept)
        prepared.move(folder)
    return Resharded(balances, before.origin.shards, kept.checkpoint)


def finish_reshard(settings: Settings) -> bool:
    """Put a prepared checkpoint in its place if that is all that a reshard had still to do; whether it was."""
    folder = CheckpointFolder(settings.enforce.checkpoint)
    prepared = _prepared(folder)
    if not folder.is_new() or read_origin(prepared) is None:
        return False
    folder.clear()
    prepared.move(folder)
    return True


def _prepared(folder: CheckpointFolder) -> CheckpointFolder:
    return CheckpointFolder(folder.checkpoint + PREPARED_SUFFIX)


def _free_name(folder: CheckpointFolder) -> CheckpointFolder:
    """Where the old checkpoint is kept: a name that no earlier one has."""
    names = (CheckpointFolder(f"{folder.checkpoint}.before-reshard-{number}") for number in count(1))
    return next(name for name in names if name.is_new())
