"""Latency: from the timestamp of a request event to the moment when a gateway has the decision."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
from confluent_kafka import Consumer

from sluice.process.clock import now_ms
from sluice_demo.job import Json
from sluice_lab.benchmarks.events import ONE_CHARGE, Load, spread
from sluice_lab.benchmarks.report import Bar, Findings, at_most
from sluice_lab.benchmarks.rig import BenchError, BenchmarkRig, Driver, Record, Setup
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.benchmarks.throughput import copy_padding
from sluice_lab.testbed.hdfs import Hdfs
from sluice_lab.testbed.object_store import ObjectStore

_QUOTAS = ONE_CHARGE.quotas
_BARS = {1_000: {50: at_most(0.95), 99: at_most(1.0)}, 5_000: {50: at_most(1.2)}}
"""Requests/s -> percentile -> bar of the ratio to the copy."""
_RATES_PER_S = (100, 1_000, 5_000)
WARM_S = 3.0  # of requests to a new query that don't count; all of them are answered before the measurement
_ANSWER_S = 120.0
CPU_OF_BATCH = "enforce, CPU of a micro-batch"
_SENT = re.compile(rb'"timestamp_ms":(\d+)')
_USER = b'"user":"user-'  # apart, because each peer has its own order of fields

_KNOWN_RATE_PER_S = 1000
_FEW, _MANY = 10_000, 1_000_000
_KNOWN_BARS = {50: at_most(1.1), 99: at_most(2.0)}
_KNOWN_WARM_S = 10.0
_AUDIT_TRIGGER_S = 10
"""Default of `audit.trigger_s`, which other setups of the bench do without."""

Latencies = list[int]
"""Milliseconds, one for each answered request."""


def measure_latency(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p50, p95 and p99 at steady rates, in turns for enforce and a copy whose records are as large as the decisions.

    The copy has an empty requests topic of its own, so that it doesn't start with the other query's input.
    """
    with rig.driver() as job, rig.driver() as stock:
        for rate_per_s in scale.rates or ((1_000,) if scale.quick else _RATES_PER_S):
            found: dict[str, list[Latencies]] = {"enforce": [], "copy": []}
            stopped: list[Json] = []
            for run in range(scale.runs + 1):
                name = f"latency-{rate_per_s}-{run}"
                setup = rig.setup(name, f"{name}-requests", _QUOTAS)
                topics = {"decisions": setup.settings.topics.decisions}
                copied = rig.setup(f"{name}-copy", f"{name}-copy-requests", topics=topics)
                if run == 0:  # which warms Java up
                    job.session(setup.file)
                    stock.session(setup.file, stock=True)
                warm_s = WARM_S if run else scale.warm_s
                start = partial(job.start, "enforce", setup.file)
                stop = partial(_keep, stopped, job.stop)
                enforce = steady(rig, scale, setup, start, stop, rate_per_s, warm_s)
                start = partial(_start_copy, rig, stock, setup, copied)
                copy = steady(rig, scale, copied, start, stock.stop, rate_per_s, warm_s)
                if run:
                    found["enforce"].append(enforce)
                    found["copy"].append(copy)
            section = f"Latency at {rate_per_s} requests/s"
            bars: dict[int, Bar | None] = dict.fromkeys((50, 95, 99))
            add_latencies(findings, section, found, bars | _BARS.get(rate_per_s, {}))
            findings.add(section, CPU_OF_BATCH, "ms", [cpu_of_batch_ms(run) for run in stopped[1:]])


def cpu_of_batch_ms(stopped: Json) -> float:
    """CPU milliseconds of a micro-batch of a driver that was stopped, without those of Java's compiler.

    >>> cpu_s = {"java_cpu_s": 6.0, "compiler_cpu_s": 2.0, "python_cpu_s": 1.0}
    >>> cpu_of_batch_ms(cpu_s | {"batches": [{"batch_id": 48}, {"batch_id": 49}]})
    100.0
    """
    spent_s = stopped["java_cpu_s"] + stopped["python_cpu_s"] - stopped["compiler_cpu_s"]
    return float(1000 * spent_s / (stopped["batches"][-1]["batch_id"] + 1))


def _keep(stopped: list[Json], stop: Callable[[], Json]) -> None:
    """Stop a driver and keep what it has spent."""
    stopped.append(stop())


def _start_copy(rig: BenchmarkRig, stock: Driver, setup: Setup, copied: Setup) -> None:
    """Start the copy with records as large as the decisions of `setup`."""
    stock.start_copy(copied.file, copied.file.parent / "copy", copy_padding(rig, setup, ONE_CHARGE))


def add_latencies(
    findings: Findings, section: str, found: Mapping[str, Sequence[Latencies]], bars: Mapping[int, Bar | None]
) -> None:
    """Add percentiles of each run's latencies, and their ratios: of the first name to each of the others, with bars."""
    for percentile, bar in bars.items():
        figures = []
        for name, runs in found.items():
            values = [float(np.percentile(run, percentile)) for run in runs]
            figures.append(findings.add(section, f"{name}, p{percentile}", "ms", values))
        first, *others = figures
        for other in others:
            findings.compare(f"{section}: {first.name} / {other.name}", first, other, bar)


def steady(
    rig: BenchmarkRig,
    scale: Scale,
    setup: Setup,
    start: Callable[[], object],
    stop: Callable[[], object],
    rate_per_s: float,
    warm_s: float,
    load: Load = ONE_CHARGE,
    users: int | None = None,
) -> Latencies:
    """Start a program that decides with this setup, warm it up, measure it, and stop it."""
    with rig.reader(setup.settings.topics.decisions) as reader:
        start()
        ask = partial(answered, rig, scale, setup, reader, rate_per_s, load=load, users=users)
        ask(warm_s)
        latencies_ms = ask(scale.latency_s)
    stop()
    return latencies_ms


def answered(
    rig: BenchmarkRig,
    scale: Scale,
    setup: Setup,
    reader: Consumer,
    rate_per_s: float,
    seconds: float,
    load: Load = ONE_CHARGE,
    users: int | None = None,
) -> Latencies:
    """Publish requests of users in turn at the rate for some seconds, and wait for every answer.

    Answers to others are left out: those whose user isn't `user-` and a number.
    """
    events = int(seconds * rate_per_s)
    latencies_ms: Latencies = []
    deadline_s = time.monotonic() + seconds + _ANSWER_S
    with rig.sending(
        setup.settings.topics.requests, rate_per_s, requests_of(load, spread(events, users or scale.users))
    ):
        while len(latencies_ms) < events:
            if time.monotonic() > deadline_s:
                missing = events - len(latencies_ms)
                raise BenchError(f"{missing} of {events} requests weren't answered in {_ANSWER_S:.0f} s")
            records = reader.consume(1000, timeout=0.01)
            received_ms = now_ms()
            values = [value for record in records if _USER in (value := record.value() or b"")]
            sent = (match for value in values if (match := _SENT.search(value)))
            latencies_ms += [received_ms - int(match[1]) for match in sent]
    return latencies_ms


def requests_of(load: Load, users: list[int]) -> Iterator[Record]:
    """Requests of these users, each with the time at which it is taken."""
    for sequence, user in enumerate(users):
        yield load.event(sequence, user, now_ms())


def measure_tracked(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p50 and p99 with few and with many tracked entities, in turns, with the audit query."""
    few, many = _FEW, scale.of(50_000, _MANY)
    found: dict[str, list[Latencies]] = {f"{many} tracked": [], f"{few} tracked": []}
    with rig.driver() as driver:
        jobs = {users: _filled_job(rig, scale, driver, users) for users in sorted({few, many})}
        for run in range(scale.runs + 1):  # the first run warms Java up
            warm_s = _KNOWN_WARM_S if run else max(_KNOWN_WARM_S, scale.warm_s)
            for users, setup in jobs.items():
                start = partial(driver.start, "enforce", setup.file, audited=True)
                latencies_ms = steady(rig, scale, setup, start, driver.stop, _KNOWN_RATE_PER_S, warm_s, users=users)
                if run:
                    found[f"{users} tracked"].append(latencies_ms)
    bars = _KNOWN_BARS if many == _MANY else dict.fromkeys(_KNOWN_BARS)
    add_latencies(findings, f"Latency at {_KNOWN_RATE_PER_S} requests/s by tracked entities", found, bars)


def _filled_job(rig: BenchmarkRig, scale: Scale, driver: Driver, users: int) -> Setup:
    """A job that has decided one request of each of these users, with the decisions in its tables."""
    name = f"tracked-{users}"
    batch = {"max_offsets_per_trigger": scale.batch_events}
    audit = {"trigger_s": _AUDIT_TRIGGER_S}
    setup = rig.setup(name, f"{name}-requests", _QUOTAS, enforce=batch, audit=audit)
    driver.session(setup.file)
    rig.publish_backlog(setup.settings.topics.requests, ONE_CHARGE, spread(users, users))
    for query in ("enforce", "audit"):
        driver.start(query, setup.file)
        driver.drain(users)
    return setup


_RATE_PER_S = 1_000
_DELAY_S = 0.02
_PERCENTILES = (50, 99)
_BAR = at_most(3.0)


class _Place(NamedTuple):
    """Where checkpoints are: a URI to begin with, None for the disk, and the settings that it needs."""

    name: str
    url: str | None
    settings: dict[str, Json]
    driver: Driver
    delay_s: float = 0.0


def measure_storage(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p50 and p99 of the enforce query at 1 000 requests/s, in turns; the store is in Python, and shares the cores."""
    with ExitStack() as stack:
        hdfs = stack.enter_context(Hdfs(rig.folder / "hdfs", 1))
        store = stack.enter_context(ObjectStore(rig.folder / "store"))
        disk, on_hdfs, on_store = (stack.enter_context(rig.driver()) for _ in range(3))
        places = (
            _Place("disk", None, {}, disk),
            _Place("HDFS", hdfs.url, {}, on_hdfs),
            _Place("S3", store.url, store.settings(), on_store),
            _Place(f"S3 that answers in {_DELAY_S * 1000:.0f} ms", store.url, store.settings(), on_store, _DELAY_S),
        )
        for rate_per_s in scale.rates or (_RATE_PER_S,):
            found: dict[tuple[str, int], list[float]] = {}
            for run in range(scale.runs + 1):  # the first one warms Java up
                for place in places:
                    store.misbehave(delay_s=place.delay_s)
                    latencies_ms = _latencies_ms(rig, scale, place, rate_per_s, run)
                    for percentile in _PERCENTILES if run else ():
                        value = float(np.percentile(latencies_ms, percentile))
                        found.setdefault((place.name, percentile), []).append(value)
            section = f"Latency at {rate_per_s} requests/s by the storage of checkpoints"
            figures = {
                key: findings.add(section, f"{key[0]}, p{key[1]}", "ms", values) for key, values in found.items()
            }
            for place in places[1:]:
                name = f"checkpoints on {place.name} / on disk, p50 latency at {rate_per_s}/s"
                findings.compare(name, figures[place.name, 50], figures["disk", 50], _BAR)


def _latencies_ms(rig: BenchmarkRig, scale: Scale, place: _Place, rate_per_s: int, run: int) -> Latencies:
    """Those of a new query on a new checkpoint."""
    name = f"storage-{rate_per_s}-{run}-{place.name.replace(' ', '-')}"
    checkpoints = {
        query: {"checkpoint": f"{place.url}/{name}/{query}"} for query in ("enforce", "audit") if place.url is not None
    }
    setup = rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas, **checkpoints, **place.settings)
    if run == 0 and not place.delay_s:
        place.driver.session(setup.file)
    start = partial(place.driver.start, "enforce", setup.file)
    return steady(rig, scale, setup, start, place.driver.stop, rate_per_s, WARM_S if run else scale.warm_s)
