"""State: cost of a request by number of known entities, stored size of an entity, duration of a restart."""

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer

from scripts.benchmarks.events import ONE_CHARGE, Users, hot, spread, zipf
from scripts.benchmarks.report import Figure, Findings, at_most
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Scale, Setup, SparkDriver
from scripts.testbed.job import Json
from scripts.testbed.work_folder import folder_bytes
from sluice.kafka_io.clock import now_ms
from sluice.state.arithmetic.charge import Charge
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.store.pages import Pages

_FLAT_BAR, _RESTART_BAR, _STATE_BYTES_BAR = 1.5, 1.5, 150.0
_FLAT_FROM, _FLAT_TO = 10_000, 1_000_000
RESTART_EVENTS = 1000
"""Requests that wait at a restart: enough that every page is read."""

FIRST_DECISION_S = 180.0
"""Longest wait for the first decision after a restart."""

_ENTITIES, _ENTITIES_PER_PAGE, _EXPIRY_MS = 10_000, 50, 3_600_000
_SECONDS = 12  # after these a rate has its 11 samples of 1 s


@dataclass
class Entities:
    """A job that knows the state of `users` users; `sent` counts the requests published to it."""

    setup: Setup
    users: int
    sent: int = 0

    @property
    def requests(self) -> str:
        """The job's requests topic."""
        return self.setup.settings.topics.requests

    def publish(self, rig: BenchmarkRig, users: Users) -> None:
        """Publish one event of each of these users."""
        rig.publish(self.requests, ONE_CHARGE.backlog(users, now_ms()))
        self.sent += len(users)


def measure_known_entities(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(c) cost of a request with few and many known entities, with skewed users, and with a single one."""
    section = "Cost of a request, 1 charge"
    short = replace(scale, batches=scale.warm + 2)
    costs: dict[str, list[float]] = {}
    with rig.driver() as driver:
        jobs = [known_job(rig, scale, driver, count) for count in scale.known]
        skewed, single = known_job(rig, scale, driver, 0, "skewed"), known_job(rig, scale, driver, 0, "single")
        for run in range(scale.runs):
            loads = [(f"{job.users} known entities", job, spread(short.events, job.users, job.sent)) for job in jobs]
            loads.append((f"{scale.users} entities, zipf 1.1", skewed, zipf(short.events, scale.users, seed=run)))
            loads.append(("one hot entity", single, hot(short.events)))
            for name, job, users in loads:
                job.publish(rig, users)
                driver.start("enforce", job.setup)
                speed = short.steady_events_per_s(driver.drain(short.events)["batches"])
                costs.setdefault(name, []).append(1e6 / speed)
    figures = {name: findings.add(section, name, "µs/request", values) for name, values in costs.items()}
    _compare_costs(findings, scale, list(figures.values()))


def measure_state(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(d) bytes of state per entity, size of the checkpoint, restart with all known entities against one."""
    section = "State and restart"
    findings.add(section, "an entity with bucket and byte rate", "bytes", [_bytes_per_entity(whole=True)])
    findings.add(
        section,
        "an entity with bucket and request time",
        "bytes",
        [_bytes_per_entity(whole=False)],
        at_most(_STATE_BYTES_BAR),
    )
    most = max(scale.known)
    with rig.driver() as driver:
        none = known_job(rig, scale, driver, 1, "none")
        full = known_job(rig, scale, driver, most, "full")
        stored = driver.state_bytes(full.setup)
    findings.add(section, f"payload an entity of this run, {most} entities", "bytes", [stored / most])
    checkpoint = Path(full.setup.settings.enforce.checkpoint)
    findings.add(section, f"checkpoint with {most} entities", "MB", [folder_bytes(checkpoint) / 1e6])
    found: dict[tuple[int, str], list[float]] = {}
    for _ in range(scale.runs):
        for job in (none, full):
            for start, seconds in restart_s(rig, job).items():
                found.setdefault((job.users, start), []).append(seconds)
    figures = {
        (users, start): findings.add(section, f"{start} to first decision, {users} known", "s", values)
        for (users, start), values in found.items()
    }
    for start, bar in (("start of the process", at_most(_RESTART_BAR)), ("start of the query", None)):
        name = f"{most} / 1 known entities, {start} to first decision"
        findings.compare(name, figures[most, start], figures[1, start], bar if most == _FLAT_TO else None)


def known_job(
    rig: BenchmarkRig, scale: Scale, driver: SparkDriver, users: int, kind: str = "known", **sections: Json
) -> Entities:
    """A job that has decided one request of each of `users` users; `sections` are settings of its own."""
    name = f"{kind}-{users}-{now_ms()}"
    batch = {"max_offsets_per_trigger": scale.batch_events}
    job = Entities(rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas, enforce=batch, **sections), users)
    driver.session(job.setup)
    if users:
        job.publish(rig, spread(users, users))
        driver.start("enforce", job.setup)
        driver.drain(users)
    return job


def restart_s(rig: BenchmarkRig, job: Entities) -> dict[str, float]:
    """Seconds from the start of the process and of its query to the first decision on waiting requests."""
    reader = rig.reader(job.setup.settings.topics.decisions)
    try:
        job.publish(rig, spread(RESTART_EVENTS, max(job.users, RESTART_EVENTS), job.sent))
        process = time.monotonic()
        with rig.driver() as driver:
            driver.session(job.setup)
            query = time.monotonic()
            driver.start("enforce", job.setup)
            decided = first_decision(reader, query + FIRST_DECISION_S)
            driver.drain(RESTART_EVENTS)
    finally:
        reader.close()
    return {"start of the process": decided - process, "start of the query": decided - query}


def first_decision(reader: Consumer, deadline: float) -> float:
    """The monotonic time of the first decision that the reader gets. Raises BenchError at the deadline."""
    while time.monotonic() < deadline:
        if reader.consume(1, timeout=0.05):
            return time.monotonic()
    raise BenchError(f"no decision in {FIRST_DECISION_S} s after a restart")


def _bytes_per_entity(whole: bool) -> float:
    """Stored bytes of an entity with a token bucket and a full rate of 11 samples, of bytes (whole numbers) or not."""
    settings, page, draws = QuotaSettings(), Pages(), random.Random(1)
    rate = QuotaKind.PRODUCER_BYTE_RATE if whole else QuotaKind.REQUEST_PERCENTAGE
    for number in range(_ENTITIES):
        counters, start_ms = page.counters(f"u:user-{number * 32}"), now_ms() + draws.randrange(60_000)
        for second in range(_SECONDS):
            amounts = [float(draws.randrange(1, 10**6))] if whole else [draws.random(), draws.random() / 10]
            at_ms = start_ms + 1000 * second + draws.randrange(100)
            counters.charge(Charge(rate, "", 10_000.0, False, amounts), at_ms, settings)
        mutations = Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "", 5.0, False, [1.0], strict=True)
        counters.charge(mutations, start_ms + 1000 * _SECONDS, settings)
    pages = _ENTITIES // _ENTITIES_PER_PAGE
    return sum(map(len, page.to_bytes(range(pages), pages, _EXPIRY_MS, settings))) / _ENTITIES


def _compare_costs(findings: Findings, scale: Scale, figures: list[Figure]) -> None:
    counted = dict(zip(scale.known, figures, strict=False))
    small, large = (_FLAT_FROM, _FLAT_TO) if _FLAT_TO in counted and _FLAT_FROM in counted else (0, 0)
    if small:
        name = f"{large} / {small} known entities, cost of a request"
        findings.compare(name, counted[large], counted[small], at_most(_FLAT_BAR))
    else:
        small, large = min(scale.known), max(scale.known)
        findings.compare(f"{large} / {small} known entities, cost of a request", counted[large], counted[small])
