"""Answers of all brokers about their disks, for the deciders: bytes of logs, and of their volumes."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import DiskFloor
from sluice_elastic.log_dirs import Disks, LogDirs

log = logging.getLogger("sluice.storage")

_POLL_S = 10.0

_ANSWER_TIMEOUT_MS = 5_000
"""Longest wait for a broker, so that one that is frozen holds up no poll."""

_LONGEST_POLL_S = 20.0
"""Time after which no further broker is asked: what they said counts for a minute."""


class DisksWatch(Collector):
    """Asks the brokers while any tenant has a budget or disks have a floor; `disks` is what is known. Has a metric."""

    def __init__(
        self, quotas: Callable[[], Quotas], floor: DiskFloor, remembered_ms: int, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.disks = Disks()
        self._quotas = quotas
        self._floor = floor
        self._clock_ms = clock_ms
        self._log_dirs = LogDirs(remembered_ms)

    def service(self, kafka: Mapping[str, str]) -> BackgroundService:
        """The service that asks."""

        def poll() -> None:
            self.poll(lambda late: read_log_dirs(kafka, late))

        return BackgroundService("storage", poll, _POLL_S, failure="the brokers' disks can't be read", log=log)

    def poll(self, read: Callable[[frozenset[int]], list[dict[str, Any]]]) -> None:
        """Ask the brokers. The last answer of each counts while it doesn't answer, or nobody can be asked.

        `read` is told whom to ask last. Raises what it raises.
        """
        has_budgets, before = bool(self._quotas().storage_budgets()), self._log_dirs.unknown
        if not has_budgets and not any(self._floor):
            self._log_dirs.unknown = frozenset()
            self.disks = Disks(at_ms=self._clock_ms())
            return
        try:
            brokers = read(before)
        except Exception:
            self._log_dirs.take([], self._clock_ms())
            if not self._log_dirs.is_empty():
                self._note(has_budgets)
            raise
        self._log_dirs.take(brokers, self._clock_ms(), with_sizes=has_budgets)
        if unknown := self._log_dirs.unknown - before:
            told = "broker %d doesn't say what is on its disks; what it said last counts for %d s"
            log.warning(told, min(unknown), self._log_dirs.remembered_ms // 1000)
        self._note(has_budgets)

    def _note(self, has_budgets: bool) -> None:
        stored = self._log_dirs.stored() if has_budgets else {}
        self.disks = Disks(stored, self._log_dirs.low(self._floor), self._clock_ms())

    def collect(self) -> Iterator[Metric]:
        """The present metric."""
        text = "Brokers that didn't answer DescribeLogDirs last"
        yield GaugeMetricFamily("sluice_brokers_disks_unknown", text, value=float(len(self._log_dirs.unknown)))


class LogDirsAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python ships no type hints
    """kafka-python's admin client whose DescribeLogDirs asks for all topics: its own asks for those that it may see."""

    def broker_numbers(self) -> list[int]:
        """The numbers of the brokers that the cluster has now."""
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    def describe_all_log_dirs(self, broker: int) -> list[dict[str, Any]]:
        """The log directories of a broker. Raises KafkaError."""
        [answer] = self._manager.run(self._async_describe_log_dirs, None, [broker])
        log_dirs: list[dict[str, Any]] = answer["log_dirs"]
        return log_dirs


def read_log_dirs(kafka: Mapping[str, str], late: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """The answers of all brokers, by a new client: one that stays knows of a new broker after minutes.

    Those in `late` are asked last. A broker that doesn't answer, or isn't asked as others have taken all of the time,
    has no log directories. Raises KafkaUnavailableError if none has: so it is without the right to see them.
    """
    began_s, answers = time.monotonic(), []
    with connect(LogDirsAdmin, {**kafka, "request.timeout.ms": str(_ANSWER_TIMEOUT_MS)}) as admin:
        for number in sorted(admin.broker_numbers(), key=lambda number: (number in late, number)):
            log_dirs: list[dict[str, Any]] = []
            if time.monotonic() - began_s < _LONGEST_POLL_S:
                with suppress(KafkaError, OSError):  # it is away, frozen, or has come to its end
                    log_dirs = admin.describe_all_log_dirs(number)
            answers.append({"broker": number, "log_dirs": log_dirs})
    if not any(answer["log_dirs"] for answer in answers):
        raise KafkaUnavailableError(
            "no broker names a log directory; check that brokers answer, and that the login has Describe on the cluster"
        )
    return answers
