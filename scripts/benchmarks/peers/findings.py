"""The figures of Sluice and its peers, and the ratios between them."""

from collections.abc import Mapping, Sequence

import numpy as np

from scripts.benchmarks.peers.kafka_streams import Guarantee
from scripts.benchmarks.report import Figure, Findings, at_least

SLUICE = "Sluice"

HELD_TO = f"Kafka Streams {Guarantee.EXACTLY_ONCE}"
"""The peer with Sluice's guarantee: the bar is against this one."""

QUIX = "Quix Streams exactly-once"

_THROUGHPUT_BARS = {HELD_TO: at_least(1.0), QUIX: at_least(2.0)}
_PERCENTILES = (50, 99)

Runs = Sequence[float]


def add_throughput(findings: Findings, per_s: Mapping[str, Runs]) -> None:
    """Add requests/s by name, and the ratio of Sluice's to each peer's."""
    section = "Peers: throughput, 1 charge a request"
    figures = {name: findings.add(section, name, "requests/s", values) for name, values in per_s.items()}
    for name in _peers(figures):
        findings.compare(f"{SLUICE} / {name}, throughput", figures[SLUICE], figures[name], _THROUGHPUT_BARS.get(name))


def add_latency(findings: Findings, rate_per_s: int, latencies_ms: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Add p50 and p99 of each run's latencies by name, and the ratio of Sluice's to each peer's."""
    section = f"Peers: latency at {rate_per_s} requests/s"
    for percentile in _PERCENTILES:
        figures = {
            name: findings.add(section, f"{name}, p{percentile}", "ms", _percentiles(runs, percentile))
            for name, runs in latencies_ms.items()
        }
        for name in _peers(figures):
            findings.compare(f"{SLUICE} / {name}, p{percentile} latency", figures[SLUICE], figures[name])


def add_restart(findings: Findings, most: int, seconds: Mapping[tuple[str, str], Runs]) -> None:
    """Add the seconds by name and by what was known, and for each name the ratio of `most` known entities to one."""
    section = "Peers: start of the process to first decision"
    figures = {
        (name, state): findings.add(section, f"{name}, {state}", "s", values)
        for (name, state), values in seconds.items()
    }
    for name in dict.fromkeys(name for name, _ in figures):
        many, one = figures[name, known(most)], figures[name, known(1)]
        findings.compare(f"{name}, {most} / 1 known entities, restart", many, one)


def known(users: int) -> str:
    """How a row of the restarts names so many known entities."""
    return f"{users} known"


def _peers(figures: Mapping[str, Figure]) -> list[str]:
    return [name for name in figures if name != SLUICE]


def _percentiles(runs: Sequence[Sequence[int]], percentile: int) -> list[float]:
    return [float(np.percentile(run, percentile)) for run in runs]
