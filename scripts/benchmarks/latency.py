"""Latency: from the timestamp of a request event to the moment when a gateway has the decision."""

import re
import time
from collections.abc import Iterator
from itertools import product
from threading import Thread

import numpy as np
from confluent_kafka import Consumer, Producer

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.report import Figure, Findings, at_most
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Drivers, Scale, Setup, SparkDriver
from scripts.benchmarks.throughput import copy_padding
from sluice.kafka_io.clock import now_ms

_PERCENTILES = (50, 95, 99)
_BAR = 2.0
_BAR_PERCENTILES = (50, 99)
_ENFORCE, _COPY = "enforce", "copy"
_COPIES = (_COPY, "copy in the job's session")

_WARM_S = 3.0  # of requests to a new query that don't count; all of them are answered before the measurement
_ANSWER_S = 60.0
_TICK_S = 0.002
_SENT = re.compile(rb'"timestamp_ms":(\d+)')


def measure_latency(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(b) p50, p95 and p99 at steady rates, alternating between enforce and copies."""
    for rate_per_s in scale.rates_per_s:
        found: dict[tuple[str, int], list[float]] = {}
        with rig.driver() as job, rig.driver() as stock:
            for run in range(scale.runs + 1):
                name = f"latency-{rate_per_s}-{run}"
                setup = rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas)
                if run == 0:
                    job.session(setup)
                    stock.session(setup, stock=True)
                warm_s = scale.warm_s if run == 0 else _WARM_S
                for query, latencies_ms in _queries(rig, scale, Drivers(job, stock), setup, rate_per_s, warm_s):
                    if run == 0:
                        continue
                    for percentile in _PERCENTILES:
                        value = float(np.percentile(latencies_ms, percentile))
                        found.setdefault((query, percentile), []).append(value)
        _report(findings, rate_per_s, found)


def _queries(
    rig: BenchmarkRig, scale: Scale, drivers: Drivers, setup: Setup, rate_per_s: int, warm_s: float
) -> Iterator[tuple[str, list[int]]]:
    """Each query and its latencies in ms; the copies come last, for their records are as large as the decisions."""
    yield _ENFORCE, _run(rig, scale, drivers.job, setup, rate_per_s, warm_s, _ENFORCE)
    padding_bytes = copy_padding(rig, setup, ONE_CHARGE)
    for copy, driver in zip(_COPIES, (drivers.stock, drivers.job), strict=True):
        copied = _with_new_requests(rig, setup, copy)
        arguments = {"checkpoint": str(copied.file.parent / "copy"), "padding_bytes": padding_bytes}
        yield copy, _run(rig, scale, driver, copied, rate_per_s, warm_s, "copy", **arguments)


def _run(
    rig: BenchmarkRig,
    scale: Scale,
    driver: SparkDriver,
    setup: Setup,
    rate_per_s: int,
    warm_s: float,
    query: str,
    **arguments: object,
) -> list[int]:
    """Latencies in ms of the requests that one query answered after its warm-up."""
    reader = rig.reader(setup.settings.topics.decisions)
    try:
        driver.start(query, setup, **arguments)
        answered(rig, scale, setup, reader, rate_per_s, warm_s)
        latencies_ms = answered(rig, scale, setup, reader, rate_per_s, scale.latency_s)
    finally:
        reader.close()
    driver.stop()
    return latencies_ms


def answered(
    rig: BenchmarkRig, scale: Scale, setup: Setup, reader: Consumer, rate_per_s: int, seconds: float
) -> list[int]:
    """Publish at the rate for some seconds and wait for every answer; returns the latencies in ms."""
    events = int(seconds * rate_per_s)
    sender = Thread(target=_send, args=(rig, scale, setup.settings.topics.requests, events, rate_per_s))
    sender.start()
    latencies_ms = _latencies_ms(reader, events, time.monotonic() + seconds + _ANSWER_S)
    sender.join()
    return latencies_ms


def _with_new_requests(rig: BenchmarkRig, setup: Setup, query: str) -> Setup:
    """The same output topic with a new, empty input topic: the copy must not start with the other query's input."""
    name = f"{setup.file.parent.name}-{re.sub('[^a-z]+', '-', query)}"
    return rig.setup(name, f"{name}-requests", topics={"decisions": setup.settings.topics.decisions})


def _send(rig: BenchmarkRig, scale: Scale, topic: str, events: int, rate_per_s: int) -> None:
    """Publish each event when it is due, with the current time."""
    producer = Producer({"bootstrap.servers": rig.servers, "linger.ms": 5})
    users = spread(events, scale.users).tolist()
    start, sent = time.monotonic(), 0
    while sent < events:
        due = min(events, int((time.monotonic() - start) * rate_per_s) + 1)
        for sequence in range(sent, due):
            key, value = ONE_CHARGE.event(sequence, users[sequence], now_ms())
            producer.produce(topic, value, key)
        sent = due
        producer.poll(0)
        time.sleep(_TICK_S)
    producer.flush()


def _latencies_ms(reader: Consumer, events: int, deadline: float) -> list[int]:
    latencies_ms: list[int] = []
    while len(latencies_ms) < events:
        if time.monotonic() > deadline:
            raise BenchError(f"{events - len(latencies_ms)} of {events} requests weren't answered in {_ANSWER_S:.0f} s")
        records = reader.consume(1000, timeout=0.01)
        received_ms = now_ms()
        for record in records:
            match = _SENT.search(record.value() or b"")
            if match is None:
                raise BenchError(f"an answer has no time: {record.value()!r:.200}")
            latencies_ms.append(received_ms - int(match[1]))
    return latencies_ms


def _report(findings: Findings, rate_per_s: int, found: dict[tuple[str, int], list[float]]) -> None:
    section = f"Latency at {rate_per_s} requests/s"
    figures: dict[tuple[str, int], Figure] = {
        (query, percentile): findings.add(section, f"{query} p{percentile}", "ms", values)
        for (query, percentile), values in found.items()
    }
    for copy, percentile in product(_COPIES, _PERCENTILES):
        has_bar = copy == _COPY and percentile in _BAR_PERCENTILES
        findings.compare(
            f"enforce / {copy}, p{percentile} latency at {rate_per_s}/s",
            figures[_ENFORCE, percentile],
            figures[copy, percentile],
            at_most(_BAR) if has_bar else None,
        )
