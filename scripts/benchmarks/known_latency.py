"""Latency by the number of known entities, and what a micro-batch writes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from scripts.benchmarks.latency import answered
from scripts.benchmarks.report import Figure, Findings, at_most
from scripts.benchmarks.rig import BenchmarkRig, Scale, SparkDriver
from scripts.benchmarks.state import Entities, known_job
from sluice.streaming.checkpoint.page_count import new_pages

_RATE_PER_S = 1000
_FEW, _MANY = 10_000, 1_000_000
_BARS = {50: 1.5, 99: 2.0}
_WRITTEN_BAR = 1.3
_WARM_S = 10.0
_BATCHES = 20
_AUDIT_TRIGGER_S = 10
"""The default of `audit.trigger_s`, which most setups of the bench do without."""


def measure_known_latency(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(k) p50 and p99 with few and with many known entities, in turns, audit on; and the bytes of the changelog."""
    counts = sorted({min(scale.known[-1], _FEW), scale.known[-1]})
    latencies: dict[tuple[int, int], list[float]] = {}
    last: dict[int, int] = {}
    with rig.driver() as driver:
        jobs = [_audited_job(rig, scale, driver, count) for count in counts]
        for run in range(scale.runs + 1):
            for job in jobs:
                found_ms, last[job.users] = _run(rig, scale, driver, job)
                for percentile in _BARS if run else ():  # the first run warms Java up
                    latencies.setdefault((job.users, percentile), []).append(float(np.percentile(found_ms, percentile)))
        written = {job.users: _written_ratio(driver, job, last[job.users]) for job in jobs}
    section = f"Latency at {_RATE_PER_S} requests/s by known entities"
    figures: dict[tuple[int, int], Figure] = {
        (users, percentile): findings.add(section, f"{users} known entities, p{percentile}", "ms", values)
        for (users, percentile), values in latencies.items()
    }
    few, many = counts[0], counts[-1]
    for percentile, bound in _BARS.items():
        bar = at_most(bound) if (few, many) == (_FEW, _MANY) else None
        name = f"{many} / {few} known entities, p{percentile} latency at {_RATE_PER_S}/s"
        findings.compare(name, figures[many, percentile], figures[few, percentile], bar)
    for users, ratio in written.items():
        written_bar = at_most(_WRITTEN_BAR) if users == _MANY else None
        findings.add(section, f"{users} known entities, changelog / charged pages", "of 1", [ratio], written_bar)


def _audited_job(rig: BenchmarkRig, scale: Scale, driver: SparkDriver, users: int) -> Entities:
    """A job that knows these users, with the decisions that made them known in its tables."""
    job = known_job(rig, scale, driver, users, "latency", audit={"trigger_s": _AUDIT_TRIGGER_S})
    driver.start("audit", job.setup)
    driver.drain(users)
    return job


def _run(rig: BenchmarkRig, scale: Scale, driver: SparkDriver, job: Entities) -> tuple[list[int], int]:
    """Latencies in ms of requests of the known entities in turn, and how many the last micro-batches had."""
    settings = job.setup.settings
    reader = rig.reader(settings.topics.decisions)
    users = replace(scale, users=job.users)
    try:
        driver.start("enforce", job.setup, audited=True)
        answered(rig, users, job.setup, reader, _RATE_PER_S, _WARM_S)
        found_ms = answered(rig, users, job.setup, reader, _RATE_PER_S, scale.latency_s)
    finally:
        reader.close()
    batches = driver.stop()["batches"]
    return found_ms, sum(batch["events"] for batch in batches[-_BATCHES:])


def _written_ratio(driver: SparkDriver, job: Entities, requests: int) -> float:
    """Bytes of the changelog of the last micro-batches to those of the pages that they charged.

    They had `requests` requests, each of another entity, so nearly each charged a page of its own.
    """
    settings = job.setup.settings
    tasks = sorted(Path(settings.enforce.checkpoint).glob("state/0/[0-9]*"))
    written = sum(
        file.stat().st_size
        for task in tasks
        for file in sorted(task.glob("*.changelog"), key=lambda file: int(file.stem))[-_BATCHES:]
    )
    page_bytes = driver.state_bytes(job.setup) / min(job.users, new_pages(settings))
    return written / (requests * page_bytes)
