"""The epochs of the drivers of a checkpoint: a file for each, which one driver alone can make."""

from itertools import count

from sluice.streaming.checkpoint.batch_log import CreateFile
from sluice.streaming.checkpoint.folder import Checkpoint

_FOLDER = "epochs"


def new_epoch(checkpoint: Checkpoint, create: CreateFile) -> int:
    """A number above all that drivers of this checkpoint have had.

    Files of older ones stay, so that none is given twice. A driver may use it if it leads afterwards: whoever leads
    later gets a higher one. Raises CheckpointError.
    """
    known = _numbers(checkpoint)
    for number in count(known[-1] + 1 if known else 1):
        if create(_name(number), b""):
            break
    return number


def keep_epoch(source: Checkpoint, target: Checkpoint) -> None:
    """Let the epochs of `target`, which takes the place of `source`, go on from there. Raises CheckpointError."""
    if known := _numbers(source):
        target.sluice.write(_name(known[-1]), b"")


def _numbers(checkpoint: Checkpoint) -> list[int]:
    return sorted(int(name) for name in checkpoint.sluice.names(_FOLDER) if name.isdecimal())


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:020d}"
