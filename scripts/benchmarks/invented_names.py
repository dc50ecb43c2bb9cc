"""Invented names: how long others wait while a client takes a new client-id for each request, and what that fills."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
from confluent_kafka import Consumer, Producer

from gateways.client.clock import now_ms
from scripts.benchmarks.neighbours import others_answered
from scripts.benchmarks.report import Findings, at_most
from scripts.benchmarks.rig import BenchmarkRig, Scale, Setup, SparkDriver
from state.quotas.entity import DEFAULT, QuotaEntity
from state.quotas.entry import QuotaEntry
from state.quotas.kinds import QuotaKind

FLOOD_PER_S = 5_000
MAX_ENTITIES = 1_000_000
"""The bound of the state during the flood, which it reaches after 200 s."""

OTHERS_PER_S = 100
KNOWN_NAMES = 10_000

_EVERY_CLIENT = (QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), QuotaKind.CONTROLLER_MUTATION_RATE, 5.0),)
_WARM_S = 20.0
_TICK_S = 0.005
_BAR = 1.5
_SECTION = "Invented names"

ClientIds = Callable[[int], str]


def measure_invented_names(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(n) Others' latency alone, beside a flood of known names and beside one of new names; memory and state then."""
    with rig.driver() as driver:
        alone = _Run(rig, scale, driver, "alone")
        driver.session(alone.setup)
        alone_ms = alone.measure(scale.latency_s)
        known = _Run(rig, scale, driver, "known")
        with known.flood(lambda number: f"name-{number % KNOWN_NAMES}"):
            known_ms = known.measure(scale.latency_s)
        invented = _Run(rig, scale, driver, "invented")
        with invented.flood(lambda number: f"name-{number}"):
            half_ms = invented.measure(scale.flood_s / 2, stops=False)
            half_mib = driver.resident_mib()
            invented_ms = half_ms + invented.measure(scale.flood_s / 2, starts=False)
            end_mib = driver.resident_mib()
        state_mb = driver.state_bytes(invented.setup) / 1e6
    for percentile in (50, 99):
        of_alone = findings.add(_SECTION, f"others alone, p{percentile}", "ms", [_at(alone_ms, percentile)])
        findings.add(_SECTION, f"others beside known names, p{percentile}", "ms", [_at(known_ms, percentile)])
        of_flood = findings.add(
            _SECTION, f"others beside invented names, p{percentile}", "ms", [_at(invented_ms, percentile)]
        )
        name = f"others beside {FLOOD_PER_S} invented names/s / alone, p{percentile} latency"
        findings.compare(name, of_flood, of_alone, at_most(_BAR))
    half = findings.add(_SECTION, "memory of Java and the workers after half of the flood", "MiB", [half_mib])
    end = findings.add(_SECTION, "memory of Java and the workers after the flood", "MiB", [end_mib])
    findings.compare("memory after the flood / after half of it", end, half)
    findings.add(_SECTION, f"state after {scale.flood_s:.0f} s, bound to {MAX_ENTITIES} entities", "MB", [state_mb])


class _Run:
    """One enforce query on a checkpoint of its own, and what its clients send."""

    def __init__(self, rig: BenchmarkRig, scale: Scale, driver: SparkDriver, name: str) -> None:
        self._rig = rig
        self._scale = scale
        self._driver = driver
        self._reader: Consumer | None = None
        bound = {"max_entities": MAX_ENTITIES}
        self.setup: Setup = rig.setup(f"names-{name}", f"names-{name}-requests", _EVERY_CLIENT, state=bound)

    @contextmanager
    def flood(self, client_id: ClientIds) -> Iterator[None]:
        """Send the flood, whose n-th request is of `client_id(n)`, in this block."""
        done = Event()
        topic = self.setup.settings.topics.requests
        thread = Thread(target=_send_flood, args=(self._rig, topic, client_id, done))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def measure(self, seconds: float, starts: bool = True, stops: bool = True) -> list[int]:
        """Latencies in ms of the others' requests; the first part starts the query and the last one stops it."""
        if starts:
            self._reader = self._rig.reader(self.setup.settings.topics.decisions)
            self._driver.start("enforce", self.setup)
            self._answered(_WARM_S)
        latencies_ms = self._answered(seconds)
        if stops and self._reader is not None:
            self._reader.close()
            self._driver.stop()
        return latencies_ms

    def _answered(self, seconds: float) -> list[int]:
        if self._reader is None:
            raise RuntimeError("the query isn't started")
        return others_answered(self._rig, self._scale, self.setup, self._reader, seconds, OTHERS_PER_S)


def _send_flood(rig: BenchmarkRig, topic: str, client_id: ClientIds, done: Event) -> None:
    producer = Producer({"bootstrap.servers": rig.servers, "linger.ms": 5})
    start_s, sent = time.monotonic(), 0
    while not done.wait(_TICK_S):
        due = int((time.monotonic() - start_s) * FLOOD_PER_S)
        for number in range(sent, due):
            value = (
                f'{{"timestamp_ms":{now_ms()},"user":"flood","client_id":"{client_id(number)}",'
                '"api":"CreateTopics","mutations":[{"topic":"new","partitions":1}]}'
            )
            producer.produce(topic, value.encode(), f"flood|{number}".encode())
        sent = due
        producer.poll(0)
    producer.flush()


def _at(latencies_ms: list[int], percentile: int) -> float:
    return float(np.percentile(latencies_ms, percentile))
