"""Storage budgets and the guard of disks in the job: asks all brokers for the bytes of their logs and volumes."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from kafka.errors import KafkaError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.kafka_python import LogDirsAdmin
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.process.format import quantity
from sluice.state.contract.records import StorageState, TenantStorage
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.disk_guard import DiskFloor
from sluice.state.shares.storage_budget import LogDirs, StorageRule, in_force
from sluice.streaming.runtime.client_metrics import label_of

log = logging.getLogger("sluice.storage")

_LOOK_S = 10.0

_ANSWER_TIMEOUT_MS = 5_000
"""Longest wait for a broker, so that one that is frozen holds up no look."""

_LONGEST_LOOK_S = 20.0
"""Time after which no further broker is asked: gateways believe a state for a minute."""

_GAUGES = (
    ("sluice_tenant_stored_bytes", "Bytes of the tenant's topics on the disks of all brokers"),
    ("sluice_tenant_stored_bytes_budget", "Bytes that they may take"),
    ("sluice_tenant_stored_bytes_held", "1 while its producers are held because its budget is used up"),
)


class StorageWatch(Collector):
    """Looks at the disks while any tenant has a budget or disks have a floor. `state` is what holds now, at first None.

    It is also the metrics of the `top` tenants nearest to their budgets.
    """

    def __init__(
        self,
        quotas: Callable[[], Quotas],
        top: int,
        floor: DiskFloor,
        remembered_ms: int,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.state: StorageState | None = None
        self._quotas = quotas
        self._top = top
        self._floor = floor
        self._clock_ms = clock_ms
        self._rule = StorageRule()
        self._log_dirs = LogDirs(remembered_ms)

    def service(self, kafka: Mapping[str, str]) -> BackgroundService:
        """The service that looks and decides."""

        def look() -> None:
            self.look(lambda late: read_log_dirs(kafka, late))

        return BackgroundService("storage", look, _LOOK_S, failure="the brokers' disks can't be read", log=log)

    def look(self, read: Callable[[frozenset[int]], list[dict[str, Any]]]) -> None:
        """Ask the brokers and decide. What one said last counts on while it doesn't answer, or nobody can be asked.

        `read` is told whom to ask last. Raises what it raises.
        """
        quotas = self._quotas()
        budgets, before = quotas.storage_budgets(), self._log_dirs.unknown
        if not budgets and not any(self._floor):
            self._log_dirs.unknown = frozenset()
            self._decide(quotas, budgets)
            return
        try:
            brokers = read(before)
        except Exception:
            self._log_dirs.take([], self._clock_ms())
            if not self._log_dirs.is_empty():
                self._decide(quotas, budgets)
            raise
        self._log_dirs.take(brokers, self._clock_ms(), with_sizes=bool(budgets))
        if unknown := self._log_dirs.unknown - before:
            told = "broker %d doesn't say what is on its disks; what it said last counts for %d s"
            log.warning(told, min(unknown), self._log_dirs.remembered_ms // 1000)
        self._decide(quotas, budgets)

    def _decide(self, quotas: Quotas, budgets: Mapping[str, float]) -> None:
        stored = self._log_dirs.stored() if budgets else {}
        state = self._rule.decide(stored, quotas.tenants, budgets, self._clock_ms())
        self.take(msgspec.structs.replace(state, low_disk=self._log_dirs.low(self._floor)))

    def take(self, state: StorageState) -> None:
        """Put a state in force, and say who is held from now on, and who no more."""
        low_before = None if self.state is None else self.state.low_disk
        if state.low_disk is not None and low_before is None:
            log.warning("a disk is low, so all producers are held: %s", state.low_disk)
        elif state.low_disk is None and low_before is not None:
            log.info("no disk is low any more, as far as brokers say; producers are held no more")
        before = _held(self.state)
        for tenant, each in _held(state).items():
            if tenant not in before:
                log.warning("tenant %s has used up its budget, so its producers are held: %s", tenant, _text(each))
        for each in state.tenants:
            if each.tenant in before and not each.is_held:
                log.info("the producers of tenant %s are held no more: %s", each.tenant, _text(each))
        self.state = state

    def collect(self) -> Iterator[Metric]:
        """The present metrics. When the disks can't be read for so long that nobody is held they say so."""
        state = in_force(self.state, self._clock_ms())
        gauges = [GaugeMetricFamily(name, meaning, labels=("tenant",)) for name, meaning in _GAUGES]
        for each in state.tenants[: self._top]:
            for gauge, value in zip(gauges, (each.stored_bytes, each.budget_bytes, each.is_held), strict=True):
                gauge.add_metric((label_of(each.tenant),), float(value))
        text = "1 while all producers are held, as a broker says that its disk is low"
        is_low = GaugeMetricFamily("sluice_cluster_disk_low", text, value=float(state.low_disk is not None))
        text = "Brokers that didn't say what is on their disks when they were asked last"
        unknown = GaugeMetricFamily("sluice_brokers_disks_unknown", text, value=float(len(self._log_dirs.unknown)))
        return iter([*gauges, is_low, unknown])


def read_log_dirs(kafka: Mapping[str, str], late: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """The answers of all brokers, by a new client: one that stays knows of a new broker after minutes.

    Those in `late` are asked last. A broker that doesn't answer, or isn't asked as others have taken all of the time,
    has no log directories. Raises KafkaUnavailableError if none has: so it is without the right to see them.
    """
    began_s, answers = time.monotonic(), []
    with connect(LogDirsAdmin, {**kafka, "request.timeout.ms": str(_ANSWER_TIMEOUT_MS)}) as admin:
        for number in sorted(admin.broker_numbers(), key=lambda number: (number in late, number)):
            log_dirs: list[dict[str, Any]] = []
            if time.monotonic() - began_s < _LONGEST_LOOK_S:
                with suppress(KafkaError, OSError):  # it is away, frozen, or has come to its end
                    log_dirs = admin.describe_all_log_dirs(number)
            answers.append({"broker": number, "log_dirs": log_dirs})
    if not any(answer["log_dirs"] for answer in answers):
        raise KafkaUnavailableError(
            "no broker names a log directory; check that brokers answer, and that the login has Describe on the cluster"
        )
    return answers


def _held(state: StorageState | None) -> dict[str, TenantStorage]:
    return {each.tenant: each for each in state.tenants if each.is_held} if state is not None else {}


def _text(storage: TenantStorage) -> str:
    """The bytes in words.

    >>> _text(TenantStorage("shop", 1_500_000, 1e6))
    '1.5 MB of 1 MB'
    """
    return f"{quantity(storage.stored_bytes, 'B')} of {quantity(storage.budget_bytes, 'B')}"
