"""Watches the quotas table; a change is in force within about `quotas.poll_ms`, with the micro-batch that follows."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import Settings
from sluice.kafka_io.background import LastError
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.errors import SluiceError
from sluice.state.quotas.entry import QuotaEntry, check_entries
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots

log = logging.getLogger("sluice.quotas")


class QuotasInForce(NamedTuple):
    """One version of the quotas: as it was read from the table, and ready to resolve."""

    version: int
    entries: list[QuotaEntry]
    quotas: Quotas


class QuotaWatch:
    """Keeps the newest readable version of the quotas in force.

    A version comes into force when it has been read completely and its snapshot is stored. While the table
    is missing or broken the previous version stays in force, and the error is logged once.
    """

    def __init__(self, table: QuotasTable, snapshots: QuotaSnapshots) -> None:
        self._table = table
        self._snapshots = snapshots
        self._last_error = LastError()
        self._in_force = self._first_version()

    @property
    def quotas(self) -> Quotas:
        """The quotas in force, ready to resolve."""
        return self._in_force.quotas

    def in_force(self) -> tuple[int, list[QuotaEntry]]:
        """The version in force and its entries, which belong together; safe to call from any thread."""
        in_force = self._in_force
        return in_force.version, in_force.entries

    def look(self) -> None:
        """Put a new version in force if there is one."""
        try:
            version = self._table.version()
            if version != self.quotas.version:
                self._in_force = self._load(version)
                log.info("quotas version %d is in force", version)
            self._last_error.ends()
        except SluiceError as error:
            if self._last_error.is_new(error):
                log.error("%s; quotas version %d stays in force", error, self.quotas.version)

    def _first_version(self) -> QuotasInForce:
        try:
            return self._load(self._table.version())
        except SluiceError as error:
            kept = self._snapshots.versions()
            if not kept:
                raise
            version = kept[-1]
            entries = self._snapshots.entries(version)
            log.error("%s; quotas version %d, the last good one, stays in force", error, version)
            return QuotasInForce(version, entries, Quotas(entries, version))

    def _load(self, version: int) -> QuotasInForce:
        entries = self._table.entries(version)
        self._snapshots.save(version, entries)
        return QuotasInForce(version, entries, Quotas(entries, version))


def ensure_quotas_table(settings: Settings) -> QuotasTable:
    """The quotas table; a new one is created from the seed file of the settings, or empty."""
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    if not table.exists():
        seed = settings.quotas.seed
        entries = load_quotas_file(Path(seed)) if seed else []
        if settings.quotas.source == "table":
            check_entries(entries)
        table.create(entries, changed_by="seed", at=datetime.now(UTC))
    return table
