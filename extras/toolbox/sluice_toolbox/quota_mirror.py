"""Mirrors the client quotas of the Kafka cluster into the quotas table, where `quotas.source` is kafka."""

import logging
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService, LastError
from sluice.sinks.tables.newest import polled
from sluice.state.errors import SluiceError
from sluice.state.quotas.entry import QuotaEntry
from sluice.streaming.enforce.quota_watch import InForce, SourceReport
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_reading.texts import odd_names
from sluice_toolbox.cluster import ClusterQuota, client_quotas
from sluice_toolbox.cluster_changes import ClusterChanges, cluster_changes, mirrored
from sluice_toolbox.cluster_quotas import ClusterQuotasReader

log = logging.getLogger("sluice.mirror")

MIRRORED_BY = "kafka"
"""The author of the versions that the mirror makes."""

_RETRY_S = 2.0
"""The pause after a reading that failed: each makes a new connection, with a login."""

_PAUSE_PER_ENTITY_S = 0.0005
"""An answer takes 0.04 ms of a core for each entity (0.1 ms on a busy machine), beside the job's own work."""


def mirror_service(settings: Settings, in_force: InForce, report: SourceReport) -> BackgroundService:
    """The service that mirrors the cluster, which has done so once (entry point `kafka` of `sluice.quota_sources`)."""
    table = QuotasAdmin(settings.delta.quotas, polled(settings.delta.storage_options))
    mirror = QuotaMirror(ClusterQuotasReader(settings.kafka), table, in_force, settings.quotas.poll_ms, report)
    mirror.poll()
    return BackgroundService("quota-mirror", mirror.polls, settings.quotas.poll_ms / 1000.0, stop_timeout_s=5.0)


class QuotaMirror:
    """Makes the quotas table say of users and client-ids what the cluster says.

    The cluster's quotas are compared with those in force, so a poll of a cluster without changes reads no table. Where
    they differ the table is altered, on its newest version. While the cluster or the table can't be read, what is in
    force stays so; the log has that once, and again when it is over.
    """

    def __init__(
        self, reader: ClusterQuotasReader, table: QuotasAdmin, in_force: InForce, poll_ms: int, report: SourceReport
    ) -> None:
        self._reader = reader
        self._table = table
        self._in_force = in_force
        self._poll_s = poll_ms / 1000.0
        self._report = report
        self._answer: list[ClusterQuota] = []
        self._compared_with: int | None = None
        self._last_error = LastError()
        self._left_out: frozenset[str] = frozenset()
        self._odd_names: frozenset[str] = frozenset()

    def polls(self) -> Iterator[float]:
        """Look again and again; gives the pause in seconds after each time."""
        with self._reader:
            while True:
                self.poll()
                yield self.pause_s()

    def poll(self) -> None:
        """Read the cluster once and mirror what differs. Never raises: the job goes on with what is in force."""
        try:
            self._mirror(self._reader.read())
        except Exception as error:  # of any class: an unforeseen answer must not end the job's start
            self._note_error(error)
        else:
            if self._last_error.ends():
                log.info("the cluster's quotas are mirrored again")
        self._report(self._last_error.line, len(self._left_out))

    def pause_s(self) -> float:
        """The pause after the last poll, in seconds."""
        if self._last_error.line is not None:
            return _RETRY_S
        return max(self._poll_s, len(self._answer) * _PAUSE_PER_ENTITY_S)

    def _mirror(self, answer: list[ClusterQuota]) -> None:
        """Alter the table where what is in force is not what the cluster has."""
        version, entries = self._in_force()
        if answer == self._answer and version == self._compared_with:
            return
        cluster = client_quotas(answer)
        self._left_out = _told("left out %s", cluster.left_out, self._left_out)
        odd = odd_names(entry.entity for entry in cluster.entries)  # nobody can be asked, and they are mirrored
        self._odd_names = _told("is this meant? %s", odd, self._odd_names)
        if any(cluster_changes(entries, cluster.entries)):
            self._alter(cluster.entries)
        self._answer, self._compared_with = answer, version

    def _alter(self, cluster: list[QuotaEntry]) -> None:
        changes = ClusterChanges(0, 0, 0)

        def change(entries: list[QuotaEntry]) -> list[QuotaEntry]:
            nonlocal changes  # others may have altered the table since the version in force
            changes = cluster_changes(entries, cluster)
            return mirrored(entries, cluster)

        version = self._table.alter(change, MIRRORED_BY, datetime.now(UTC))
        if any(changes):
            log.info("quotas version %d has the cluster's quotas of users and client-ids: %s", version, changes)

    def _note_error(self, error: Exception) -> None:
        """Log an error once, until it changes or is over; one of an unforeseen class with its stack."""
        if self._last_error.is_new(error):
            log.error(
                "%s; quotas version %d stays in force",
                self._last_error.line,
                self._in_force()[0],
                exc_info=not isinstance(error, SluiceError),
            )


def _told(text: str, lines: Collection[str], before: frozenset[str]) -> frozenset[str]:
    """The lines; those that are new, or come again, are logged."""
    for line in lines:
        if line not in before:
            log.warning(text, line)
    return frozenset(lines)
