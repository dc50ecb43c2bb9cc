"""Watches the table of holds in the job; nobody who is stopped goes on because it can't be read."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from sluice.process.background import BackgroundService, LastError
from sluice.process.clock import now_ms
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.newest import polled
from sluice.state.contract.gateway_topics import Overrides
from sluice.streaming.runtime.job_parts import JobParts, JobView
from sluice_reading.holds_table import HoldsTable
from sluice_reading.operator_holds import OperatorHold
from sluice_toolbox.operator_holds import OperatorHolds, remembered

log = logging.getLogger("sluice.holds")

_POLL_S = 1.0


def parts(job: JobView) -> JobParts:
    """The decider of holds, with the service that reads them (entry point `operator` of `sluice.job_parts`)."""
    delta = job.settings.delta
    table = HoldsTable(delta.quotas, polled(delta.storage_options))
    watch = HoldsWatch(table, lambda: decider.published, partial(job.report_input, "holds"))
    decider = OperatorHolds(lambda: watch.holds)
    return JobParts([decider], [BackgroundService("holds", watch.poll, _POLL_S)])


class HoldsWatch:
    """The holds of the table, as it was read last, but those of long ago; None until this process could read it."""

    def __init__(
        self,
        table: HoldsTable,
        published: Callable[[], Overrides | None],
        report: Callable[[str | None], None],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`published` is what the job published before, None while that isn't known.

        `report` is told after each poll why there is no table. `clock_ms` is the time in epoch milliseconds.
        """
        self._table = table
        self._published = published
        self._report = report
        self._clock_ms = clock_ms
        self._last_error = LastError()
        self.holds: Sequence[OperatorHold] | None = None  # safe to read from any thread

    def poll(self) -> None:
        """Read the table if it has changed. Raises nothing: the log and `report` say what can't be read."""
        try:
            self._poll()
        except Exception as error:  # of any class: no hold ends by it, and no start
            if self._last_error.is_new(error):
                log.error("%s; holds stay as they were known last, until their ends", self._last_error.line)
        else:
            if self._last_error.ends():
                log.info("the table of holds can be read again")
        self._report(self._last_error.line)

    def _poll(self) -> None:
        commands, now_ms = self._table.poll(), self._clock_ms()
        if not commands and self.holds is None:
            published = self._published()
            if published is None:
                return
            if any(each.until_ms is None or each.until_ms > now_ms for each in published.overrides):
                raise QuotasTableError(
                    f"the table of holds {self._table.path} is gone, or has no row; restore it, or hold again who is to"
                    " be stopped"
                )
        if commands is not None or self.holds is None:
            self.holds = remembered(commands or (), now_ms)
