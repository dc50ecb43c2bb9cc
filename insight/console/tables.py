"""The console's background readings: Delta tables, and the health of the job.

The tables give minutes throttled in seven days, and changes of quotas.
"""

import json
import logging
import urllib.request
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from http.client import HTTPException
from itertools import islice
from time import monotonic
from typing import Any

from sluice.insight.errors import NoTableError, QueryError
from sluice.insight.live import CounterId
from sluice.insight.reports.recorded_waits import COUNTER_WAITS, RecordedWaits, wait_ends
from sluice.insight.reports.span import Span, to_ms
from sluice.insight.sql import Tables
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.quotas import QuotaChange, QuotasTable
from sluice.state.quotas.kinds import KINDS_BY_NAME

log = logging.getLogger("sluice.console")

DAYS = 7
REFRESH_S = 60.0
SETTLED = timedelta(hours=1)
"""Time after the end of a day in which the audit query may still write decisions of that day."""

DAY_MS = 86_400_000
MOST_COUNTERS = 100_000
MOST_CHANGES = 200

_WAITS_AT_ONCE = 250_000


def minutes_of(tables: Tables, day: date) -> dict[CounterId, int]:
    """Minutes that the throttle times of a counter touch, by the decisions of one day. Blocks; raises QueryError."""
    start_ms = to_ms(datetime.combine(day, time.min, UTC))
    waits = RecordedWaits(wait_ends(tables, Span(start_ms, start_ms + 2 * DAY_MS)))
    for table in tables.rows(COUNTER_WAITS.format(condition=f"date = DATE '{day.isoformat()}'")).tables(_WAITS_AT_ONCE):
        for batch in table.combine_chunks().to_batches():
            waits.take_of_counters(batch)
    counted: Tally[CounterId] = Tally()
    for (quota, user, client_id, topic, partition, tenant), minutes in waits.minutes().items():
        if (kind := KINDS_BY_NAME.get(quota)) is not None:
            counted[CounterId(kind, False, user, client_id, topic or None, int(partition), tenant)] = minutes
    return dict(counted.most_common(MOST_COUNTERS))


class WeekMinutes:
    """Minutes throttled in the last DAYS days by counter, renewed in the background: today's every minute.

    A day that has been over for SETTLED is read once more, then never again. Renewals take at most a tenth of the time.
    `trouble` is the reason why there are no figures.
    """

    def __init__(self, tables: Tables) -> None:
        self.minutes: Mapping[CounterId, int] = {}
        self.changes: list[QuotaChange] = []
        """The last changes of quotas, the newest first; at most MOST_CHANGES."""
        self.trouble: str | None = "not read yet"
        self._tables = tables
        self._days: dict[date, dict[CounterId, int]] = {}
        self._settled: set[date] = set()

    def renewals(self) -> Iterator[float]:
        """Renew, again and again; gives the pause in seconds after each time."""
        while True:
            started_s = monotonic()
            try:
                history = QuotasTable(self._tables.quotas, self._tables.storage_options).history()
                self.changes = list(islice(history, MOST_CHANGES))
            except QuotasTableError as error:
                log.info("no history of quotas: %s", error)
            try:
                self.renew(datetime.now(UTC))
            except NoTableError:
                self.trouble = "nothing recorded yet"
            except QueryError as error:
                self.trouble = str(error)
            yield REFRESH_S + 9 * (monotonic() - started_s)

    def renew(self, now: datetime) -> None:
        """Read today and the other days that are not settled; `now` is in UTC. Raises QueryError."""
        wanted = [now.date() - timedelta(days=ago) for ago in range(DAYS)]
        for day in wanted:
            if day not in self._settled:
                self._days[day] = minutes_of(self._tables, day)
                if now - datetime.combine(day, time.min, UTC) >= timedelta(days=1) + SETTLED:
                    self._settled.add(day)
        self._days = {day: self._days[day] for day in wanted}
        self._settled &= self._days.keys()
        total: Tally[CounterId] = Tally()
        for minutes in self._days.values():
            total.update(minutes)
        self.minutes, self.trouble = dict(total.most_common(MOST_COUNTERS)), None


ASK_S = 5.0
TIMEOUT_S = 3.0
MOST_BYTES = 1024 * 1024


class JobProbe:
    """The last answer of the job's `/readyz`, or the `trouble` with it. Without an address nothing is asked."""

    def __init__(self, address: str | None) -> None:
        self.answer: dict[str, Any] | None = None
        self.trouble: str | None = None if address else "the settings have no health.port, so the job can't be asked"
        self.address = address

    def ask(self) -> None:
        """Ask once."""
        try:
            self.answer, self.trouble = self._answer(), None
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            self.answer, self.trouble = (
                None,
                (f"{self.address}/readyz doesn't answer as a job does: {str(error) or type(error).__name__}"),
            )

    def _answer(self) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.address}/readyz")  # noqa: S310 # always http, from the settings
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 # as above
                content = answer.read(MOST_BYTES)
        except urllib.error.HTTPError as error:  # 503 is an answer too: the job isn't ready, and says why
            content = error.read(MOST_BYTES)
        found = json.loads(content)
        return found if isinstance(found, dict) else {"answer": found}
