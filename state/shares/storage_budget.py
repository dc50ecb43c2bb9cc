"""Storage budgets: a tenant whose topics take all of its bytes is held until they take nine tenths. Pure.

The bytes are those of all replicas, as Kafka's DescribeLogDirs tells them (KIP-113): what fills the disks. A tenant is
held as the disk guard holds all: its producers get a trickle, and nobody else waits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from sluice.state.contract.records import Load, LogDirectory, StorageState, TenantStorage
from sluice.state.quotas.elastic import holds_until_ms
from sluice.state.quotas.tenants import Tenants
from sluice.state.shares.disk_guard import DiskFloor

RELEASED_AT = 0.9
"""Part of the budget at which a tenant is held no more: retention deletes whole segments, so one at its budget would
else be held and released with each of them."""

FRESH_MS = 60_000
"""Time for which a gateway believes the last state: some looks may fail, and another driver may take over."""

MAX_TENANTS = 1_000
"""Most tenants in a state, those nearest to their budgets: it has to fit into a Kafka record."""

MAX_BYTES = 1_000_000
"""Most bytes of these tenants as JSON, below the 1 MiB of a record: a name of 256 characters can take 1.5 kB."""


class _LogDir(NamedTuple):
    """A log directory as a broker has described it, and when."""

    path: str
    said_ms: int
    directory: LogDirectory | None
    sizes: Counter[str]


class LogDirs:
    """The log directories of all brokers, by kafka-python's answers to DescribeLogDirs.

    Those of a broker that doesn't answer, and one with an error, count by the last answer for `remembered_ms`: they are
    likely to be back, and nobody is to be released meanwhile.
    """

    def __init__(self, remembered_ms: int) -> None:
        self.remembered_ms = remembered_ms
        self._known: dict[int, dict[str, _LogDir]] = {}
        self.unknown: frozenset[int] = frozenset()
        """The brokers that didn't say anything when they were asked last."""

    def take(self, brokers: Iterable[Mapping[str, Any]], now_ms: int, with_sizes: bool = True) -> None:
        """Take over the answers of all brokers that were asked now; one without log directories says nothing.

        A directory that its broker names no more is gone. `with_sizes` is for `stored`, which costs more.
        """
        answers = {broker["broker"]: broker["log_dirs"] for broker in brokers}
        for number, log_dirs in answers.items():
            if log_dirs:
                before = self._known.get(number, {})
                now = [_log_dir(each, now_ms, with_sizes) or before.get(each["log_dir"]) for each in log_dirs]
                self._known[number] = {each.path: each for each in now if each is not None}
        for number, of_broker in list(self._known.items()):
            kept = {path: each for path, each in of_broker.items() if now_ms - each.said_ms < self.remembered_ms}
            self._known[number] = kept
            if not kept:
                del self._known[number]
        self.unknown = frozenset(number for number in {*answers, *self._known} if not answers.get(number))

    def is_empty(self) -> bool:
        """True if nothing is known of any broker."""
        return not self._known

    def stored(self) -> Counter[str]:
        """The bytes of each topic on all brokers.

        A replica that moves to another directory of its broker is there twice; the copy that grows doesn't count.

        >>> log = {"partition_index": 0, "partition_size": 70, "is_future_key": False}
        >>> topics = [{"name": "orders", "partitions": [log, log | {"is_future_key": True}]}]
        >>> log_dirs = [{"log_dir": "/data", "error_code": 0, "topics": topics}]
        >>> first, second = ({"broker": number, "log_dirs": log_dirs} for number in (1, 2))
        >>> known, stored = LogDirs(remembered_ms=60_000), []
        >>> for answers, at_ms in (([first, second], 0), ([first], 9_000), ([first], 60_000)):
        ...     known.take(answers, at_ms)
        ...     stored.append((known.stored()["orders"], set(known.unknown)))
        >>> stored
        [(140, set()), (140, {2}), (70, set())]
        """
        return sum((each.sizes for known in self._known.values() for each in known.values()), Counter[str]())

    def low(self, floor: DiskFloor) -> str | None:
        """The first log directory that is low, in words; None if none is.

        Brokers say since Kafka 3.3 how large their volumes are and what is usable (KIP-827).

        >>> log_dir = {"log_dir": "/data", "error_code": 0, "topics": [], "total_bytes": 100, "usable_bytes": 5}
        >>> known = LogDirs(remembered_ms=60_000)
        >>> known.take([{"broker": 2, "log_dirs": [log_dir, {"log_dir": "/old", "error_code": 0, "topics": []}]}], 0)
        >>> known.low(DiskFloor(free_percent=10))
        'broker 2: /data has 5 of 100 bytes free'
        """
        for number, known in sorted(self._known.items()):
            directories = [each.directory for each in known.values() if each.directory is not None]
            if (low := floor.low(Load(broker_id=number, log_dirs=directories))) is not None:
                return low
        return None


def _log_dir(said: Mapping[str, Any], now_ms: int, with_sizes: bool) -> _LogDir | None:
    """The directory of an answer; None if it has an error."""
    if said["error_code"]:
        return None
    directory = None
    if said.get("total_bytes", -1) > 0:
        directory = LogDirectory(said["log_dir"], said["usable_bytes"], said["total_bytes"])
    return _LogDir(said["log_dir"], now_ms, directory, _sizes(said["topics"]) if with_sizes else Counter())


def _sizes(topics: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(
        {
            topic["name"]: sum(log["partition_size"] for log in topic["partitions"] if not log["is_future_key"])
            for topic in topics
        }
    )


class StorageRule:
    """Decides which tenants are held. One that was held before the start is held again at its whole budget alone."""

    def __init__(self) -> None:
        self._held: frozenset[str] = frozenset()

    def decide(
        self, by_topic: Mapping[str, int], tenants: Tenants, budgets: Mapping[str, float], now_ms: int
    ) -> StorageState:
        """The state from now on: of the tenants with a budget, those nearest to it first.

        >>> from sluice.state.quotas.entity import QuotaEntity
        >>> rule, shop = StorageRule(), Tenants([QuotaEntity(tenant="shop", topic="shop.*")])
        >>> states = [rule.decide({"shop.a": stored}, shop, {"shop": 100.0}, 0) for stored in (99, 100, 91, 90)]
        >>> [state.tenants[0].is_held for state in states]
        [False, True, True, False]
        """
        stored = dict.fromkeys(budgets, 0)
        for topic, size in by_topic.items():
            tenant = tenants.of_topic(topic)
            if tenant in stored:
                stored[tenant] += size
        found = []
        for tenant, budget in budgets.items():
            is_over = stored[tenant] >= budget or (tenant in self._held and stored[tenant] > RELEASED_AT * budget)
            found.append(TenantStorage(tenant, stored[tenant], budget, is_over))
        self._held = frozenset(each.tenant for each in found if each.is_held)
        nearest = sorted(found, key=lambda each: (not each.is_held, -each.part, each.tenant))
        sizes = accumulate(len(msgspec.json.encode(each)) + 1 for each in nearest[:MAX_TENANTS])
        return StorageState(now_ms, [each for each, size in zip(nearest, sizes, strict=False) if size <= MAX_BYTES])


def in_force(state: StorageState | None, now_ms: int) -> StorageState:
    """The last state while it counts; one that says nothing when it is old, as gateways hold nobody by it then.

    >>> state = StorageState(5_000, low_disk="broker 2: /data has 5 of 100 bytes free")
    >>> in_force(state, 65_000).low_disk, in_force(state, 65_001).low_disk
    ('broker 2: /data has 5 of 100 bytes free', None)
    """
    return state if state is not None and abs(now_ms - state.at_ms) <= FRESH_MS else StorageState(now_ms)


class StorageGuard:
    """The tenants that are held at a gateway, or a disk for which all are, as the limits topic says.

    Times are epoch milliseconds.
    """

    def __init__(self) -> None:
        self._held: frozenset[str] = frozenset()
        self._low_disk: str | None = None
        self._until_ms = 0

    def on_state(self, state: StorageState, heard_ms: int) -> None:
        """Apply a state that was heard now."""
        self._held = frozenset(each.tenant for each in state.tenants if each.is_held)
        self._low_disk = state.low_disk
        self._until_ms = holds_until_ms(state.at_ms, heard_ms, FRESH_MS)

    def held(self, now_ms: int) -> frozenset[str]:
        """The tenants whose producers are held now.

        >>> guard = StorageGuard()
        >>> guard.on_state(StorageState(1_000, [TenantStorage("shop", 7, 5.0, is_held=True)]), heard_ms=1_100)
        >>> guard.held(61_099), guard.held(61_100)
        (frozenset({'shop'}), frozenset())
        """
        return self._held if now_ms < self._until_ms else frozenset()

    def low_disk(self, now_ms: int) -> str | None:
        """The disk for which all producers are held now; None if they aren't."""
        return self._low_disk if now_ms < self._until_ms else None
