"""Watching the quotas table: a change is in force with the next micro-batch."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

from configs.quotas import load_quotas_file
from configs.settings import Settings
from sinks.quotas_table import QuotasTable
from state.errors import SluiceError
from state.resolution import Quotas
from streaming.checkpoint import QuotaSnapshots

log = logging.getLogger("sluice.quotas")


class QuotaWatch:
    """Keeps the newest good version of the quotas in force.

    A version is in force once it was read whole and its snapshot is kept; while the table is missing or broken the
    version before stays in force, and the trouble is logged once.
    """

    def __init__(self, table: QuotasTable, snapshots: QuotaSnapshots, poll_ms: int) -> None:
        self._table = table
        self._snapshots = snapshots
        self._poll_s = poll_ms / 1000.0
        self._trouble = ""
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="quota-watch", daemon=True)
        self.quotas = self._first_version()

    def start(self) -> None:
        """Begin polling."""
        self._thread.start()

    def stop(self) -> None:
        """End polling; the quotas in force stay as they are."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look for a new version once, and put it in force."""
        try:
            version = self._table.version()
            if version != self.quotas.version:
                self.quotas = self._load(version)
                log.info("quotas version %d is in force", version)
            self._trouble = ""
        except SluiceError as error:
            self._keep(error)

    def _first_version(self) -> Quotas:
        try:
            return self._load(self._table.version())
        except SluiceError as error:
            kept = self._snapshots.versions()
            if not kept:
                raise
            quotas = self._snapshots.load(kept[-1])
            log.error("%s; quotas version %d, the last good one, stays in force", error, quotas.version)
            return quotas

    def _load(self, version: int) -> Quotas:
        entries = self._table.entries(version)
        self._snapshots.save(version, entries)
        return Quotas(entries, version)

    def _keep(self, error: SluiceError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.error("%s; quotas version %d stays in force", error, self.quotas.version)

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self.look()


def ensure_quotas_table(settings: Settings) -> QuotasTable:
    """The quotas table, made from the seed file of the settings (or empty) if there is none yet."""
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    if not table.exists():
        seed = settings.quotas.seed
        entries = load_quotas_file(Path(seed)) if seed else []
        table.create(entries, changed_by="seed", at=datetime.now(UTC))
    return table
