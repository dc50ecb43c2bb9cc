"""Beside Kafka: a client at full speed, held by the broker plugin and by Kafka's own quotas."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.benchmarks.report import Figure, Findings
from scripts.benchmarks.rig import BenchmarkRig, Scale
from scripts.closed_loop.brokers import BrokersMeasures, BrokersSituation, run_brokers
from scripts.testbed.full_speed_client import Library
from sluice.state.quotas.kinds import QuotaKind

_MB = 1_000_000.0
_PERCENT = 20.0
_BROKERS = (1, 3)
_BYTES = {QuotaKind.PRODUCER_BYTE_RATE: "producer", QuotaKind.CONSUMER_BYTE_RATE: "consumer"}


@dataclass(frozen=True)
class HeldClient:
    """A client and its quota, which is tried on one and on three brokers with the plugin and with own quotas."""

    library: Library
    quota: QuotaKind
    limit: float
    runs: int

    @property
    def title(self) -> str:
        """Such as `librdkafka producer, 1 MB/s`."""
        if self.quota in _BYTES:
            return f"{self.library} {_BYTES[self.quota]}, {self.limit / _MB:g} MB/s"
        return f"{self.library} small requests, {self.limit:g} % of a thread"

    def situations(self, seconds: int) -> Iterator[tuple[str, BrokersSituation]]:
        """The rows: on each number of brokers the plugin, then Kafka's own quotas."""
        for brokers in _BROKERS:
            for own_quotas in (False, True):
                name = f"{brokers} broker{'s' if brokers > 1 else ''}, {'own quotas' if own_quotas else 'plugin'}"
                yield (
                    name,
                    BrokersSituation(
                        self.quota, self.limit, brokers, seconds, own_quotas=own_quotas, library=self.library
                    ),
                )


def held_clients(runs: int, every: bool) -> list[HeldClient]:
    """The clients of a run: librdkafka's; with `every` also the other libraries', and 3 MB/s, once each."""
    clients = [HeldClient(Library.LIBRDKAFKA, quota, _MB, runs) for quota in _BYTES]
    clients.append(HeldClient(Library.LIBRDKAFKA, QuotaKind.REQUEST_PERCENTAGE, _PERCENT, runs))
    if every:
        others = [library for library in Library if library is not Library.LIBRDKAFKA]
        clients += [HeldClient(library, quota, _MB, 1) for library in others for quota in _BYTES]
        clients += [HeldClient(Library.LIBRDKAFKA, quota, 3 * _MB, 1) for quota in _BYTES]
    return clients


def measure_beside_kafka(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(h) what clients at full speed get over their quotas, the first 10 s left out: a fresh counter may burst."""
    for client in held_clients(scale.runs, scale.every_client):
        found: dict[str, list[BrokersMeasures]] = {}
        for _ in range(client.runs):
            for row, situation in client.situations(scale.held_s):
                found.setdefault(row, []).append(_measure(rig, situation))
        means = {row: _add_row(findings, client.title, row, measures) for row, measures in found.items()}
        plugin, own = means["3 brokers, plugin"], means["3 brokers, own quotas"]
        findings.compare(f"3 brokers, own quotas / plugin, mean of {client.title}", own, plugin)


def _measure(rig: BenchmarkRig, situation: BrokersSituation) -> BrokersMeasures:
    folder = rig.folder / "held"
    folder.mkdir()
    try:
        return run_brokers(folder, situation)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _add_row(findings: Findings, section: str, row: str, measures: list[BrokersMeasures]) -> Figure:
    """Add the figures of a row; returns that of the mean over quota."""
    mean = findings.add(section, "mean over quota", "", [run.mean_after for run in measures], row=row)
    findings.add(section, "worst minute", "", [run.worst_minute_after for run in measures], row=row)
    findings.add(section, "worst 5 s", "", [run.worst_5s_after for run in measures], row=row)
    findings.add(section, "longest silence", "s", [run.longest_silence_s for run in measures], row=row)
    findings.add(section, "client errors", "", [run.client_errors for run in measures], row=row)
    findings.add(section, "broker CPU", "cores", [run.broker_cpu for run in measures], row=row)
    return mean
