"""Spark's own files in a checkpoint: by them it finds its way back, so a damaged one is refused before it is used.

Spark itself answers a cut file with a stack trace, and begins from zero when the files of the offsets are gone.
"""

import json
import re
from dataclasses import dataclass

from configs.settings import Settings
from streaming.checkpoint import BatchLog, CheckpointFolder, damaged

_VERSION = re.compile(r"\0?v\d+")  # the first byte of a source's first offsets is 0


@dataclass(frozen=True, slots=True)
class SparkBatches:
    """The last micro-batches that Spark has planned and committed; -1 where there is none."""

    planned: int
    committed: int


def check_enforce_checkpoint(settings: Settings) -> None:
    """Raises CheckpointError when the enforce query can't go on with its checkpoint exactly where it was."""
    checkpoint = settings.enforce.checkpoint
    batches = check_spark_files(checkpoint)
    folder = CheckpointFolder(checkpoint)
    begun = BatchLog(folder).last_begun
    if begun > batches.planned:
        raise damaged(f"offsets/{begun}", checkpoint, "it is missing")
    if begun < batches.committed:
        raise damaged("sluice/batch.json", checkpoint, f"it doesn't know micro-batch {batches.committed}")
    if batches.committed >= 0 and folder.read("sluice.json") is None:
        raise damaged("sluice/sluice.json", checkpoint, "it is missing")


def check_spark_files(checkpoint: str) -> SparkBatches:
    """What a start will read is whole. Raises CheckpointError, which names the file."""
    folder = CheckpointFolder(checkpoint, subfolder="")
    batches = SparkBatches(planned=_last_batch(folder, "offsets"), committed=_last_batch(folder, "commits"))
    last = max(batches.planned, batches.committed)
    if last < 0:
        return batches
    _check_file(folder, "metadata", entries=1)
    last_commit = max(batches.planned - 1, batches.committed)
    for log, batch, entries in (("offsets", last, 2), ("offsets", last - 1, 2), ("commits", last_commit, 1)):
        if batch >= 0:
            _check_file(folder, f"{log}/{batch}", entries)
    return batches


def _last_batch(folder: CheckpointFolder, log: str) -> int:
    return max((int(name) for name in folder.names(log) if name.isdigit()), default=-1)


def _check_file(folder: CheckpointFolder, name: str, entries: int) -> None:
    """Lines of JSON, at least so many, below the version of the format, which `metadata` alone has not."""
    content = folder.read(name)
    if content is None:
        raise damaged(name, folder.checkpoint, "it is missing")
    lines = content.decode(errors="replace").splitlines()
    if name != "metadata":
        if not lines or not _VERSION.fullmatch(lines[0]):
            raise damaged(name, folder.checkpoint, "it doesn't begin with a version")
        del lines[0]
    if len(lines) < entries:
        raise damaged(name, folder.checkpoint, "it is cut short")
    for line in lines:
        _check_line(line, name, folder.checkpoint)


def _check_line(line: str, name: str, checkpoint: str) -> None:
    if line == "-":  # a source that had nothing yet
        return
    try:
        json.loads(line)
    except ValueError as error:
        raise damaged(name, checkpoint, str(error)) from error
