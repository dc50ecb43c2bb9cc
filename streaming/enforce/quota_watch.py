"""Watches the quotas table; a change is in force within about `quotas.poll_ms`, with the micro-batch that follows."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from sluice.configs.quotas import seed_quotas
from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService, LastError
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.newest import polled
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.batch_log import Batch
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.errors import CheckpointError, CheckpointStorageError

log = logging.getLogger("sluice.quotas")


ReportInput = Callable[[str | None], None]
"""Is told after each poll why an input can't be read, None if it can."""

InForce = Callable[[], tuple[int, list[QuotaEntry]]]
"""The version in force and its quotas."""

SourceReport = Callable[[str | None, int], None]
"""Is told after each poll why a source of quotas can't be mirrored, None if it can, and how many are left out."""

SourceOfQuotas = Callable[[Settings, InForce, SourceReport], BackgroundService]
"""The part of an extra for a `quotas.source` of its own: a service that alters the table, and has done so once."""


class QuotasInForce(NamedTuple):
    """One version of the quotas: as it was read from the table, and ready to resolve; its snapshot has the `digest`."""

    version: int
    entries: list[QuotaEntry]
    quotas: Quotas
    digest: str


class QuotaWatch:
    """Keeps the newest readable version of the quotas in force.

    A version comes into force when it has been read completely and its snapshot is stored. While the table
    is missing or broken the previous version stays in force, at a start that of the newest snapshot; the error is
    logged once, and `report` is told. Another table in the place of the known one begins with versions of its own:
    lower ones, or the same with other quotas.
    """

    def __init__(self, table: QuotasTable, snapshots: QuotaSnapshots, report: ReportInput = lambda _: None) -> None:
        """Raises SluiceError if the table can't be read, and there is no snapshot: then no quotas are known at all."""
        self._table = table
        self._snapshots = snapshots
        self._report = report
        self._last_error = LastError()
        self._is_loaded = False  # what the table gave last is in force
        self._in_force = self._first_version()

    @property
    def now(self) -> QuotasInForce:
        """The version in force; its parts belong together. Safe to read from any thread."""
        return self._in_force

    @property
    def quotas(self) -> Quotas:
        """The quotas in force, ready to resolve."""
        return self._in_force.quotas

    def in_force(self) -> tuple[int, list[QuotaEntry]]:
        """The version in force and its entries, which belong together; safe to call from any thread."""
        in_force = self._in_force
        return in_force.version, in_force.entries

    def poll(self) -> None:
        """Put a new version in force if there is one."""
        try:
            if not (self._is_loaded and self._table.is_newest()):
                before = self._in_force
                self._in_force = self._load(before.version, before.digest)
                if (before.version, before.digest) != (self._in_force.version, self._in_force.digest):
                    log.info("quotas version %d is in force", self.quotas.version)
        except Exception as error:  # of any class: what was in force is good
            self._note(error, self.quotas.version)
        else:
            if self._last_error.ends():
                log.info("the quotas table can be read again; quotas version %d is in force", self.quotas.version)
            self._report(None)

    def keep_snapshot_of(self, batch: Batch) -> None:
        """Make the snapshot of a micro-batch that will be repeated from the table, if it is gone or damaged.

        Raises CheckpointError if the table doesn't have its quotas either.
        """
        version = batch.quota_version
        try:
            self._snapshots.load(version, batch.quota_digest)
        except CheckpointStorageError:
            raise
        except CheckpointError as lost:
            log.warning("%s", lost)
            try:
                made = self._snapshots.restore(version, batch.quota_digest, self._table.entries(version))
                reason = f"version {version} of the quotas table {self._table.path} has other quotas"
            except QuotasTableError as error:
                made, reason = False, str(error)
            if not made:
                raise CheckpointError(
                    f"micro-batch {batch.batch_id} can't be repeated: its snapshot of quotas version {version} is gone,"
                    f" and {reason}; restore the checkpoint, or the quotas table, from a backup"
                ) from None
            log.warning("the snapshot of quotas version %d is made again from the quotas table", version)

    def _first_version(self) -> QuotasInForce:
        kept = self._snapshots.kept()
        newest = kept[-1] if kept else None
        try:
            return self._load() if newest is None else self._load(newest.version, newest.digest)
        except Exception as error:  # of any class: what was in force is good
            if newest is None:
                raise
            entries = self._snapshots.entries(newest.version, newest.digest)
            self._note(error, newest.version)
            return QuotasInForce(newest.version, entries, Quotas(entries, newest.version), newest.digest)

    def _note(self, error: Exception, version: int) -> None:
        if self._last_error.is_new(error):
            log.error("%s; quotas version %d, the last good one, stays in force", self._last_error.line, version)
        self._report(self._last_error.line)

    def _load(self, version_before: int = -1, digest_before: str = "") -> QuotasInForce:
        """The newest version of the table; the log says if it can't come after the version before."""
        self._is_loaded = False
        version, entries = self._table.newest()
        digest = self._snapshots.save(version, entries).digest
        if version < version_before or (version == version_before and digest != digest_before):
            told = "the quotas table %s is another one than before: after version %d its version %d is in force"
            log.warning(told, self._table.path, version_before, version)
        loaded = QuotasInForce(version, entries, Quotas(entries, version), digest)
        self._is_loaded = True
        return loaded


def ensure_quotas_table(settings: Settings) -> QuotasTable:
    """The quotas table; at the first start a new one is made, from the seed file of the settings, or empty.

    Later starts have a snapshot of what was in force, and miss a table that is gone: a new one would limit nobody.
    """
    table = QuotasTable(settings.delta.quotas, polled(settings.delta.storage_options))
    if not QuotaSnapshots(Checkpoint(settings.enforce.checkpoint)).kept() and not table.exists():
        table.create(seed_quotas(settings), changed_by="seed", at=datetime.now(UTC))
    return table
