"""The time for which clients and counters waited: the union of the waits that events report, and what ended each.

An event reports the waits of counters from the event on: those that its gateway applied inline, or else those that its
decision asked for. The client waits for the longest. That is what was left to wait, not what was served, so a wait ends
at the next event of its lane: of a client the same gateway and API, of a counter the gateway that applied it, or any
event that is charged to the counter if the decision asked for it. It ends too when an operator resets the counter, or
raises or removes its limit, and after MAX_APPLIED_MS. Waits at the same time count once.

Reports on tables and the live model get all of this from here; `reports/recorded_waits.py` does it for many events.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from sluice.state.contract.records import MAX_APPLIED_MS, Decision
from sluice.state.quotas.entity import DEFAULT, Tags, bounded_name
from sluice_reading.times import to_ms

if TYPE_CHECKING:
    from sluice_reading.quotas_admin import QuotaChange  # takes half a second to import

COUNTER = ("quota", "user", "client_id", "topic", "partition", "tenant")
"""The names of a counter, all of them texts, "" where it has none."""

CounterNames = tuple[str, ...]

NEVER_MS = 2**62

MAX_LANES = 500
"""Lanes of a client that are kept; of more, those whose wait is over are forgotten."""


class Waited(msgspec.Struct, gc=False):
    """The waits of one client, whose events come in the order of their times: `total_ms` in all until `at_ms`."""

    total_ms: int = 0
    at_ms: int = 0
    lanes: dict[str, tuple[int, int]] = {}  # the beginning and end of the last wait of each

    def add(self, lane: str, at_ms: int, wait_ms: int) -> tuple[int, int]:
        """Note an event and the wait that it reports, 0 for none; returns as `until` does.

        An event that is late in its lane changes nothing.

        >>> waited = Waited()
        >>> for at_ms in (0, 500, 900):  # a wait of a second ends at the next event
        ...     _ = waited.add("gateway", at_ms, 1000 if at_ms < 900 else 0)
        >>> waited.until(10_000), waited.total_ms
        ((10000, 10000), 900)
        """
        passed = self.until(at_ms)
        if len(self.lanes) > MAX_LANES:
            self.lanes = {name: wait for name, wait in self.lanes.items() if wait[1] > at_ms or name == lane}
        end_ms = at_ms + min(wait_ms, MAX_APPLIED_MS)
        begun_ms, known_ms = self.lanes.get(lane, (-1, 0))
        if begun_ms < at_ms and wait_ms > 0:
            self.lanes[lane] = at_ms, end_ms
        elif begun_ms == at_ms:
            self.lanes[lane] = at_ms, max(known_ms, end_ms)
        elif 0 <= begun_ms < at_ms:
            del self.lanes[lane]
        return passed

    def end(self, at_ms: int) -> tuple[int, int]:
        """End the waits of all lanes that began before a time; returns as `until` does."""
        passed = self.until(at_ms)
        self.lanes = {name: wait for name, wait in self.lanes.items() if wait[0] >= at_ms}
        return passed

    def until(self, at_ms: int) -> tuple[int, int]:
        """Move on to a time; returns the beginning and end of what was waited since the last one, equal for nothing."""
        if at_ms <= self.at_ms:
            return at_ms, at_ms
        begin_ms, self.at_ms = self.at_ms, at_ms
        end_ms = min(self.end_ms(), at_ms)
        if end_ms <= begin_ms:
            return at_ms, at_ms
        self.total_ms += end_ms - begin_ms
        return begin_ms, end_ms

    def end_ms(self) -> int:
        """The end of the present wait, by what is known; 0 if there is none."""
        if not self.lanes:
            return 0
        return max(end_ms for _, end_ms in self.lanes.values())


def reported_waits(decision: Decision) -> dict[tuple[str, Tags], int]:
    """The waits in ms that a decision reports, by quota and counter: a counter that it charges and isn't here has none.

    `reports.recorded_waits.counter_waits` does the same for rows of the table.
    """
    if decision.throttled_by is not UNSET:
        return {(wait.quota, Tags.of(wait.entity)): wait.ms for wait in decision.throttled_by}
    longest_ms = decision.throttle_time_ms
    if not longest_ms:
        return {}
    enforced = [charge for charge in decision.charges if charge.mode is UNSET]
    decides = deciding(decision.decided_by, [(charge.quota, charge.throttle_ms) for charge in enforced])
    return {
        (charge.quota, Tags.of(charge.entity)): longest_ms if decided else min(charge.throttle_ms, longest_ms)
        for charge, decided in zip(enforced, decides, strict=True)
    }


class WaitEnd(NamedTuple):
    """The end of the waits of counters by an operator's hand: of those with these names; None stands for any."""

    at_ms: int
    counter: tuple[str | None, ...]


def raised_limits(changes: Iterable["QuotaChange"]) -> Iterator[WaitEnd]:
    """The ends of waits by those changes that raise a limit or remove it."""
    for change in changes:
        old, new, entity = change.old, change.new, change.entity
        if old is not None and not old.shadow and (new is None or new.value > old.value):
            parts = (entity.user, entity.client_id, entity.topic, entity.tenant)
            user, client_id, topic, tenant = (None if part is DEFAULT else bounded_name(part or "") for part in parts)
            yield WaitEnd(to_ms(change.changed_at), (change.kind.value, user, client_id, topic, None, tenant))


class WaitEnds:
    """The ends of waits by unmutes, and by limits that were raised or removed."""

    def __init__(self, ends: Iterable[WaitEnd] = ()) -> None:
        self._ends = sorted(ends, key=attrgetter("at_ms"))
        self._known: dict[CounterNames, list[int]] = {}

    def __bool__(self) -> bool:
        """True if any wait was ended."""
        return bool(self._ends)

    def of(self, counter: CounterNames) -> list[int]:
        """The times at which waits of a counter were ended, and NEVER_MS."""
        if counter not in self._known:
            names_of = (zip(end.counter, counter, strict=True) for end in self._ends)
            is_of = [all(name in (None, own) for name, own in names) for names in names_of]
            self._known[counter] = [*(end.at_ms for end in compress(self._ends, is_of)), NEVER_MS]
        return self._known[counter]

    def left_ms(self, counter: CounterNames, at_ms: int, wait_ms: int) -> int:
        """The wait of an event, not beyond the next end.

        >>> ends = WaitEnds([WaitEnd(5_000, (None, "alice"))])
        >>> [ends.left_ms(("producer_byte_rate", "alice"), at_ms, 3_000) for at_ms in (0, 4_000, 6_000)]
        [3000, 1000, 3000]
        """
        times_ms = self.of(counter)
        return min(wait_ms, times_ms[bisect_right(times_ms, at_ms)] - at_ms)


def deciding(decided_by: str | None, asked: Sequence[tuple[str, int]]) -> list[bool]:
    """Flags for the charges of a decision whose wait is the decision's: the longest of the quota `decided_by`.

    A charge is its quota, "" for a shadow one, and its wait. The others ask for their own wait, if it is no longer.

    >>> deciding("producer_byte_rate", [("producer_byte_rate", 200), ("producer_byte_rate", 900), ("other", 900)])
    [False, True, False]
    """
    longest_ms = max((wait_ms for quota, wait_ms in asked if quota == decided_by), default=0)
    return [quota == decided_by and wait_ms == longest_ms for quota, wait_ms in asked]
