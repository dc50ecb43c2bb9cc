"""Storage budgets and the guard of disks in the job: asks all brokers for the bytes of their logs and volumes."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.insight.format import quantity
from sluice.kafka_io.background import BackgroundService
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.kafka_python import LogDirsAdmin
from sluice.state.contract.records import StorageState, TenantStorage
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.disk_guard import DiskFloor, low_log_dir
from sluice.state.shares.storage_budget import StorageRule, StoredBytes, in_force
from sluice.streaming.runtime.client_metrics import label_of

log = logging.getLogger("sluice.storage")

_LOOK_S = 10.0

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
        self, quotas: Callable[[], Quotas], top: int, floor: DiskFloor, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.state: StorageState | None = None
        self._quotas = quotas
        self._top = top
        self._floor = floor
        self._clock_ms = clock_ms
        self._rule = StorageRule()
        self._stored = StoredBytes()

    def service(self, kafka: Mapping[str, str]) -> BackgroundService:
        """The service that looks and decides."""

        def look() -> None:
            quotas = self._quotas()
            budgets = quotas.storage_budgets()
            brokers = read_log_dirs(kafka) if budgets or any(self._floor) else []
            stored = self._stored.by_topic(brokers, self._clock_ms()) if budgets else {}
            state = self._rule.decide(stored, quotas.tenants, budgets, self._clock_ms())
            self.take(msgspec.structs.replace(state, low_disk=low_log_dir(brokers, self._floor)))

        return BackgroundService("storage", look, _LOOK_S, failure="the brokers' disks can't be read", log=log)

    def take(self, state: StorageState) -> None:
        """Put a state in force, and say who is held from now on, and who no more."""
        low_before = None if self.state is None else self.state.low_disk
        if state.low_disk is not None and low_before is None:
            log.warning("a disk is low, so all producers are held: %s", state.low_disk)
        elif state.low_disk is None and low_before is not None:
            log.info("all disks have room again; producers are held no more")
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
        is_low = state.low_disk is not None
        return iter([*gauges, GaugeMetricFamily("sluice_cluster_disk_low", text, value=float(is_low))])


def read_log_dirs(kafka: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answers of all brokers, by a new client: one that stays knows of a new broker after minutes.

    Raises KafkaUnavailableError if a broker says nothing: it does so without the right to.
    """
    with connect(LogDirsAdmin, kafka) as admin:
        brokers: list[dict[str, Any]] = admin.describe_all_log_dirs()
    for broker in brokers:
        if not broker["log_dirs"]:
            raise KafkaUnavailableError(
                f"broker {broker['broker']} names no log directory; check that the login has Describe on the cluster"
            )
    return brokers


def _held(state: StorageState | None) -> dict[str, TenantStorage]:
    return {each.tenant: each for each in state.tenants if each.is_held} if state is not None else {}


def _text(storage: TenantStorage) -> str:
    """The bytes in words.

    >>> _text(TenantStorage("shop", 1_500_000, 1e6))
    '1.5 MB of 1 MB'
    """
    return f"{quantity(storage.stored_bytes, 'B')} of {quantity(storage.budget_bytes, 'B')}"
