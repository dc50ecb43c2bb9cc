"""Clients at full speed beside Kafka: throttled by the broker plugin, by proxies and by Kafka's own quotas."""

import tempfile
from pathlib import Path

from scripts.benchmarks.report import Findings
from scripts.benchmarks.rig import BenchmarkRig
from scripts.benchmarks.scale import Scale
from scripts.scenarios.closed_loop.brokers import BrokersMeasures, run_brokers
from scripts.scenarios.closed_loop.situation import BrokersSituation
from sluice.state.quotas.kinds import Family, QuotaKind

_USUAL_S = 120
_CLIENTS = {
    "producer, 1 MB/s": (QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0),
    "consumer, 1 MB/s": (QuotaKind.CONSUMER_BYTE_RATE, 1_000_000.0),
    "small requests, 20 % of a thread": (QuotaKind.REQUEST_PERCENTAGE, 20.0),
}
"""Client of librdkafka -> its quota and limit."""

_ROWS = {
    "1 broker, plugin": (1, 0, False),
    "1 broker, 1 proxy": (1, 1, False),
    "1 broker, 2 proxies": (1, 2, False),
    "1 broker, own quotas": (1, 0, True),
    "3 brokers, plugin": (3, 0, False),
    "3 brokers, 2 proxies": (3, 2, False),
    "3 brokers, 4 proxies": (3, 4, False),
    "3 brokers, own quotas": (3, 0, True),
}
"""Row -> number of brokers and of proxies, and whether the quotas are Kafka's own."""

_FIGURES = {
    "mean over quota": ("mean_after", ""),
    "worst minute": ("worst_minute_after", ""),
    "worst 5 s": ("worst_5s_after", ""),
    "longest silence": ("longest_silence_s", "s"),
    "client errors": ("client_errors", ""),
    "broker CPU": ("broker_cpu", "cores"),
}
"""Figure -> its measure and unit."""


def measure_beside_kafka(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Amounts that clients at full speed get over their quotas, without the first 10 s: a fresh counter may burst."""
    for client, (quota, limit) in _CLIENTS.items():
        is_bytes = quota.family is Family.BYTES  # a proxy doesn't know a broker's threads
        found: dict[str, list[BrokersMeasures]] = {
            row: [] for row, (_, proxies, _) in _ROWS.items() if is_bytes or not proxies
        }
        for _ in range(scale.runs):
            for row in found:
                brokers, proxies, own_quotas = _ROWS[row]
                seconds = scale.length_s(_USUAL_S)
                situation = BrokersSituation(quota, limit, brokers, seconds, proxies=proxies, own_quotas=own_quotas)
                with tempfile.TemporaryDirectory(dir=rig.folder, ignore_cleanup_errors=True) as folder:
                    found[row].append(run_brokers(Path(folder), situation))
        figures = {
            (row, name): findings.add(client, f"{row}: {name}", unit, [getattr(run, measure) for run in runs])
            for row, runs in found.items()
            for name, (measure, unit) in _FIGURES.items()
        }
        plugin, own = (figures[f"3 brokers, {quotas}", "mean over quota"] for quotas in ("plugin", "own quotas"))
        findings.compare(f"3 brokers, own quotas / plugin, mean of {client}", own, plugin)
