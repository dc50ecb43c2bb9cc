"""Neighbours: others' latency beside a user with wide events, and beside a client that invents names."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path

from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_lab.benchmarks.events import FOUR_CHARGES
from sluice_lab.benchmarks.latency import WARM_S, Latencies, add_latencies, answered, steady
from sluice_lab.benchmarks.report import Findings, at_most
from sluice_lab.benchmarks.rig import BenchmarkRig, Driver, Record, Setup
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.testbed.processes import folder_bytes

PARTITIONS = 50
"""Topic-partitions of a wide event: the default of enforce.max_charges_per_event."""

FLOOD_PER_S = 5_000
MAX_ENTITIES = 1_000_000
"""Bound of the state during the flood of invented names, which reaches it after 200 s."""

_BATCH = 2_000  # wide events of a micro-batch while the capacity is measured
_BATCHES = 4
_OTHERS_PER_S = 100
_BAR = 2.0
_KNOWN_NAMES = 10_000
_FLOOD_WARM_S = 20.0
_FLOOD_BARS = {50: at_most(1.5), 99: at_most(1.5)}
_FLOOD_S = 600
_EVERY_CLIENT = (QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), QuotaKind.CONTROLLER_MUTATION_RATE, 5.0),)


def measure_neighbours(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p99 of others' decisions, alone and beside wide events at half of the measured capacity, in turns."""
    capacity: list[float] = []
    found: dict[bool, list[Latencies]] = {False: [], True: []}
    with rig.driver() as driver:
        for run in range(scale.runs + 1):
            wide_per_s = _capacity(rig, driver, run)
            for beside, runs in found.items():
                name, warm_s = f"neighbours-{run}-{beside}", WARM_S if run else scale.warm_s
                latencies_ms = _others(rig, scale, driver, name, wide_per_s / 2 if beside else 0.0, warm_s)
                if run:  # the first run warms Java up
                    runs.append(latencies_ms)
            if run:
                capacity.append(wide_per_s)
    section = f"Neighbours of a user with {PARTITIONS} partitions an event"
    findings.add(section, "capacity for the wide events", "events/s", capacity)
    others = {"others beside wide events at half of their capacity": found[True], "others alone": found[False]}
    add_latencies(findings, section, others, {99: at_most(_BAR)})


def _capacity(rig: BenchmarkRig, driver: Driver, run: int) -> float:
    """Wide events/s out of a backlog, the first micro-batch left out."""
    name = f"neighbours-{run}-capacity"
    setup = rig.setup(name, f"{name}-requests", FOUR_CHARGES.quotas, enforce={"max_offsets_per_trigger": _BATCH})
    if run == 0:
        driver.session(setup.file)
    rig.publish(setup.settings.topics.requests, islice(_wide_requests(), _BATCH * _BATCHES))
    driver.start("enforce", setup.file)
    batches = driver.drain(_BATCH * _BATCHES)["batches"][1:]
    speeds: list[float] = [batch["events"] * 1000.0 / batch["batch_ms"] for batch in batches]
    return statistics.median(speeds)


def _others(rig: BenchmarkRig, scale: Scale, driver: Driver, name: str, wide_per_s: float, warm_s: float) -> Latencies:
    """Latencies of the others' requests, after a warm-up that has wide events too."""
    setup = rig.setup(name, f"{name}-requests", FOUR_CHARGES.quotas)
    with ExitStack() as stack:

        def start() -> None:
            driver.start("enforce", setup.file)
            if wide_per_s:
                stack.enter_context(rig.sending(setup.settings.topics.requests, wide_per_s, _wide_requests()))

        return steady(rig, scale, setup, start, driver.stop, _OTHERS_PER_S, warm_s, FOUR_CHARGES)


def _wide_requests() -> Iterator[Record]:
    """Events of many partitions without end, all of one user and of the same partitions, each sent now."""
    touched = ",".join(f'{{"topic":"wide","partition":{number},"bytes":10}}' for number in range(PARTITIONS))
    while True:
        value = f'{{"api":"Produce","timestamp_ms":{now_ms()},"user":"wide","topic_partitions":[{touched}]}}'
        yield b"wide|", value.encode()


def measure_invented_names(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Others' latency alone, beside a flood of known names and beside one of new names; memory and state then."""
    section, bound, flood_s = "Invented names", {"max_entities": MAX_ENTITIES}, scale.length_s(_FLOOD_S)
    alone, known, invented = (
        rig.setup(f"names-{number}", f"names-{number}-requests", _EVERY_CLIENT, state=bound) for number in range(3)
    )
    with rig.driver() as driver:
        driver.session(alone.file)
        with _deciding(rig, scale, driver, alone) as ask:
            ask(scale.warm_s)
            alone_ms = ask(scale.latency_s)
        with _flood(rig, known, cycle(range(_KNOWN_NAMES))), _deciding(rig, scale, driver, known) as ask:
            known_ms = ask(scale.latency_s)
        with _flood(rig, invented, count()), _deciding(rig, scale, driver, invented) as ask:
            half_ms, half_mib = ask(flood_s / 2), driver.resident_mib()
            invented_ms = half_ms + ask(flood_s / 2)
            end_mib = driver.resident_mib()
    add_latencies(findings, section, {"others beside known names": [known_ms]}, dict.fromkeys(_FLOOD_BARS))
    others = {"others beside invented names": [invented_ms], "others alone": [alone_ms]}
    add_latencies(findings, section, others, _FLOOD_BARS)
    half = findings.add(section, "memory of Java and the workers after half of the flood", "MiB", [half_mib])
    end = findings.add(section, "memory of Java and the workers after the flood", "MiB", [end_mib])
    findings.compare("memory after the flood / after half of it", end, half)
    state = folder_bytes(Path(invented.settings.enforce.checkpoint) / "state") / 1e6
    findings.add(section, f"state after {flood_s} s, bound to {MAX_ENTITIES} entities", "MB", [state])


@contextmanager
def _deciding(rig: BenchmarkRig, scale: Scale, driver: Driver, setup: Setup) -> Iterator[Callable[[float], Latencies]]:
    """Start the enforce query and warm it up; it is stopped after this block.

    Yields a function that sends the others' requests for some seconds, and returns their latencies.
    """
    with rig.reader(setup.settings.topics.decisions) as reader:
        ask = partial(answered, rig, scale, setup, reader, _OTHERS_PER_S)
        driver.start("enforce", setup.file)
        ask(_FLOOD_WARM_S)
        yield ask
    driver.stop()


def _flood(rig: BenchmarkRig, setup: Setup, names: Iterator[int]) -> BackgroundService:
    """Requests of one user, each with the next client-id, while this block runs."""
    return rig.sending(setup.settings.topics.requests, FLOOD_PER_S, map(_request, names))


def _request(name: int) -> Record:
    value = (
        f'{{"timestamp_ms":{now_ms()},"user":"flood","client_id":"name-{name}",'
        '"api":"CreateTopics","mutations":[{"topic":"new","partitions":1}]}'
    )
    return f"flood|name-{name}".encode(), value.encode()
