"""Epochs that the audit query has read, by which decisions of a driver that was replaced don't count."""

import msgspec

from sluice.state.decisions.leader_epochs import EpochSpan, FencedFrom, fenced_from
from sluice.streaming.checkpoint.folder import Checkpoint

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

    def fenced(self, batch_id: int, spans: list[EpochSpan]) -> list[FencedFrom]:
        """Note the epochs of a micro-batch; returns the records of it that don't count."""
        before = self._seen.before if batch_id == self._seen.batch_id else self._seen.after
        fenced, after = fenced_from(spans, before)
        if after != before:
            self._seen = _Seen(batch_id, before, after)
            self._files.write(_FILE, msgspec.json.encode(self._seen))
        return fenced
