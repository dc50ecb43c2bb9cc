"""The last micro-batch that was started, with what it is decided by."""

from dataclasses import dataclass

import msgspec

from sluice.state.contract.gateway_topics import Overrides
from sluice.state.decisions.checks import EventLimits
from sluice.state.quotas.kinds import QuotaSettings
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.store import CreateFile
from sluice.streaming.errors import CheckpointError

_LAST = "batch.json"
_FOLDER = "batches"
_KEPT = 2


class BatchSettings(msgspec.Struct, frozen=True):
    """The settings that can change an answer of a micro-batch, the release, and Kafka's id of the requests topic."""

    release: str
    topic_id: str | None
    max_record_bytes: int
    limits: EventLimits
    quota: QuotaSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs that decide a micro-batch, kept so that a repeated micro-batch decides the same."""

    batch_id: int
    quota_version: int
    decided_at_ms: int
    pages: int = 0
    """The number of pages that it leaves; before the first 0: those that the checkpoint began with."""
    pages_before: int = 0
    overrides: Overrides | None = None
    quota_digest: str = ""
    """The digest of its snapshot of the quotas."""
    batch_settings: BatchSettings | None = None
    """None before the first."""


class BatchLog:
    """The last micro-batch that was started; the only one that a restart can repeat.

    With `create`, for storage that drivers share, each micro-batch has a file of its own, which only one driver can
    make. Another driver on the same micro-batch uses it too, so both decide the same.
    """

    def __init__(self, checkpoint: Checkpoint, create: CreateFile | None = None) -> None:
        """Raises CheckpointError if its newest file is damaged."""
        self._files = checkpoint.sluice
        self._create = create
        recorded = self._read(_LAST) or Batch(-1, -1, -1)
        begun = self._begun()
        self._last = self._read(_name(begun[-1])) or recorded if begun and begun[-1] > recorded.batch_id else recorded

    def begun(self) -> list[Batch]:
        """The micro-batches whose records there are: the last ones. Raises CheckpointError."""
        names = [_LAST, *map(_name, self._begun())]
        return [batch for name in names if (batch := self._read(name)) is not None]

    @property
    def last(self) -> Batch:
        """The last micro-batch that was started; one with the number -1 before the first."""
        return self._last

    def begin(
        self,
        batch_id: int,
        quota_version: int,
        now_ms: int,
        pages: int = 0,
        overrides: Overrides | None = None,
        quota_digest: str = "",
        batch_settings: BatchSettings | None = None,
    ) -> tuple[Batch, bool]:
        """The batch as it was started the first time, and whether that was before, so that records may be written.

        A new batch is recorded first. Raises CheckpointError if another driver has begun a later one.
        """
        if self._last.batch_id == batch_id:
            return self._last, True
        before, repeated = self._last.pages, False
        self._last = Batch(batch_id, quota_version, now_ms, pages, before, overrides, quota_digest, batch_settings)
        content = msgspec.json.encode(self._last)
        if self._create is None:
            self._files.write(_LAST, content)
        elif not self._create(_name(batch_id), content):
            self._last, repeated = self._begun_by_another(batch_id), True
        if self._create is not None:
            self._check_newest(batch_id)
        return self._last, repeated

    def _begun_by_another(self, batch_id: int) -> Batch:
        batch = self._read(_name(batch_id))
        if batch is None:
            raise CheckpointError(f"another driver has begun micro-batch {batch_id} and a later one; it goes on there")
        return batch

    def _check_newest(self, batch_id: int) -> None:
        """A driver that was replaced may record an old batch again whose file is gone; the newer ones show that."""
        begun = self._begun()
        if begun[-1] > batch_id:
            raise CheckpointError(f"another driver has begun micro-batch {begun[-1]}, this one is at {batch_id}")
        for old in begun[:-_KEPT]:
            self._files.remove(_name(old))

    def _begun(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._files.names(_FOLDER) if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, name: str) -> Batch | None:
        return self._files.read_json(name, Batch)


def _name(batch_id: int) -> str:
    return f"{_FOLDER}/{batch_id:020d}.json"
