"""The quotas of the newest versions, stored in the checkpoint, where every executor finds them."""

from typing import NamedTuple

import msgspec

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ENTRY_KINDS
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

_KEPT_QUOTA_VERSIONS = 5
"""A repeated micro-batch needs the version it was started with; a few more cost nothing."""


class _SnapshotRow(NamedTuple):
    """A quota as a snapshot stores it; a null name is the default entity."""

    entity: dict[str, str | None]
    kind: str
    value: float
    shadow: bool


class QuotaSnapshots:
    """The quotas of the newest versions.

    The workers read a snapshot, never the quotas table: a table that is gone or broken can't stop the job, and the
    last good version survives a restart.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files = checkpoint.sluice

    def save(self, version: int, entries: list[QuotaEntry]) -> None:
        """Keep this version, and drop all but the newest few."""
        rows = [_SnapshotRow(entry.entity.to_mapping(), entry.kind, entry.value, entry.shadow) for entry in entries]
        self._files.write(_snapshot_name(version), msgspec.msgpack.encode(rows))
        for old in self.versions()[:-_KEPT_QUOTA_VERSIONS]:
            self._files.remove(_snapshot_name(old))

    def versions(self) -> list[int]:
        """The versions kept, oldest first."""
        names = self._files.names("quotas")
        return sorted(int(name.removesuffix(".msgpack")) for name in names if name.endswith(".msgpack"))

    def load(self, version: int) -> Quotas:
        """The quotas of a version. Raises CheckpointError if it isn't kept, or damaged."""
        return Quotas(self.entries(version), version)

    def entries(self, version: int) -> list[QuotaEntry]:
        """The entries of a version. Raises CheckpointError if it isn't kept, or damaged."""
        content = self._files.read(_snapshot_name(version))
        if content is None:
            raise CheckpointError(f"no snapshot of quotas version {version}; restart the job to make one")
        try:
            rows = msgspec.msgpack.decode(content, type=list[_SnapshotRow])
        except msgspec.MsgspecError as error:
            raise self._files.damaged_file(_snapshot_name(version), str(error)) from error
        if unknown := {row.kind for row in rows} - ENTRY_KINDS.keys():
            raise self._files.damaged_file(_snapshot_name(version), f"unknown key {min(unknown)}")
        return [QuotaEntry(_entity(row.entity), ENTRY_KINDS[row.kind], row.value, row.shadow) for row in rows]


def _entity(names: dict[str, str | None]) -> QuotaEntity:
    """The entity of `to_mapping`, which was checked when it was set."""
    return QuotaEntity(**{part: DEFAULT if name is None else name for part, name in names.items()})


def _snapshot_name(version: int) -> str:
    return f"quotas/{version:020d}.msgpack"
