"""Gateways by their decided heartbeats: of bounded number, with time as an argument."""

from collections import Counter, OrderedDict, deque
from threading import Lock
from typing import NamedTuple

from sluice.state.contract.instances import node_of, server_text
from sluice.state.contract.records import MAX_LOG_DIRS, MAX_SHARES, MAX_UNLIMITED, Heartbeat, Load, UnlimitedClient
from sluice.state.shares.alive import is_late
from sluice.state.shares.load import NO_LIMITS, BrokerLimits, BrokerLoad, broker_load
from sluice.state.troubles import Facts
from sluice_reading.loads import MEAN_OF_MS, heaviest_unlimited, mean_load

LATE_MS = 30_000
"""Time without a heartbeat after which a gateway is late."""

HEARD_S = 60
"""Seconds without a heartbeat after which a broker is silent: of many decisions some heartbeats alone may be read."""

_BESIDE_MS = 10_000
"""Processes of one name that were heard within so little of each other run beside each other."""

FUTURE_MS = 60_000
"""Largest accepted clock skew: later timestamps are clamped to now + 60 s."""

MOST_GATEWAYS = 500

_LAGS = 30
"""Newest heartbeats whose longest lag counts: a forged decision of the far future silences no gateway."""


class GatewaySeen(NamedTuple):
    """The newest heartbeat of a gateway's process."""

    name: str
    instance: str
    at_ms: int
    read_ms: int
    """Time at which it was read; for a reader that came later, at which it would have been."""
    decided_ms: int
    """Time of its decision, by the job's clock."""
    heartbeat: Heartbeat
    loads: tuple[tuple[int, Load], ...] = ()
    """Times and loads of its heartbeats of the last 10 s, the newest last."""

    @property
    def node(self) -> int | None:
        """The node id, if it is a broker."""
        return node_of(self.instance, self.name)

    @property
    def text(self) -> str:
        """The broker by its node id, or the gateway's name."""
        return server_text(self.instance, self.name)


class SeenLoad(NamedTuple):
    """Load of a gateway that is alive: the mean of the last 10 s, what it is of its capacity, and its disk if low."""

    gateway: GatewaySeen
    mean: Load
    load: BrokerLoad | None
    low_disk: str | None


class GatewaysSeen:
    """The newest heartbeat of each process of a gateway, of at most `most` of them. Thread-safe.

    `limits` are the capacities of brokers. Times are epoch milliseconds.
    """

    def __init__(self, limits: BrokerLimits = NO_LIMITS, most: int = MOST_GATEWAYS) -> None:
        self.limits = limits
        self._most = most
        self._lock = Lock()
        self._seen = OrderedDict[tuple[str, str], GatewaySeen]()
        self._lags_ms = deque[int](maxlen=_LAGS)
        """By how much the newest decisions were read later than the job's clock said when they were made."""

    def add(
        self, name: str | None, instance: str | None, heartbeat: Heartbeat, at_ms: int, now_ms: int, decided_ms: int
    ) -> None:
        """Take a heartbeat of `at_ms` whose decision, made at `decided_ms` by the job's clock, is read at `now_ms`.

        Of one that was only decided late the figures are left out. Its lists are cut at the lengths that an event may
        have: a forged record might have more.
        """
        key = (name or "", instance or "")
        with self._lock:
            self._lags_ms.append(now_ms - decided_ms)
            known = self._seen.get(key)
            if known is not None:
                decided_ms = max(decided_ms, known.decided_ms)  # no forged one of the past makes it look silent
                if is_late(at_ms, known.at_ms):
                    self._seen[key] = known._replace(read_ms=now_ms, decided_ms=decided_ms)
                    return
            del heartbeat.shares[MAX_SHARES:]
            del heartbeat.unlimited[MAX_UNLIMITED:]
            loads: tuple[tuple[int, Load], ...] = ()
            if heartbeat.load is not None:
                del heartbeat.load.log_dirs[MAX_LOG_DIRS:]
                before = () if known is None else known.loads
                loads = (*(each for each in before if at_ms - MEAN_OF_MS < each[0] < at_ms), (at_ms, heartbeat.load))
            self._seen[key] = GatewaySeen(*key, at_ms, now_ms, decided_ms, heartbeat, loads)
            self._seen.move_to_end(key)
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)

    def forget(self) -> None:
        """Start again, as after the topic was deleted and made again."""
        with self._lock:
            self._seen.clear()

    def all(self) -> list[GatewaySeen]:
        """The newest heartbeat of each process, by name.

        A reader that begins with the records of some minutes reads old ones now: their age is that between decisions.
        """
        with self._lock:
            lag_ms = max(self._lags_ms, default=0)
            heard = [seen._replace(read_ms=min(seen.read_ms, seen.decided_ms + lag_ms)) for seen in self._seen.values()]
        return sorted(heard, key=lambda seen: (seen.name, seen.instance))

    def newest(self) -> dict[str, GatewaySeen]:
        """The newest process of each gateway, by name: one that was started again has another instance.

        Brokers may share a name, such as that of their host: then the node id follows it. Of processes of one name that
        speak at the same time one with a fault counts, which the others would hide.
        """
        newest: dict[tuple[str, int | None], GatewaySeen] = {}
        found = self.all()
        speaks_ms = max((seen.read_ms for seen in found), default=0) - _BESIDE_MS

        def order(seen: GatewaySeen) -> tuple[bool, bool, int]:
            is_faulty = bool(seen.heartbeat.threads_down) or not seen.heartbeat.metrics_seen
            return seen.read_ms > speaks_ms, is_faulty, seen.read_ms

        for seen in sorted(found, key=order):
            newest[seen.name, seen.node] = seen
        count = Counter(name for name, _ in newest)
        shared = {key: seen.name if count[seen.name] == 1 else _with_node(*key) for key, seen in newest.items()}
        return {shared[key]: seen for key, seen in newest.items()}

    def heard(self, now_ms: int) -> set[str]:
        """The processes of gateways that were heard in the last LATE_MS."""
        return {seen.instance for seen in self.all() if now_ms - seen.read_ms <= LATE_MS}

    def facts(self, now_ms: int) -> Facts:
        """The heartbeats that were heard in the last HEARD_S, and the capacities of brokers."""
        newest = self.newest().values()
        beats = {each.text: each.heartbeat for each in newest if now_ms - each.read_ms <= HEARD_S * 1000}
        return Facts(beats=beats, heard_s=HEARD_S, capacities=self.limits)

    def loads(self, now_ms: int) -> list[SeenLoad]:
        """The loads of the gateways that report one and were heard in the last LATE_MS, the busiest first."""
        found = []
        for seen in self.all():
            if seen.loads and now_ms - seen.read_ms <= LATE_MS:
                mean = mean_load([load for _, load in seen.loads])
                load = broker_load(mean, self.limits.capacities.of(mean))
                found.append(SeenLoad(seen, mean, load, self.limits.floor.low(seen.heartbeat.load)))
        return sorted(found, key=lambda each: -each.load.rho if each.load else 0.0)

    def unlimited(self, now_ms: int) -> list[UnlimitedClient]:
        """The heaviest clients without a limit, by the gateways that were heard in the last LATE_MS."""
        heard = (seen for seen in self.all() if now_ms - seen.read_ms <= LATE_MS)
        return heaviest_unlimited(seen.heartbeat for seen in heard)


def _with_node(name: str, node: int | None) -> str:
    return name if node is None else f"{name}-{node}"
