"""Clients, gateways, latency and job as discrete events, with the arithmetic and the shares that gateways and job use.

    a connection sends ─► its gateway charges inline, answers and publishes ─► `latency_ms` later, on average, a
    micro-batch has decided it, and every gateway reads the sums

A client's connection sends its next request when the answer to the last one is there, its wait has ended, and its part
of the demand asks for it.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from sluice.state.arithmetic.counter import Outcome
from sluice.state.contract.records import Request, TopicPartition
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags, entity_text
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.alive import HEARTBEAT_MS
from sluice.state.shares.counter_share import Metering
from sluice.state.shares.gateway_shares import GatewayShares
from sluice.state.shares.read_sums import read_sums
from sluice.state.shares.sums import DecidedSums, SummedCharge, applied_waits, gateway_text
from sluice_insight.whatif.replay import ReplayedCounters
from sluice_lab.scenarios.closed_loop.measures import Served
from sluice_lab.scenarios.closed_loop.situation import Counters, Situation, Waits

FOREVER_MS = 2**50
MAX_MUTE_MS = 3_600_000
MAX_COUNTERS = 100_000
EPOCH_MS = 1_700_000_000_000
LOOKBACK_MS = 10_000
"""Span of the sums that a new gateway reads."""

WARM_UP_MS = 3_000
"""Time, and the latency on top of it, that gateways run before clients connect: they know each other then."""

CATCH_UP_MS = 0.05
"""Time between two decisions of a backlog: 20 000 are made in a second."""

BATCHES_IN_LATENCY = 2
"""Micro-batches in the time from a request to the arrival of its decision."""

SETTINGS = QuotaSettings()
SPAN_MS = Metering.of(SETTINGS).span_ms
NANOSECONDS_PER_POINT = 10_000_000


class GatewayUnderTest:
    """One gateway: its shares, the decided waits it knows, and its clock."""

    def __init__(self, instance: str, skew_ms: int) -> None:
        self.instance = instance
        self.shares = GatewayShares(instance, SETTINGS, MAX_COUNTERS, MAX_MUTE_MS)
        self.is_up = True
        self._skew_ms = skew_ms
        self._decided_until_ms: dict[CounterKey, int] = {}

    def clock_ms(self, time_ms: float) -> int:
        """The time by this gateway's clock."""
        return EPOCH_MS + int(time_ms) + self._skew_ms

    def read(self, records: Sequence[bytes], until_ms: Mapping[CounterKey, int], time_ms: float) -> None:
        """Read the records of a micro-batch, and until when each counter has to wait by its decisions."""
        for record in records:
            sums = read_sums(record)
            for entity in sums.sums:
                self.shares.on_sums(entity, sums, self.clock_ms(time_ms))
        self._decided_until_ms |= until_ms

    def decided_wait_ms(self, time_ms: float) -> int:
        """Wait that decisions ask for. All counters of a simulation without own ones are one."""
        now_ms = self.clock_ms(time_ms)
        return max((until_ms - now_ms for until_ms in self._decided_until_ms.values()), default=0)


Reading = Callable[[GatewayUnderTest, float], object]
"""The way in which a gateway reads a decision or a heartbeat at a time."""


class MicroBatch:
    """The decisions that become known at one time: their sums, and until when counters have to wait."""

    def __init__(self, time_ms: float) -> None:
        self.time_ms = time_ms
        self._sums = DecidedSums(SPAN_MS)
        self._until_ms: dict[CounterKey, int] = {}

    def add(self, request: Request, offset: int, tags: Tags, outcome: Outcome) -> None:
        """Add a charge of a request."""
        kind, event_ms, wait_ms = outcome.charge.kind, request.timestamp_ms or 0, outcome.wait_ms
        entity, inline = entity_text(tags.entity()), request.throttled_by is not None
        charge = SummedCharge(
            kind,
            outcome.charge.limit,
            outcome.value,
            event_ms,
            offset,
            gateway_text(request.instance, inline),
            applied_waits(request).get(entity, {}).get(kind, 0),
            wait_ms=wait_ms,
            withheld=request.withheld,
        )
        self._sums.add(entity, charge)
        self._until_ms[kind, tags] = event_ms + wait_ms if wait_ms else 0

    def reading(self, number: int) -> Reading:
        """The way in which a gateway reads it."""
        records, until_ms = list(self._sums.records(None, number, 0)), self._until_ms
        return lambda gateway, time_ms: gateway.read(records, until_ms, time_ms)


class ClosedLoop:
    """One simulation: `run` returns the served requests."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._random = random.Random(situation.seed)  # a simulation needs no secrets
        self._job = ReplayedCounters(_quotas(situation, situation.limit), SETTINGS, FOREVER_MS)
        self._known_quotas = self._job.quotas  # by the gateways
        self._served: Served = []
        self._gateways: list[GatewayUnderTest] = []
        self._read: deque[tuple[float, Reading]] = deque()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._job_free_ms = 0.0
        self._batch = MicroBatch(-1.0)

    def run(self) -> Served:
        """Simulate `seconds`."""
        situation = self._situation
        for _ in range(situation.gateways):
            self._start_gateway(-WARM_UP_MS - situation.latency_ms)
        stay_s = situation.spread.stay_s(situation.seconds, situation.stay)
        for stay in range(math.ceil(situation.seconds / stay_s)):
            self._at(stay * stay_s * 1000, self._connect)
        if situation.join is not None:
            self._at(situation.join * 1000, self._join)
        if situation.leave is not None:
            self._at(situation.leave * 1000, self._leave)
        if situation.limit_change is not None:
            self._at(situation.limit_change[0] * 1000, self._change_limit)
        while self._due:
            time_ms, _, act = heapq.heappop(self._due)
            if time_ms >= situation.seconds * 1000.0:
                break
            act(time_ms)
        return self._served

    def _at(self, time_ms: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (time_ms, next(self._numbers), act))

    def _start_gateway(self, time_ms: float) -> None:
        skew_ms = self._random.randint(0, self._situation.clock_skew_ms)
        gateway = GatewayUnderTest(f"gateway-{len(self._gateways)}", skew_ms)
        for read_ms, read in self._read:
            if read_ms >= time_ms - LOOKBACK_MS:
                read(gateway, time_ms)
        self._gateways.append(gateway)
        self._at(time_ms + self._random.random() * HEARTBEAT_MS, partial(self._heartbeat, gateway))

    def _connect(self, time_ms: float) -> None:
        """Connect every client to each gateway; older connections end with their next request."""
        situation = self._situation
        up = [gateway for gateway in self._gateways if gateway.is_up]
        self._connections = object()
        for gateway, part in zip(up, situation.parts(len(up), time_ms), strict=True):
            for client in range(situation.clients) if part else ():
                gap_ms = situation.size / (situation.demand * part / situation.clients) * 1000
                first_ms = time_ms + self._random.random() * gap_ms
                self._at(first_ms, partial(self._send, gateway, client, gap_ms, self._connections))

    def _join(self, time_ms: float) -> None:
        self._start_gateway(time_ms)
        self._connect(time_ms)

    def _leave(self, time_ms: float) -> None:
        """The first gateway crashes: its published events are decided, and its clients go to the others."""
        self._gateways[0].is_up = False
        self._connect(time_ms)

    def _change_limit(self, time_ms: float) -> None:
        """The job knows the new limit at once, the gateways later."""
        quotas = self._job.quotas = _quotas(self._situation, self._situation.limit_at(time_ms))
        self._at(time_ms + self._situation.latency_ms, lambda _: setattr(self, "_known_quotas", quotas))

    def _heartbeat(self, gateway: GatewayUnderTest, time_ms: float) -> None:
        if not gateway.is_up:
            return
        instance, sent_ms = gateway.instance, gateway.clock_ms(time_ms)

        def read(reader: GatewayUnderTest, read_ms: float) -> None:
            reader.shares.gateways.on_heartbeat(instance, sent_ms, reader.clock_ms(read_ms))

        self._at(self._decided_at(time_ms), lambda decided_ms: self._read_by_all(decided_ms, read))
        self._at(time_ms + HEARTBEAT_MS, partial(self._heartbeat, gateway))

    def _read_by_all(self, time_ms: float, read: Reading) -> None:
        """A decision arrives at all gateways; one that starts later reads it then."""
        self._read.append((time_ms, read))
        while self._read[0][0] < time_ms - LOOKBACK_MS:
            self._read.popleft()
        for gateway in self._gateways:
            if gateway.is_up:
                read(gateway, time_ms)

    def _send(self, gateway: GatewayUnderTest, client: int, gap_ms: float, connections: object, time_ms: float) -> None:
        """A connection sends its next request, unless its gateway makes it wait for a decision."""
        if connections is not self._connections or not gateway.is_up:
            return
        again = partial(self._send, gateway, client, gap_ms, connections)
        wait_ms = 0 if self._situation.waits is Waits.IN_LINE else gateway.decided_wait_ms(time_ms)
        if wait_ms > 0:
            self._at(time_ms + wait_ms, again)
            return
        wait_ms, withheld = self._serve(gateway, client, time_ms)
        self._at(time_ms + (wait_ms if withheld else max(wait_ms, gap_ms)), again)

    def _serve(self, gateway: GatewayUnderTest, client: int, time_ms: float) -> tuple[int, bool]:
        """Charge a request inline and publish it. Returns its wait in ms, and true if it was answered empty."""
        situation = self._situation
        request = _request(situation, client, gateway.clock_ms(time_ms))
        request.instance = gateway.instance
        admission = gateway.shares.charge_shares(request, self._known_quotas, request.timestamp_ms or 0)
        wait_ms, withheld = admission.throttle_ms, admission.withhold
        request.throttled_by = list(admission.throttled_by)
        if situation.waits is Waits.DECIDED:
            wait_ms, withheld, request.throttled_by = 0, False, None
        request.withheld = withheld
        if not withheld:
            self._served.append((time_ms, situation.size, client))
        self._at(self._decided_at(time_ms), partial(self._decide, request))
        return wait_ms, withheld

    def _decided_at(self, time_ms: float) -> float:
        """Time at which the decision on a request of now is read; after an outage the job works off its backlog."""
        known_ms, down = time_ms + self._situation.latency_ms, self._situation.job_down
        if down is not None and down[0] * 1000 <= known_ms and time_ms < down[1] * 1000:
            self._job_free_ms = max(self._job_free_ms, down[1] * 1000 + self._situation.latency_ms)
        self._job_free_ms = max(known_ms, self._job_free_ms + CATCH_UP_MS if self._job_free_ms > known_ms else known_ms)
        every_ms = self._situation.latency_ms / BATCHES_IN_LATENCY
        return math.ceil(self._job_free_ms / every_ms - 0.5) * every_ms if every_ms else self._job_free_ms

    def _decide(self, request: Request, time_ms: float) -> None:
        """The job decides a request exactly, in the order of arrival; a micro-batch has all of one time."""
        if time_ms != self._batch.time_ms:
            self._batch = MicroBatch(time_ms)
            self._at(time_ms, partial(self._end_batch, self._batch))
        number = next(self._numbers)
        for tags, outcomes in self._job.charge(request, request.timestamp_ms or 0).items():
            for outcome in outcomes:
                self._batch.add(request, number, tags, outcome)

    def _end_batch(self, batch: MicroBatch, time_ms: float) -> None:
        self._read_by_all(time_ms, batch.reading(next(self._numbers)))
        if batch is self._batch:
            self._batch = MicroBatch(-1.0)


def _quotas(situation: Situation, limit: float) -> Quotas:
    """One quota: on the user that all clients have, or on each client-id."""
    shared = situation.counters is Counters.SHARED
    entity = QuotaEntity(user="user") if shared else QuotaEntity(client_id=DEFAULT)
    return Quotas([QuotaEntry(entity, situation.quota, limit)])


def _request(situation: Situation, client: int, timestamp_ms: int) -> Request:
    request = Request("Metadata", timestamp_ms=timestamp_ms, user="user", client_id=f"client-{client}")
    if situation.quota is QuotaKind.REQUEST_PERCENTAGE:
        request.request_time_ns = int(situation.size * NANOSECONDS_PER_POINT)
    else:
        request.api = "Fetch" if situation.quota.consumer else "Produce"
        request.topic_partitions = [TopicPartition("topic", 0, int(situation.size))]
    return request
