"""Log directories of all brokers, as Kafka's DescribeLogDirs tells of them (KIP-113). Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sluice.state.contract.records import Load, LogDirectory
from sluice.state.shares.load import DiskFloor

FRESH_MS = 60_000
"""Time for which an answer of brokers counts: some polls may fail, and another driver may take over."""


class Disks(NamedTuple):
    """Answers of all brokers about their disks: bytes of each topic, and the first disk that is low, in words."""

    stored: Mapping[str, int] = {}
    low: str | None = None
    at_ms: int = 0

    def now(self, now_ms: int) -> "Disks | None":
        """The same while it counts; None afterwards."""
        return self if abs(now_ms - self.at_ms) <= FRESH_MS else None


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
        'broker 2: /data has 5 B of 100 B free'
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
