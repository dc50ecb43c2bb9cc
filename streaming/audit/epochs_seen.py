"""The highest leader epochs that the audit query has read: it leaves out records of a driver that was replaced."""

import msgspec

from sluice.state.decisions.leader_epochs import EpochSpan, FencedFrom, fenced_from
from sluice.streaming.checkpoint.folder import Checkpoint

_ByPartition = dict[int, dict[str, int]]
"""By partition and job the highest epoch."""


class _Seen(msgspec.Struct):
    """The highest epochs before and after the last micro-batch that raised any."""

    batch_id: int
    before: _ByPartition
    after: _ByPartition


class EpochsSeen:
    """The highest epochs that were read of a topic, kept so that a repeated micro-batch is treated as before."""

    def __init__(self, checkpoint: Checkpoint, file: str = "epochs_seen.json") -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files, self._file = checkpoint.sluice, file
        self._seen = self._files.read_json(file, _Seen) or _Seen(-1, {}, {})

    def fenced(self, batch_id: int, spans: list[EpochSpan]) -> list[FencedFrom]:
        """Note the epochs of a micro-batch; returns the records of it that don't count."""
        before = self._seen.before if batch_id == self._seen.batch_id else self._seen.after
        fenced, after = fenced_from(spans, before)
        if after != before:
            self._seen = _Seen(batch_id, before, after)
            self._files.write(self._file, msgspec.json.encode(self._seen))
        return fenced
