"""The quotas that were in force last, stored in the checkpoint, where every executor finds them."""

import re
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ENTRY_KINDS
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

_KEPT = 10
"""A micro-batch that is about to begin needs the one in force; a few more cost nothing."""

_FOLDER = "quotas"
_FILE = re.compile(r"(\d{10})-(\d+)-([0-9a-f]{16})\.quotas")


class _SnapshotRow(NamedTuple):
    """A quota as a snapshot stores it; a null name is the default entity."""

    entity: dict[str, str | None]
    kind: str
    value: float
    shadow: bool


class Snapshot(NamedTuple):
    """The name of a snapshot. Its `number` grows: versions may fall, when the table is another one.

    Two tables may have the same version with other quotas, so what is in a snapshot is known by `version` and `digest`.
    """

    number: int
    version: int
    digest: str

    @property
    def file(self) -> str:
        """Its file in the checkpoint."""
        return f"{_FOLDER}/{self.number:010d}-{self.version}-{self.digest}.quotas"


class QuotaSnapshots:
    """The quotas that were in force last.

    The workers read a snapshot, never the quotas table: a table that is gone or broken can't stop the job, and the
    last good version survives a restart.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files = checkpoint.sluice

    def save(self, version: int, entries: list[QuotaEntry]) -> Snapshot:
        """Keep these quotas as the newest, and drop all but a few newest and those that begun micro-batches need."""
        content = _content(entries)
        kept, digest = self.kept(), _digest(content)
        newest = kept[-1] if kept else Snapshot(0, -1, "")
        if (newest.version, newest.digest) == (version, digest) and self._files.read(newest.file) == content:
            return newest
        saved = Snapshot(newest.number + 1, version, digest)
        self._files.write(saved.file, content)
        self._remove([*kept, saved][:-_KEPT])
        return saved

    def restore(self, version: int, digest: str, entries: list[QuotaEntry]) -> bool:
        """Write a snapshot that is gone or damaged again; False, and nothing is written, if it had other quotas."""
        content = _content(entries)
        if digest != _digest(content):
            return False
        lost = self._found(version, digest) or Snapshot(0, version, digest)
        self._files.write(lost.file, content)
        return True

    def kept(self) -> list[Snapshot]:
        """The snapshots, oldest first."""
        return sorted(filter(None, map(_named, self._files.names(_FOLDER))))

    def versions(self) -> list[int]:
        """The versions kept, in the order in which they came into force."""
        return [snapshot.version for snapshot in self.kept()]

    def load(self, version: int, digest: str | None = None) -> Quotas:
        """The quotas of a version, as `entries` has them."""
        return Quotas(self.entries(version, digest), version)

    def entries(self, version: int, digest: str | None = None) -> list[QuotaEntry]:
        """The entries of a version with this digest; without one, of the newest of this version.

        Raises CheckpointError if it isn't kept, or damaged.
        """
        snapshot = self._found(version, digest)
        content = None if snapshot is None else self._files.read(snapshot.file)
        if snapshot is None or content is None:
            raise CheckpointError(
                f"no snapshot of quotas version {version} in {self._checkpoint.location}; a start of the job makes it"
                " from the quotas table if that still has this version"
            )
        if snapshot.digest != _digest(content):
            raise self._files.damaged_file(snapshot.file, "it isn't what was written")
        try:
            rows = msgspec.msgpack.decode(content, type=list[_SnapshotRow])
        except UNREADABLE as error:
            raise self._files.damaged_file(snapshot.file, str(error)) from error
        if unknown := {row.kind for row in rows} - ENTRY_KINDS.keys():
            raise self._files.damaged_file(snapshot.file, f"unknown key {min(unknown)}")
        return [QuotaEntry(_entity(row.entity), ENTRY_KINDS[row.kind], row.value, row.shadow) for row in rows]

    def _found(self, version: int, digest: str | None) -> Snapshot | None:
        of_version = [snapshot for snapshot in self.kept() if snapshot.version == version]
        return next((one for one in reversed(of_version) if digest in (None, one.digest)), None)

    def _remove(self, old: list[Snapshot]) -> None:
        """Remove these, but those that a micro-batch was begun with: it may be repeated."""
        if not old:
            return
        needed = {(batch.quota_version, batch.quota_digest) for batch in BatchLog(self._checkpoint).begun()}
        for snapshot in old:
            if (snapshot.version, snapshot.digest) not in needed:
                self._files.remove(snapshot.file)


def _content(entries: list[QuotaEntry]) -> bytes:
    rows = [_SnapshotRow(entry.entity.to_mapping(), entry.kind, entry.value, entry.shadow) for entry in entries]
    return msgspec.msgpack.encode(rows)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _entity(names: dict[str, str | None]) -> QuotaEntity:
    """The entity of `to_mapping`, which was checked when it was set."""
    return QuotaEntity(**{part: DEFAULT if name is None else name for part, name in names.items()})


def _named(file: str) -> Snapshot | None:
    """The snapshot with this file name; None if it is no snapshot's."""
    found = _FILE.fullmatch(file)
    return Snapshot(int(found[1]), int(found[2]), found[3]) if found else None
