"""Mirrors the client quotas of the Kafka cluster into the quotas table, where `quotas.source` is kafka."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sinks.background import BackgroundThread
from sinks.tables.quotas import QuotasTable
from state.errors import SluiceError
from state.quotas.cluster import ClientQuotas, client_quotas, cluster_changes, mirrored
from state.quotas.entry import QuotaEntry
from streaming.runtime.cluster_quotas import ClusterQuotasReader

log = logging.getLogger("sluice.mirror")

MIRRORED_BY = "kafka"
"""The author of the versions that the mirror makes."""

_RETRY_S = 2.0
"""The pause after a reading that failed: each makes a new connection, with a login."""

_PAUSE_RATIO = 9.0
"""Reading 10 000 entities takes 0.2 s of a core, so the mirror pauses for a multiple of what it took."""

_STOP_TIMEOUT_S = 5.0

InForce = Callable[[], tuple[int, list[QuotaEntry]]]
"""The version in force and its quotas."""

Report = Callable[[str | None, int], None]
"""Is told after each look: why the cluster can't be mirrored, None if it can, and how many quotas are left out."""


class QuotaMirror:
    """A thread that makes the quotas table say of users and client-ids what the cluster says.

    What the cluster has is compared with what is in force, so a look at a cluster without changes reads no table. Where
    they differ the table is altered, on its newest version. While the cluster or the table can't be read, what is in
    force stays so; the log has that once, and again when it is over.
    """

    def __init__(
        self, reader: ClusterQuotasReader, table: QuotasTable, in_force: InForce, poll_ms: int, report: Report
    ) -> None:
        self._reader = reader
        self._table = table
        self._in_force = in_force
        self._poll_s = poll_ms / 1000.0
        self._report = report
        self._trouble: str | None = None
        self._left_out: frozenset[str] = frozenset()
        self._thread = BackgroundThread("quota-mirror", self._look_and_pause, pause_s=0.0)

    def start(self) -> None:
        """Begin to look every `poll_ms`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, or leave it to its end with the process when no broker answers for 5 s."""
        self._thread.stop(_STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._reader.close()

    def look(self) -> None:
        """Read the cluster once and mirror what differs. Never raises: the job goes on with what is in force."""
        try:
            self._mirror(client_quotas(self._reader.read()))
        except Exception as error:  # of any class: an answer that nobody foresaw must not end the job's start
            self._note_trouble(error)
        else:
            self._note_success()
        self._report(self._trouble, len(self._left_out))

    def _look_and_pause(self) -> None:
        began_s = time.monotonic()
        self.look()
        took_s = time.monotonic() - began_s
        self._thread.stopped.wait(_RETRY_S if self._trouble else max(self._poll_s, _PAUSE_RATIO * took_s))

    def _mirror(self, cluster: ClientQuotas) -> None:
        self._note_left_out(cluster.left_out)
        _, entries = self._in_force()
        changes = cluster_changes(entries, cluster.entries)
        if not any(changes):
            return

        def change(entries: list[QuotaEntry]) -> list[QuotaEntry]:
            nonlocal changes  # the table may have been altered since its version in force
            changes = cluster_changes(entries, cluster.entries)
            return mirrored(entries, cluster.entries)

        version = self._table.alter(change, MIRRORED_BY, datetime.now(UTC))
        if any(changes):
            log.info("quotas version %d has the cluster's quotas of users and client-ids: %s", version, changes)

    def _note_left_out(self, left_out: list[str]) -> None:
        """Log what is left out for the first time, or again after it was not."""
        for line in left_out:
            if line not in self._left_out:
                log.warning("left out %s", line)
        self._left_out = frozenset(left_out)

    def _note_trouble(self, error: Exception) -> None:
        """Log a trouble once, until it changes or is over; one that nobody expected with its stack."""
        trouble = " ".join(str(error).split()) or type(error).__name__
        if trouble == self._trouble:
            return
        self._trouble = trouble
        log.error(
            "%s; quotas version %d stays in force",
            trouble,
            self._in_force()[0],
            exc_info=not isinstance(error, SluiceError),
        )

    def _note_success(self) -> None:
        if self._trouble is not None:
            log.info("the cluster's quotas are mirrored again")
        self._trouble = None
