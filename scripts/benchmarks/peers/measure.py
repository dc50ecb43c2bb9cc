"""Peers: what others would enforce the same quota with, held to the same decisions, and then measured beside Sluice."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from kafka import KafkaAdminClient

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.latency import answered
from scripts.benchmarks.peers.decided import (
    CHECKS,
    Decided,
    check_requests,
    check_same,
    read_decisions,
    steady_per_s,
    wait_for_records,
)
from scripts.benchmarks.peers.findings import HELD_TO, QUIX, SLUICE, add_latency, add_restart, add_throughput, known
from scripts.benchmarks.peers.kafka_streams import Guarantee, KafkaStreams, compile_peer
from scripts.benchmarks.peers.peer import Application, Peer
from scripts.benchmarks.peers.quix import QuixStreams, quix_python
from scripts.benchmarks.report import Findings
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Scale, Setup, SparkDriver
from scripts.benchmarks.state import FIRST_DECISION_S, RESTART_EVENTS, Entities, first_decision, known_job, restart_s
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.kinds import burst

_RATE_PER_S = 1_000
_WARM_S = 3.0
_QUOTA = ONE_CHARGE.quotas[0]

Starters = Mapping[str, Callable[[], Peer]]
"""By name of the peer: what starts its processes."""


@dataclass(frozen=True, slots=True)
class Field:
    """Those who are measured: Sluice, in one Spark driver, and the peers, which are started."""

    rig: BenchmarkRig
    scale: Scale
    driver: SparkDriver
    peers: Mapping[str, Peer]

    def names(self, warming: bool) -> list[str]:
        """Sluice and the peers, in turns; while Java warms up, only those who do."""
        return [SLUICE, *(name for name, peer in self.peers.items() if peer.warms_up or not warming)]

    @contextmanager
    def running(self, name: str, setup: Setup) -> Iterator[None]:
        """Let Sluice or a peer decide the requests of this setup."""
        if name == SLUICE:
            self.driver.start("enforce", setup)
            yield
            self.driver.stop()
        else:
            self.peers[name].start(application(setup))
            yield
            self.peers[name].stop()


def measure_peers(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(i) the peers' decisions, then throughput, latency and restart of Sluice and of them, in turns."""
    if scale.batch_events < CHECKS:
        raise BenchError(f"a micro-batch of {scale.batch_events} events is too small; give --batch-events {CHECKS}")
    starters = peer_starters(rig.folder)
    with ExitStack() as stack:
        driver = stack.enter_context(rig.driver())
        peers = {name: stack.enter_context(start()) for name, start in starters.items()}
        field = Field(rig, scale, driver, peers)
        _measure_throughput(field, findings)
        _measure_latency(field, findings)
    _measure_restart(rig, scale, starters, findings)


def peer_starters(folder: Path) -> Starters:
    """What starts each peer, with logs in the folder; compiled, and installed if that isn't done yet."""
    classes, python = compile_peer(folder), quix_python()
    once, least = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
    return {
        HELD_TO: lambda: KafkaStreams(classes, once, folder / "kafka-streams.log"),
        f"Kafka Streams {least}": lambda: KafkaStreams(classes, least, folder / "kafka-streams-least.log"),
        QUIX: lambda: QuixStreams(python, folder / "quix-streams.log"),
    }


def application(setup: Setup) -> Application:
    """What a peer has to run to decide as Sluice with this setup."""
    settings = setup.settings
    return Application(
        name=setup.file.parent.name,
        servers=settings.kafka["bootstrap.servers"],
        requests=settings.topics.requests,
        decisions=settings.topics.decisions,
        state_folder=str(setup.file.parent / "state"),
        partitions=settings.topics.partitions,
        limit=_QUOTA.value,
        burst=burst(settings.quota.controller_window, _QUOTA.value),
    )


def _measure_throughput(field: Field, findings: Findings) -> None:
    scale, requests = field.scale, "peers-requests"
    field.driver.session(field.rig.setup("peers", requests, ONE_CHARGE.quotas))
    end_ms = now_ms()
    backlog = ONE_CHARGE.backlog(spread(scale.events - CHECKS, scale.users), end_ms)
    field.rig.publish(requests, chain(check_requests(end_ms), backlog))
    speeds: dict[str, list[float]] = {}
    for run in range(scale.warm_runs + scale.runs):
        expected: dict[str, Decided] = {}
        for number, name in enumerate(field.names(warming=run < scale.warm_runs)):
            speed, decided = _run(field, name, f"peers-{run}-{number}", requests)
            expected = expected or decided  # Sluice is the first
            check_same(name, decided, expected)
            if run >= scale.warm_runs:
                speeds.setdefault(name, []).append(speed)
    add_throughput(findings, speeds)


def _run(field: Field, name: str, setup_name: str, requests: str) -> tuple[float, dict[str, Decided]]:
    """Requests/s over the backlog, and the decisions."""
    rig, scale = field.rig, field.scale
    batch = {"max_offsets_per_trigger": scale.batch_events}
    if name != SLUICE:
        _create_stamped(rig, f"{setup_name}-decisions")
    setup = rig.setup(setup_name, requests, ONE_CHARGE.quotas, enforce=batch)
    topic = setup.settings.topics.decisions
    if name == SLUICE:
        field.driver.start("enforce", setup)
        speed = scale.steady_events_per_s(field.driver.drain(scale.events)["batches"])
        return speed, read_decisions(rig.servers, topic, scale.events).decided
    with field.running(name, setup):
        read = read_decisions(rig.servers, topic, scale.events)
    return steady_per_s(read.appended_ms, scale.warm * scale.batch_events), read.decided


def _create_stamped(rig: BenchmarkRig, topic: str) -> None:
    """Create a topic whose records the broker stamps, so that a peer's speed is known without a reader beside it."""
    spec = {
        "num_partitions": os.cpu_count() or 1,
        "replication_factor": 1,
        "configs": {"message.timestamp.type": "LogAppendTime"},
    }
    with closing(KafkaAdminClient(bootstrap_servers=rig.servers)) as admin:
        admin.create_topics({topic: spec})
        admin.wait_for_topics([topic])


def _measure_latency(field: Field, findings: Findings) -> None:
    rig, scale = field.rig, field.scale
    found: dict[str, list[list[int]]] = {}
    for run in range(scale.runs + 1):
        for number, name in enumerate(field.names(warming=run == 0)):
            setup_name = f"peers-latency-{run}-{number}"
            setup = rig.setup(setup_name, f"{setup_name}-requests", ONE_CHARGE.quotas)
            reader = rig.reader(setup.settings.topics.decisions)
            try:
                with field.running(name, setup):
                    answered(rig, scale, setup, reader, _RATE_PER_S, _WARM_S if run else scale.warm_s)
                    latencies_ms = answered(rig, scale, setup, reader, _RATE_PER_S, scale.latency_s)
            finally:
                reader.close()
            if run:
                found.setdefault(name, []).append(latencies_ms)
    add_latency(findings, _RATE_PER_S, found)


def _measure_restart(rig: BenchmarkRig, scale: Scale, starters: Starters, findings: Findings) -> None:
    """From the start of the process to the first decision on waiting requests, with one and with many known entities.

    Sluice's checkpoint outlives its machine. A peer's store doesn't: without it the changelog is read.
    """
    most = max(scale.known)
    with rig.driver() as driver:
        jobs = [known_job(rig, scale, driver, users, "peers") for users in (1, most)]
    filled = {name: [_filled(rig, start, name, users) for users in (1, most)] for name, start in starters.items()}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(scale.runs):
        for job in jobs:
            found.setdefault((SLUICE, known(job.users)), []).append(restart_s(rig, job)["start of the process"])
        for name, applications in filled.items():
            for job in applications:
                kept_s = _peer_restart_s(rig, starters[name], job, lost=False)
                found.setdefault((name, known(job.users)), []).append(kept_s)
            lost_s = _peer_restart_s(rig, starters[name], applications[-1], lost=True)
            found.setdefault((name, f"{known(most)}, store lost"), []).append(lost_s)
    add_restart(findings, most, found)


def _filled(rig: BenchmarkRig, start: Callable[[], Peer], name: str, users: int) -> Entities:
    """A peer's application that has decided one request of each of `users` users."""
    setup_name = f"{name.replace(' ', '-')}-{users}"
    job = Entities(rig.setup(setup_name, f"{setup_name}-requests", ONE_CHARGE.quotas), users)
    job.publish(rig, spread(users, users))
    with start() as peer:
        peer.start(application(job.setup))
        wait_for_records(rig.servers, job.setup.settings.topics.decisions, users)
        peer.stop()
    return job


def _peer_restart_s(rig: BenchmarkRig, start: Callable[[], Peer], job: Entities, lost: bool) -> float:
    """Seconds from the start of the process to the first decision on waiting requests."""
    reader = rig.reader(job.setup.settings.topics.decisions)
    try:
        job.publish(rig, spread(RESTART_EVENTS, max(job.users, RESTART_EVENTS), job.sent))
        wanted = application(job.setup)
        if lost:
            shutil.rmtree(wanted.state_folder)
        begun_s = time.monotonic()
        with start() as peer:
            peer.start(wanted)
            decided_s = first_decision(reader, begun_s + FIRST_DECISION_S)
            peer.stop()
    finally:
        reader.close()
    return decided_s - begun_s
