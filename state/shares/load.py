"""Load of a broker or gateway: what its heartbeats measure, as a part of what it can take. Pure.

    rho = max(in / in capacity, out / out capacity, 1 - handler idle, 1 - network idle,
              0.9 * wait / 20 ms, 0.9 * queue / 0.8)

A broker is at its capacity from 0.9 on. 20 ms of wait in queues are the threshold of DAGOR (SoCC'18); requests have no
room soon when 80 % of the queue are in use. The load of the cluster is that of its busiest broker, as Kora has it
(VLDB'23, 5.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice.state.contract.records import Load

FULL_LOAD = 0.9
"""Load of a broker that is at its capacity: above it the broker tightens."""

WAIT_AT_CAPACITY_MS = 20.0
"""Mean wait of requests and responses in the broker's queues at its capacity."""

QUEUE_AT_CAPACITY = 0.8
"""Fraction of the request queue in use at the broker's capacity."""


class Capacity(NamedTuple):
    """Bytes per second that a broker can take in and give out, without replication; None if nobody said."""

    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None


class Capacities(NamedTuple):
    """Capacities of brokers by id, in pairs, as settings have to be hashable; and that of all other brokers."""

    by_broker: tuple[tuple[int, Capacity], ...] = ()
    default: Capacity = Capacity()

    def of(self, measured: Load) -> Capacity:
        """The capacity of the broker that a load is of; a gateway that is no broker has none."""
        if measured.broker_id is None:
            return Capacity()
        return next((capacity for broker, capacity in self.by_broker if broker == measured.broker_id), self.default)


class DiskFloor(NamedTuple):
    """Free bytes, and percent of all bytes, below which a log directory is low; 0 is no floor."""

    free_bytes: int = 0
    free_percent: int = 0

    def low(self, measured: Load | None) -> str | None:
        """The first log directory that is low, in words; None if none is.

        >>> from sluice.state.contract.records import LogDirectory
        >>> low = Load(broker_id=2, log_dirs=[LogDirectory("/data", 9_000_000_000, 100_000_000_000)])
        >>> DiskFloor(free_bytes=10_000_000_000).low(low)
        'broker 2: /data has 9.0 GB of 100.0 GB free'
        >>> DiskFloor(free_percent=9).low(low) is None
        True
        """
        for log_dir in measured.log_dirs if measured is not None else ():
            least = max(self.free_bytes, self.free_percent / 100.0 * log_dir.total_bytes)
            if log_dir.free_bytes < least:
                whose = "" if measured is None or measured.broker_id is None else f"broker {measured.broker_id}: "
                return f"{whose}{log_dir.path} has {_size(log_dir.free_bytes)} of {_size(log_dir.total_bytes)} free"
        return None


def _size(size_bytes: int) -> str:
    """Bytes as people write them.

    >>> _size(999), _size(9_000_000_000), _size(2_500_000_000_000_000)
    ('999 B', '9.0 GB', '2500.0 TB')
    """
    thousands = min(4, (len(str(size_bytes)) - 1) // 3)
    return f"{size_bytes / 1_000**thousands:.1f} {'kMGT'[thousands - 1]}B" if thousands else f"{size_bytes} B"


class BrokerLimits(NamedTuple):
    """Capacities of brokers, and the floor of their disks."""

    capacities: Capacities = Capacities()
    floor: DiskFloor = DiskFloor()


NO_LIMITS = BrokerLimits()


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Load of a broker: `rho` is the greatest of `parts`, which are what could be measured, and `signal` its name.

    `reason` is the signal as it was measured, such as `queue wait 34 ms`.
    """

    rho: float
    signal: str
    reason: str
    parts: Mapping[str, float]

    @property
    def is_of_bytes(self) -> bool:
        """True if bytes that pass are what the broker has most of."""
        return self.signal in ("in", "out")


def broker_load(measured: Load, capacity: Capacity = NO_LIMITS.capacities.default) -> BrokerLoad | None:
    """The load of a broker; None if nothing was measured that says it.

    90 MB/s of 100 MB/s are 0.9, and 34 ms of wait 0.9 * 34 / 20 = 1.53:

    >>> load = broker_load(Load(bytes_in_per_s=90e6, handler_idle=0.25, queue_wait_ms=34.0), Capacity(100e6))
    >>> load.parts
    {'in': 0.9, 'handlers': 0.75, 'wait': 1.53}
    >>> load.rho, load.signal, load.reason
    (1.53, 'wait', 'queue wait 34 ms')
    """
    parts: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name, rate, most in (
        ("in", measured.bytes_in_per_s, capacity.bytes_in_per_s),
        ("out", measured.bytes_out_per_s, capacity.bytes_out_per_s),
    ):
        if rate is not None and most is not None:
            parts[name] = rate / most
            reasons[name] = f"bytes {name} {_percent(rate / most)} of capacity"
    for name, idle, threads in (
        ("handlers", measured.handler_idle, "request handlers"),
        ("network", measured.network_idle, "network threads"),
    ):
        if idle is not None:
            parts[name] = 1.0 - idle
            reasons[name] = f"{threads} {_percent(1.0 - idle)} busy"
    if measured.queue_used is not None:
        parts["queue"] = FULL_LOAD * measured.queue_used / QUEUE_AT_CAPACITY
        reasons["queue"] = f"request queue {_percent(measured.queue_used)} full"
    if measured.queue_wait_ms is not None:
        parts["wait"] = FULL_LOAD * measured.queue_wait_ms / WAIT_AT_CAPACITY_MS
        reasons["wait"] = f"queue wait {measured.queue_wait_ms:.3g} ms"
    if not parts:
        return None
    signal = max(parts, key=parts.__getitem__)
    return BrokerLoad(parts[signal], signal, reasons[signal], parts)


def broker_loads(measured: Mapping[str, Load], capacities: Capacities) -> dict[str, BrokerLoad]:
    """The loads of brokers by their names, of those that were measured."""
    found = ((name, broker_load(each, capacities.of(each))) for name, each in measured.items())
    return {name: load for name, load in found if load is not None}


def _percent(part: float) -> str:
    return f"{part * 100:.0f} %"
