"""Checks the files that Spark recovers from (offsets, commits, metadata) before Spark reads them.

A damaged checkpoint is refused with one clear message. Spark itself would show a stack trace for a truncated file, and
start from zero when the files of the offsets are gone.
"""

import json
import re
from dataclasses import dataclass
from hashlib import sha1
from typing import Annotated

import msgspec
from msgspec import Meta

from sluice.configs.settings import Settings
from sluice.state.errors import UNREADABLE
from sluice.streaming.checkpoint.batch_log import Batch, BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint, CheckpointFiles
from sluice.streaming.errors import CheckpointError

_VERSION = re.compile(r"\0?v\d+")  # the first byte of a source's first offsets is 0


_OFFSETS_FORM = "v1"
"""The first line of Spark's offset files; a line of metadata and a line of offsets for each source follow."""

Offset = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class SparkBatches:
    """The last micro-batches that Spark has planned and committed; -1 for none."""

    planned: int
    committed: int


def check_enforce_checkpoint(settings: Settings) -> None:
    """Raises CheckpointError unless the enforce query can continue its checkpoint exactly where it stopped."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    batches = check_spark_files(checkpoint)
    begun = BatchLog(checkpoint).last.batch_id
    if begun > batches.planned:
        raise checkpoint.spark.damaged_file(f"offsets/{begun}", "it is missing")
    if begun < batches.committed:
        raise checkpoint.sluice.damaged_file("batch.json", f"it doesn't know micro-batch {batches.committed}")
    if batches.committed >= 0 and checkpoint.sluice.read("sluice.json") is None:
        raise checkpoint.sluice.damaged_file("sluice.json", "it is missing")
    for partition in range(stored_partitions(checkpoint, batches.committed) or 0):
        if not checkpoint.spark.names(folder := f"state/0/{partition}"):
            raise checkpoint.spark.damaged_file(folder, "it has no files")


def pending_batch(checkpoint: Checkpoint) -> Batch | None:
    """The micro-batch that was begun and not committed, which a start repeats; None without one."""
    last = BatchLog(checkpoint).last
    return last if last.batch_id > _last_batch(checkpoint.spark, "commits") else None


def check_spark_files(checkpoint: Checkpoint) -> SparkBatches:
    """Checks what Spark reads at a start. Raises CheckpointError naming the first file that is damaged."""
    files = checkpoint.spark
    batches = SparkBatches(planned=_last_batch(files, "offsets"), committed=_last_batch(files, "commits"))
    last = max(batches.planned, batches.committed)
    if last < 0:
        return batches
    _check_file(files, "metadata", entries=1)
    last_commit = max(batches.planned - 1, batches.committed)
    for log, batch, entries in (("offsets", last, 2), ("offsets", last - 1, 2), ("commits", last_commit, 1)):
        if batch >= 0:
            _check_file(files, f"{log}/{batch}", entries)
    return batches


def read_offsets(checkpoint: Checkpoint, batch_id: int) -> dict[str, dict[int, int]]:
    """Topic -> partition -> the offset after the last record that a micro-batch read. Raises CheckpointError."""
    content = checkpoint.spark.read(f"offsets/{batch_id}") or b""
    try:
        form, _, source = content.decode().splitlines()
        if form == _OFFSETS_FORM:
            return msgspec.json.decode(source, type=dict[str, dict[int, Offset]])
    except (ValueError, *UNREADABLE):
        pass
    raise CheckpointError(
        f"offsets/{batch_id} in {checkpoint.location} doesn't say, in a form that this release knows, where its topics"
        " were read to; use the release that wrote it, or restore the checkpoint from a backup"
    )


def coverage(checkpoint: Checkpoint, batch_id: int) -> int:
    """A number for what a micro-batch covers, positive and below 2^57: of its offsets and its time.

    A repeated one has it again; another one doesn't, even with the same number, as after a backup was restored. Raises
    CheckpointError.
    """
    content = checkpoint.spark.read(f"offsets/{batch_id}")
    if content is None:
        raise checkpoint.spark.damaged_file(f"offsets/{batch_id}", "it is missing")
    return 1 + int.from_bytes(sha1(content, usedforsecurity=False).digest()[:7])


def stored_partitions(checkpoint: Checkpoint, batch_id: int) -> int | None:
    """The shuffle partitions that a micro-batch ran with; None if Spark's file of its offsets doesn't say."""
    content = checkpoint.spark.read(f"offsets/{batch_id}") or b""
    try:
        return int(json.loads(content.decode().splitlines()[1])["conf"]["spark.sql.shuffle.partitions"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _last_batch(files: CheckpointFiles, log: str) -> int:
    return max((int(name) for name in files.names(log) if name.isdigit()), default=-1)


def _check_file(files: CheckpointFiles, name: str, entries: int) -> None:
    """Raises CheckpointError unless the file has at least `entries` lines of JSON after its version line.

    `metadata` has no version line.
    """
    content = files.read(name)
    if content is None:
        raise files.damaged_file(name, "it is missing")
    lines = content.decode(errors="replace").splitlines()
    if name != "metadata":
        if not lines or not _VERSION.fullmatch(lines[0]):
            raise files.damaged_file(name, "it doesn't begin with a version")
        del lines[0]
    if len(lines) < entries:
        raise files.damaged_file(name, "it is cut short")
    for line in lines:
        _check_line(files, name, line)


def _check_line(files: CheckpointFiles, name: str, line: str) -> None:
    if line == "-":  # Spark's mark for a source without offsets
        return
    try:
        json.loads(line)
    except ValueError as error:
        raise files.damaged_file(name, str(error)) from error
