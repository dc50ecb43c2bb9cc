"""Inline charging: the shares of a gateway behind a lock, and counts of what they answered."""

from collections.abc import Callable
from itertools import count
from threading import Lock

from sluice.gateways.client.decided import Charges, Decided, applied_waits, enforced_charges, read_decided
from sluice.gateways.client.options import GatewayOptions
from sluice.gateways.client.wait_table import Wait, WaitTable
from sluice.state.contract.records import HEARTBEAT_API, UNMUTE_API, Request, Share
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.kinds import Family
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import CounterShare, DecidedCharge
from sluice.state.shares.gateway_shares import Admission, GatewayShares


class InlineCharges:
    """The shares of one gateway. Thread-safe. It puts the waits that it asks for into the table `waits`.

    `requests` were charged, `throttled` of them have to wait, for `throttled_ms` in all. `compared` of them are
    decided; `difference_ms` is the sum of the differences between the wait that was applied and the one that was
    decided. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, instance: str, options: GatewayOptions, waits: WaitTable, clock_ms: Callable[[], int]) -> None:
        self.requests = 0
        self.throttled = 0
        self.throttled_ms = 0
        self.compared = 0
        self.difference_ms = 0
        self._instance = instance
        self._waits = waits
        self._max_wait_ms = options.max_wait_ms
        self._clock_ms = clock_ms
        self._numbers = count()  # orders the waits of one millisecond
        self._lock = Lock()  # guards the shares and the counts
        self._shares = GatewayShares(
            instance, options.quota, options.max_counters, options.max_wait_ms, options.expected_gateways
        )

    def admit(self, event: Request, quotas: Quotas, delivered: bool = False) -> Admission:
        """Charge the request now, under these quotas."""
        now_ms = self._clock_ms()
        with self._lock:
            admission = self._shares.admit(event, quotas, now_ms, delivered)
            self.requests += 1
            if admission.throttle_ms:
                self.throttled += 1
                self.throttled_ms += admission.throttle_ms
            for waiting in admission.throttled:
                wait_ms = waiting.until_ms - now_ms
                wait = Wait(waiting.until_ms, self._order(now_ms), wait_ms, waiting.counter[0], waiting.limit)
                self._waits.apply(waiting.counter, wait)
        return admission

    def refund(self, record: bytes, partitions: int) -> None:
        """Refund mutations that were charged inline and that this decision has charged once more."""
        now_ms = self._clock_ms()
        with self._lock:
            for counter, charge in enforced_charges(read_decided(record)):
                if counter[0].family is Family.MUTATIONS and charge.limit is not None:
                    self._shares.charge_decided(counter, -partitions, charge.limit, now_ms)

    def on_decision(self, decided: Decided, charges: Charges, now_ms: int) -> None:
        """Apply a decision that arrived now: its charges, a heartbeat, or a reset."""
        if decided.api == HEARTBEAT_API:
            self._on_heartbeat(decided, now_ms)
        elif decided.api == UNMUTE_API:
            self._reset(charges, now_ms)
        else:
            self._on_charges(decided, charges, now_ms)

    def clear(self) -> None:
        """Forget all charges: the decisions are read from their beginning again."""
        with self._lock:
            self._shares.clear()

    def on_clock_set_back(self) -> None:
        """Forget the charges, and the waits that a clock that was set back would make longer."""
        with self._lock:
            self._shares.step_back(self._clock_ms())
            self._waits.clear()

    def counter(self, counter: CounterKey) -> CounterShare | None:
        """The share of a counter; None if the counter isn't kept."""
        with self._lock:
            return self._shares.share_of(counter)

    def busiest(self) -> list[Share]:
        """The shares of the busiest counters."""
        now_ms = self._clock_ms()
        with self._lock:
            self._shares.gateways.settle(now_ms)  # this is called once a second
            return self._shares.busiest(now_ms)

    def size(self) -> tuple[int, int]:
        """Numbers of counters that are kept, and of those that were forgotten because there were too many."""
        return len(self._shares), self._shares.forgotten

    def gateways(self) -> tuple[int, tuple[str, ...]]:
        """Number of gateways that are alive, including this one, and the instances of the others."""
        with self._lock:
            return self._shares.gateways.count, tuple(sorted(self._shares.gateways.instances()))

    def _on_heartbeat(self, decided: Decided, now_ms: int) -> None:
        if decided.instance:
            with self._lock:
                self._shares.gateways.on_heartbeat(decided.instance, decided.timestamp_ms, now_ms)

    def _reset(self, charges: Charges, now_ms: int) -> None:
        with self._lock:
            for counter, _ in charges:
                self._shares.reset(counter)
                self._waits.apply(counter, Wait(0, self._order(now_ms)))

    def _on_charges(self, decided: Decided, charges: Charges, now_ms: int) -> None:
        instance, is_inline = decided.instance, decided.throttled_by is not None
        is_own = instance == self._instance
        if not is_inline and not is_own:
            instance = None  # it doesn't charge inline, so it shares nothing, and no heartbeat says if it is alive
        applied = applied_waits(decided, self._max_wait_ms)
        wait_ms = 0 if is_inline else None
        with self._lock:
            if is_own and is_inline:
                self._compare(max(applied.values(), default=0), decided.throttle_ms)
            for counter, charge in charges:
                value, limit = charge.value, charge.limit
                if limit is None:
                    continue
                consumer = counter[0].consumer
                withheld = consumer and decided.withheld
                is_fetch = consumer and not decided.sums_up
                if applied:
                    wait_ms = applied.get(counter, 0)
                made = DecidedCharge(instance, value, limit, decided.timestamp_ms, wait_ms, is_fetch, withheld)
                self._shares.on_decided(counter, made, now_ms)
                if is_own and not is_inline and not withheld:
                    self._shares.charge_decided(counter, value, limit, now_ms)

    def _compare(self, applied_ms: int, decided_ms: int) -> None:
        self.compared += 1
        self.difference_ms += abs(applied_ms - min(decided_ms, self._max_wait_ms))

    def _order(self, now_ms: int) -> tuple[int, int]:
        return now_ms, next(self._numbers)
