"""Which decisions of a micro-batch don't count because their driver was replaced before; markers are left out."""

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.state.decisions.leader_epochs import HEADER_PATTERN, EpochSpan, FencedFrom, fenced_from
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.leadership.spark_epochs import epoch_spans, is_fenced

_FILE = "epochs_seen.json"

_ByPartition = dict[int, dict[str, int]]
"""By partition and job the highest epoch."""


class _Seen(msgspec.Struct):
    """The highest epochs before and after the last micro-batch that raised any."""

    batch_id: int
    before: _ByPartition
    after: _ByPartition


class EpochsSeen:
    """The highest epochs that were read, kept so that a repeated micro-batch is judged as before."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files = checkpoint.sluice
        content = self._files.read(_FILE)
        try:
            self._seen = _Seen(-1, {}, {}) if content is None else msgspec.json.decode(content, type=_Seen)
        except msgspec.MsgspecError as error:
            raise self._files.damaged_file(_FILE, str(error)) from error

    def take(self, batch_id: int, spans: list[EpochSpan]) -> list[FencedFrom]:
        """What of this micro-batch doesn't count."""
        before = self._seen.before if batch_id == self._seen.batch_id else self._seen.after
        fenced, after = fenced_from(spans, before)
        if after != before:
            self._seen = _Seen(batch_id, before, after)
            self._files.write(_FILE, msgspec.json.encode(self._seen))
        return fenced


def with_fenced(records: DataFrame, topic: str, seen: EpochsSeen, batch_id: int) -> DataFrame:
    """The records without the markers of `topic`, with the column `fenced`: whether one of it doesn't count."""
    ours = records.where(records.topic == topic)
    fenced = seen.take(batch_id, epoch_spans(ours))
    is_epoch = F.coalesce(F.col("epoch").cast("string").rlike(rf"\A{HEADER_PATTERN}\z"), F.lit(False))
    marker = (records.topic == topic) & records.value.isNull() & is_epoch
    return records.where(~marker).withColumn("fenced", (F.col("topic") == topic) & is_fenced(fenced)).drop("epoch")
