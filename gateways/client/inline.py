"""Inline charging: the shares of a gateway behind a lock, and counts of what they answered."""

from collections.abc import Callable
from itertools import count
from threading import Lock

from msgspec import UNSET

from sluice.gateways.client.in_force import InForce, held_counter
from sluice.gateways.client.options import GatewayOptions
from sluice.gateways.client.wait_table import Wait
from sluice.state.contract.gateway_topics import DecidedHeartbeat
from sluice.state.contract.records import CountedEntity, Decision, Load, Request, Share
from sluice.state.decisions.charge_plan import charged_bytes
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.overrides import HELD_MS
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.gateway_shares import Admission, GatewayShares, held
from sluice.state.shares.read_sums import ReadSums


class InlineCharges:
    """The shares of one gateway. Thread-safe. It puts the waits that it asks for into the table of `in_force`.

    `requests` were charged, `throttled` of them have to wait, for `throttled_ms` in all. `sums` counts the
    entities whose sums were read. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, instance: str, options: GatewayOptions, in_force: InForce, clock_ms: Callable[[], int]) -> None:
        self.requests = 0
        self.throttled = 0
        self.throttled_ms = 0
        self.sums = 0
        self._instance = instance
        self._in_force = in_force
        self._waits = in_force.inline_waits
        self._max_wait_ms = options.max_wait_ms
        self._clock_ms = clock_ms
        self._numbers = count()  # orders the waits of one millisecond
        self._bytes = {"Produce": 0.0, "Fetch": 0.0}
        self._bytes_since_ms = clock_ms()
        self._lock = Lock()  # guards the shares and the counts
        self.shares = GatewayShares(
            instance, options.quota, options.max_counters, options.max_wait_ms, options.expected_gateways
        )

    def charge_inline(self, event: Request, quotas: Quotas, delivered: bool = False) -> Admission:
        """Charge the request now, under these quotas."""
        now_ms = self._clock_ms()
        overrides, user, client_id = self._in_force.overrides, event.user or "", event.client_id or ""
        with self._lock:
            self.shares.tighten(overrides.factor(now_ms))
            is_fetch, hold = event.api == "Fetch", None
            if event.api in self._bytes:
                hold = overrides.hold(user, client_id, quotas.tenants, now_ms, is_fetch)
            if hold is not None and is_fetch and not delivered:
                admission = Admission(0, withhold=True)
            else:
                admission = self.shares.charge_shares(event, quotas, now_ms, delivered)
            if hold is not None:
                admission = held(admission, hold, CountedEntity(user, client_id))
                wait = Wait(now_ms + HELD_MS, self._order(now_ms), HELD_MS, hold.decider)
                self._in_force.held_waits.note_wait(held_counter(event.api, user, client_id), wait)
            if event.api in self._bytes and not admission.withhold:
                self._bytes[event.api] += charged_bytes(event)[0]
            self.requests += 1
            if admission.throttle_ms:
                self.throttled += 1
                self.throttled_ms += admission.throttle_ms
            for waiting in admission.throttled:
                if wait_ms := waiting.asked_ms:
                    wait = Wait(now_ms + wait_ms, self._order(now_ms), wait_ms, waiting.counter[0], waiting.limit)
                    self._waits.note_wait(waiting.counter, wait)
        return admission

    def refund(self, decision: Decision, partitions: int) -> None:
        """Refund mutations that were charged inline and that this decision has charged once more."""
        now_ms = self._clock_ms()
        with self._lock:
            for charge in decision.charges:
                if charge.quota == QuotaKind.CONTROLLER_MUTATION_RATE and charge.mode is UNSET and charge.limit:
                    counter = (QuotaKind.CONTROLLER_MUTATION_RATE, Tags.of(charge.entity))
                    self.shares.charge_decided(counter, -partitions, charge.limit, now_ms)

    def on_heartbeat(self, instance: str, decided: DecidedHeartbeat, now_ms: int) -> None:
        """Apply a decided heartbeat of a gateway that arrived now."""
        with self._lock:
            self.shares.gateways.on_heartbeat(instance, decided.timestamp_ms, now_ms)

    def on_sums(self, read: ReadSums, now_ms: int) -> None:
        """Apply the sums of a record that arrived now, and end the waits of counters that were reset.

        Raises msgspec's errors for any that can't be read.
        """
        uncharged = read.uncharged(self._instance)
        for entity in read.sums:
            with self._lock:  # for each by itself: a request must not wait for a whole record
                for counter in self.shares.on_sums(entity, read, now_ms, uncharged):
                    self._waits.note_wait(counter, Wait(0, self._order(self._clock_ms())))
            self.sums += 1

    def clear(self) -> None:
        """Forget all charges: the sums are read from their beginning again."""
        with self._lock:
            self.shares.clear()

    def on_clock_set_back(self) -> None:
        """Forget the charges, and the waits that a clock that was set back would make longer."""
        with self._lock:
            self.shares.step_back(self._clock_ms())
            self._waits.clear()
            self._in_force.held_waits.clear()

    def busiest(self) -> list[Share]:
        """The shares of the busiest counters, of the limits in force; none before there are any."""
        now_ms, limits = self._clock_ms(), self._in_force.limits
        with self._lock:
            self.shares.gateways.settle(now_ms)  # this is called once a second
            return [] if limits is None else self.shares.busiest(limits.enforced, now_ms)

    def command(self) -> int:
        """The number of the operator's last command that is in force here."""
        return self._in_force.overrides.command(self._clock_ms())

    def load(self) -> Load | None:
        """Bytes that clients moved per second since the call before; None if no time has passed."""
        now_ms = self._clock_ms()
        with self._lock:
            since_s, self._bytes_since_ms = (now_ms - self._bytes_since_ms) / 1000, now_ms
            bytes_in, bytes_out = self._bytes.values()
            self._bytes = dict.fromkeys(self._bytes, 0.0)
        return Load(None, bytes_in / since_s, bytes_out / since_s) if since_s > 0 else None

    def size(self) -> tuple[int, int]:
        """Numbers of counters that are kept, and of those that were forgotten because there were too many."""
        return len(self.shares), self.shares.forgotten

    def gateways(self) -> tuple[int, tuple[str, ...]]:
        """Number of gateways that are alive, including this one, and the instances of the others."""
        with self._lock:
            return self.shares.gateways.count, tuple(sorted(self.shares.gateways.instances()))

    def _order(self, now_ms: int) -> tuple[int, int]:
        return now_ms, next(self._numbers)
