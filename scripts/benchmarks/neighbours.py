"""Neighbours: how long others wait for their decisions while one user sends requests of many partitions."""

import re
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from threading import Thread

import numpy as np
from confluent_kafka import Consumer, Producer

from scripts.benchmarks.events import FOUR_CHARGES, ONE_CHARGE, Load, spread
from scripts.benchmarks.report import Findings, at_most
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Record, Scale, Setup, SparkDriver
from sluice.kafka_io.clock import now_ms

PARTITIONS = 1_000
"""Topic-partitions of a wide request: the default of enforce.max_charges_per_event."""

_WIDE_USER = "wide"
_BATCH = 100  # wide requests of a micro-batch while the capacity is measured
_BATCHES = 4
_OTHERS_PER_S = 100
_WARM_S = 3.0
_ANSWER_S = 120.0
_TICK_S = 0.005
_BAR = 2.0
_SENT = re.compile(rb'"timestamp_ms":(\d+),"user":"user-')


def measure_neighbours(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(m) p99 of others' decisions, alone and beside wide requests at half of the measured capacity, in turns."""
    capacity: list[float] = []
    p99_ms: dict[bool, list[float]] = {False: [], True: []}
    with rig.driver() as driver:
        for run in range(scale.runs + 1):
            found = _capacity(rig, driver, run)
            for beside, values in p99_ms.items():
                latencies_ms = _others(rig, scale, driver, f"neighbours-{run}-{beside}", found / 2 if beside else 0.0)
                if run:  # the first run warms Java up
                    values.append(float(np.percentile(latencies_ms, 99)))
            if run:
                capacity.append(found)
    section = f"Neighbours of a user with {PARTITIONS} partitions a request"
    findings.add(section, "capacity for the wide requests", "requests/s", capacity)
    alone = findings.add(section, f"others alone, {_OTHERS_PER_S}/s, p99", "ms", p99_ms[False])
    disturbed = findings.add(section, "others beside wide requests at half of their capacity, p99", "ms", p99_ms[True])
    findings.compare("others beside wide requests / alone, p99 latency", disturbed, alone, at_most(_BAR))


def _capacity(rig: BenchmarkRig, driver: SparkDriver, run: int) -> float:
    """Wide requests/s out of a backlog, the first micro-batch left out."""
    name = f"neighbours-{run}-capacity"
    batch = {"max_offsets_per_trigger": _BATCH}
    setup = rig.setup(name, f"{name}-requests", FOUR_CHARGES.quotas, enforce=batch)
    if run == 0:
        driver.session(setup)
    rig.publish(setup.settings.topics.requests, islice(_wide_requests(), _BATCH * _BATCHES))
    driver.start("enforce", setup)
    batches = driver.drain(_BATCH * _BATCHES)["batches"][1:]
    speeds: list[float] = [batch["events"] * 1000.0 / batch["batch_ms"] for batch in batches]
    return statistics.median(speeds)


def _others(rig: BenchmarkRig, scale: Scale, driver: SparkDriver, name: str, wide_per_s: float) -> list[int]:
    """Latencies in ms of the others' requests, after a warm-up that has wide requests too."""
    setup = rig.setup(name, f"{name}-requests", FOUR_CHARGES.quotas)
    reader = rig.reader(setup.settings.topics.decisions)
    try:
        driver.start("enforce", setup)
        with rig.sending(setup.settings.topics.requests, wide_per_s, _wide_requests()):
            others_answered(rig, scale, setup, reader, _WARM_S, _OTHERS_PER_S, FOUR_CHARGES)
            latencies_ms = others_answered(rig, scale, setup, reader, scale.latency_s, _OTHERS_PER_S, FOUR_CHARGES)
    finally:
        reader.close()
    driver.stop()
    return latencies_ms


def others_answered(
    rig: BenchmarkRig,
    scale: Scale,
    setup: Setup,
    reader: Consumer,
    seconds: float,
    per_s: int,
    load: Load = ONE_CHARGE,
) -> list[int]:
    """Publish the others' requests for some seconds and wait for every answer; returns the latencies in ms."""
    count = int(seconds * per_s)
    sender = Thread(target=_send_others, args=(rig, scale, setup.settings.topics.requests, count, per_s, load))
    sender.start()
    latencies_ms: list[int] = []
    deadline_s = time.monotonic() + seconds + _ANSWER_S
    while len(latencies_ms) < count:
        if time.monotonic() > deadline_s:
            raise BenchError(f"{count - len(latencies_ms)} of {count} requests weren't answered in {_ANSWER_S:.0f} s")
        records = reader.consume(1000, timeout=0.01)
        received_ms = now_ms()
        sent = (match for record in records if (match := _SENT.search(record.value() or b"")))
        latencies_ms += [received_ms - int(match[1]) for match in sent]
    sender.join()
    return latencies_ms


def _send_others(rig: BenchmarkRig, scale: Scale, topic: str, count: int, per_s: int, load: Load) -> None:
    producer = Producer({"bootstrap.servers": rig.servers, "linger.ms": 5})
    users = spread(count, scale.users).tolist()
    start_s = time.monotonic()
    for sequence, user in enumerate(users):
        while sequence > (time.monotonic() - start_s) * per_s:
            time.sleep(_TICK_S)
        key, value = load.event(sequence, user, now_ms())
        producer.produce(topic, value, key)
        producer.poll(0)
    producer.flush()


def _wide_requests() -> Iterator[Record]:
    """Requests of many partitions without end, all of one user and of the same partitions, each sent now."""
    touched = ",".join(f'{{"topic":"wide","partition":{number},"bytes":10}}' for number in range(PARTITIONS))
    while True:
        value = f'{{"api":"Produce","timestamp_ms":{now_ms()},"user":"{_WIDE_USER}","topic_partitions":[{touched}]}}'
        yield f"{_WIDE_USER}|".encode(), value.encode()
