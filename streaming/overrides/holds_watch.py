"""Watches the table of holds; nobody who is stopped goes on because it can't be read."""

import logging
from collections.abc import Callable, Sequence

from sluice.process.background import LastError
from sluice.process.clock import now_ms
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.holds import HoldsTable
from sluice.state.contract.records import Override
from sluice.state.overrides.operator_holds import OperatorHold

log = logging.getLogger("sluice.holds")


class HoldsWatch:
    """The holds of the table, as it was read last. Until this process could read it, what is `kept` counts."""

    def __init__(
        self,
        table: HoldsTable,
        published: Callable[[], Sequence[Override]],
        report: Callable[[str | None], None],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`published` reads what the job published last, `report` is told after each poll why there is no table.

        `clock_ms` is the time in epoch milliseconds.
        """
        self.kept: Sequence[Override] | None = None
        """Holds of an earlier process, while nobody can read whether they still count; None if nobody knows them."""
        self._table = table
        self._published = published
        self._report = report
        self._clock_ms = clock_ms
        self._last_error = LastError()
        self._knows_table = False

    @property
    def holds(self) -> Sequence[OperatorHold]:
        """The rows of the table; safe to read from any thread."""
        return self._table.holds

    def look(self) -> None:
        """Read the table if it has changed. Raises nothing: the log and `report` say what can't be read."""
        try:
            self._look()
        except Exception as error:  # of any class: no hold ends by it, and no start
            if self._last_error.is_new(error):
                log.error("%s; %s", self._last_error.line, self._in_force())
        else:
            if self._last_error.ends():
                log.info("the table of holds can be read again")
        self._report(self._last_error.line)

    def _look(self) -> None:
        try:
            is_there = self._table.look()
        except Exception:
            if not self._knows_table:
                self._keep_published()
            raise
        if not is_there and not self._knows_table:
            now_ms = self._clock_ms()
            if any(each.until_ms is None or each.until_ms > now_ms for each in self._keep_published()):
                raise QuotasTableError(f"the table of holds {self._table.path} is gone; restore it")
        self._knows_table, self.kept = True, ()

    def _keep_published(self) -> Sequence[Override]:
        """Read them once: what is published later is this process's own."""
        if self.kept is None:
            self.kept = self._published()
        return self.kept

    def _in_force(self) -> str:
        if self.kept is None:
            return "nobody knows who was held, so what gateways were told last stays"
        return f"the {len(self.kept or self.holds)} that were read last stay, until their ends"
