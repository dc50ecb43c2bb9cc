"""The console's background readings: Delta tables, and the health of the job.

The tables give minutes throttled in seven days, and changes of quotas.
"""

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from time import monotonic

from sluice.sinks.errors import QuotasTableError
from sluice.state.contract.records import MAX_APPLIED_MS
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode
from sluice.state.quotas.kinds import EntryKind
from sluice_insight.live import CounterId
from sluice_insight.reports.columns import numbers
from sluice_insight.reports.events import EVENTS_AT_ONCE, Events
from sluice_insight.reports.recorded_waits import COUNTER_FIELDS, RecordedWaits, wait_ends
from sluice_insight.reports.span import Span
from sluice_reading.errors import NoTableError, QueryError, UnreadableTableError
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotaChange, QuotaRow, QuotasAdmin
from sluice_reading.times import to_ms

log = logging.getLogger("sluice.console")

DAYS = 7
REFRESH_S = 60.0
SETTLED = timedelta(hours=1)
"""Time after the end of a day of which decisions show that those of the day are complete."""

DAY_MS = 86_400_000
MOST_COUNTERS = 100_000
MOST_CHANGES = 200


def read_minutes(tables: Tables, day: date, now: datetime) -> tuple[dict[CounterId, int], int]:
    """Minutes of a day in which counters waited until `now`, and the time of the day's newest event, 0 without one.

    Blocks; raises QueryError.
    """
    start_ms = to_ms(datetime.combine(day, time.min, UTC))
    span = Span(start_ms - MAX_APPLIED_MS, min(start_ms + DAY_MS, to_ms(now)))
    waits, newest_ms = RecordedWaits(wait_ends(tables, span)), 0
    for events in Events(tables.decisions, tables.storage_options, span, COUNTER_FIELDS).batches(EVENTS_AT_ONCE):
        waits.take_of_counters(events)
        newest_ms = max(newest_ms, int(numbers(events["timestamp_ms"]).max()))
    minutes_of = Tally({name: len(found) for name, found in waits.minutes(span._replace(start_ms=start_ms)).items()})
    counted = [(CounterId.named(name), minutes) for name, minutes in minutes_of.most_common(MOST_COUNTERS) if minutes]
    return {counter: minutes for counter, minutes in counted if counter is not None}, newest_ms


class WeekMinutes:
    """Minutes throttled in the last DAYS days by counter, renewed in the background: today's every minute.

    A day is read until there are decisions on events that came SETTLED after its end, then never again. Renewals take
    at most a tenth of the time. `trouble` is the reason why there are no figures.
    """

    def __init__(self, tables: Tables, on_changes: Callable[[Sequence[QuotaChange]], None] = lambda _: None) -> None:
        self.minutes: Mapping[CounterId, int] = {}
        self.changes: list[QuotaChange] = []
        """The last changes of quotas, the newest first; at most MOST_CHANGES."""
        self.authors: Mapping[tuple[QuotaEntity, EntryKind, Mode], QuotaRow] = {}
        """Each quota, with who has set it when."""
        self.trouble: str | None = "not read yet"
        self.unreadable: Mapping[str, str | None] = {}
        """The reason why a table of decisions that is there can't be read."""
        self._tables = tables
        self._on_changes = on_changes
        self._days: dict[date, dict[CounterId, int]] = {}
        self._settled: set[date] = set()

    def renewals(self) -> Iterator[float]:
        """Renew, again and again; gives the pause in seconds after each time."""
        while True:
            started_s = monotonic()
            try:
                table = QuotasAdmin(self._tables.quotas, self._tables.storage_options)
                self.changes = list(islice(table.history(), MOST_CHANGES))
                self.authors = {(each.entry.entity, each.entry.kind, each.entry.mode): each for each in table.rows()}
                self._on_changes(self.changes)
            except QuotasTableError as error:
                log.info("no history of quotas: %s", error)
            try:
                self.renew(datetime.now(UTC))
            except NoTableError:
                self.trouble = "nothing recorded yet"
            except QueryError as error:
                self.trouble = str(error)
                self.unreadable = {"decisions": str(error) if isinstance(error, UnreadableTableError) else None}
            yield REFRESH_S + 9 * (monotonic() - started_s)

    def renew(self, now: datetime) -> None:
        """Read today and the other days that are not settled; `now` is in UTC. Raises QueryError."""
        wanted, newest_ms = [now.date() - timedelta(days=ago) for ago in range(DAYS)], 0
        for day in wanted:
            if day not in self._settled:
                self._days[day], of_day_ms = read_minutes(self._tables, day, now)
                newest_ms = max(newest_ms, of_day_ms)
                if newest_ms >= to_ms(datetime.combine(day, time.min, UTC) + timedelta(days=1) + SETTLED):
                    self._settled.add(day)
        self._days = {day: self._days[day] for day in wanted}
        self._settled &= self._days.keys()
        total: Tally[CounterId] = Tally()
        for minutes in self._days.values():
            total.update(minutes)
        self.minutes, self.trouble, self.unreadable = dict(total.most_common(MOST_COUNTERS)), None, {}
