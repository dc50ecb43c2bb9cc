"""The time for which clients waited: the union of the waits that their events report.

An event reports the wait that its gateway applied, or that its decision asked for, from the event on. That is what was
left to wait, not what was served, so a wait ends at the next event of its lane: of the same client, gateway and API. It
ends too when an operator resets the client's counters, or when a limit is raised or removed, and after MAX_APPLIED_MS.
Waits at the same time count once.
"""

import msgspec

from sluice.state.contract.records import MAX_APPLIED_MS

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
