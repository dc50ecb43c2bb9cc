"""The last micro-batch that was started, with what it is decided by."""

from dataclasses import dataclass

import msgspec

from streaming.checkpoint.folder import Checkpoint


@dataclass(frozen=True, slots=True)
class Batch:
    """What a micro-batch is decided by: kept so that a repeated micro-batch decides the same."""

    batch_id: int
    quota_version: int
    decided_at_ms: int


class BatchLog:
    """The last micro-batch that was started; the only one that a restart can repeat."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files = checkpoint.sluice
        content = self._files.read("batch.json")
        try:
            self._last = Batch(-1, -1, -1) if content is None else msgspec.json.decode(content, type=Batch)
        except msgspec.MsgspecError as error:
            raise self._files.damaged_file("batch.json", str(error)) from error

    @property
    def last_begun(self) -> int:
        """The number of the last micro-batch that was started, -1 before the first."""
        return self._last.batch_id

    def begin(self, batch_id: int, quota_version: int, now_ms: int) -> Batch:
        """The batch as it was started the first time; a new batch is recorded first."""
        if not self.begun_before(batch_id):
            self._last = Batch(batch_id, quota_version, now_ms)
            self._files.write("batch.json", msgspec.json.encode(self._last))
        return self._last

    def begun_before(self, batch_id: int) -> bool:
        """Whether this batch was started before, so that its records may already be written."""
        return self._last.batch_id == batch_id
