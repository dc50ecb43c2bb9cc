"""Invented names: how long others wait while a client takes a new client-id for each request, and what that fills."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count, cycle
from typing import NamedTuple

import numpy as np
from confluent_kafka import Consumer

from scripts.benchmarks.neighbours import others_answered
from scripts.benchmarks.report import Findings, at_most
from scripts.benchmarks.rig import BenchmarkRig, Record, Scale, Setup, SparkDriver
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind

FLOOD_PER_S = 5_000
MAX_ENTITIES = 1_000_000
"""The bound of the state during the flood, which it reaches after 200 s."""

OTHERS_PER_S = 100
KNOWN_NAMES = 10_000

_EVERY_CLIENT = (QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), QuotaKind.CONTROLLER_MUTATION_RATE, 5.0),)
_WARM_S = 20.0
_BAR = 1.5
_SECTION = "Invented names"


class _Flooded(NamedTuple):
    """What a flood of invented names does to others and to the machine, in its two halves."""

    latencies_ms: list[int]
    half_mib: float
    end_mib: float


class _Run(NamedTuple):
    """One enforce query on a checkpoint of its own, and who reads its decisions."""

    rig: BenchmarkRig
    scale: Scale
    setup: Setup
    reader: Consumer

    def latencies_ms(self, seconds: float) -> list[int]:
        """Latencies of the others' requests, sent for so long."""
        return others_answered(self.rig, self.scale, self.setup, self.reader, seconds, OTHERS_PER_S)


def measure_invented_names(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(n) Others' latency alone, beside a flood of known names and beside one of new names; memory and state then."""
    setups = {name: _setup(rig, name) for name in ("alone", "known", "invented")}
    with rig.driver() as driver:
        driver.session(setups["alone"])
        with _deciding(rig, scale, driver, setups["alone"]) as run:
            alone_ms = run.latencies_ms(scale.latency_s)
        known_names = cycle(range(KNOWN_NAMES))
        with _flood(rig, setups["known"], known_names), _deciding(rig, scale, driver, setups["known"]) as run:
            known_ms = run.latencies_ms(scale.latency_s)
        with _flood(rig, setups["invented"], count()), _deciding(rig, scale, driver, setups["invented"]) as run:
            flooded = _measure_flood(run, driver, scale.flood_s)
        state_mb = driver.state_bytes(setups["invented"]) / 1e6
    _report_latency(findings, alone_ms, known_ms, flooded.latencies_ms)
    half = findings.add(_SECTION, "memory of Java and the workers after half of the flood", "MiB", [flooded.half_mib])
    end = findings.add(_SECTION, "memory of Java and the workers after the flood", "MiB", [flooded.end_mib])
    findings.compare("memory after the flood / after half of it", end, half)
    findings.add(_SECTION, f"state after {scale.flood_s:.0f} s, bound to {MAX_ENTITIES} entities", "MB", [state_mb])


def _setup(rig: BenchmarkRig, name: str) -> Setup:
    bound = {"max_entities": MAX_ENTITIES}
    return rig.setup(f"names-{name}", f"names-{name}-requests", _EVERY_CLIENT, state=bound)


@contextmanager
def _deciding(rig: BenchmarkRig, scale: Scale, driver: SparkDriver, setup: Setup) -> Iterator[_Run]:
    """The enforce query, warm; it is stopped after this block."""
    run = _Run(rig, scale, setup, rig.reader(setup.settings.topics.decisions))
    try:
        driver.start("enforce", setup)
        run.latencies_ms(_WARM_S)
        yield run
    finally:
        run.reader.close()
    driver.stop()


def _flood(rig: BenchmarkRig, setup: Setup, names: Iterator[int]) -> AbstractContextManager[None]:
    """Requests of one user, each of the next name, while this block runs."""
    return rig.sending(setup.settings.topics.requests, FLOOD_PER_S, map(_request, names))


def _measure_flood(run: _Run, driver: SparkDriver, seconds: float) -> _Flooded:
    half_ms, half_mib = run.latencies_ms(seconds / 2), driver.resident_mib()
    return _Flooded(half_ms + run.latencies_ms(seconds / 2), half_mib, driver.resident_mib())


def _request(name: int) -> Record:
    value = (
        f'{{"timestamp_ms":{now_ms()},"user":"flood","client_id":"name-{name}",'
        '"api":"CreateTopics","mutations":[{"topic":"new","partitions":1}]}'
    )
    return f"flood|name-{name}".encode(), value.encode()


def _report_latency(findings: Findings, alone_ms: list[int], known_ms: list[int], invented_ms: list[int]) -> None:
    for percentile in (50, 99):
        alone, _, invented = (
            findings.add(_SECTION, f"others {beside}, p{percentile}", "ms", [float(np.percentile(found, percentile))])
            for beside, found in (
                ("alone", alone_ms),
                ("beside known names", known_ms),
                ("beside invented names", invented_ms),
            )
        )
        name = f"others beside {FLOOD_PER_S} invented names/s / alone, p{percentile} latency"
        findings.compare(name, invented, alone, at_most(_BAR))
