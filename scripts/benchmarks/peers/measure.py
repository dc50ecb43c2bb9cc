"""Peers: other ways to enforce the same quota, held to the same decisions, and then measured beside Sluice."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from kafka import KafkaAdminClient

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.latency import Latencies, answered
from scripts.benchmarks.peers.decided import CHECKS, Decided, check_requests, check_same, read_decisions, steady_per_s
from scripts.benchmarks.peers.peer import (
    Application,
    Guarantee,
    KafkaStreams,
    Peer,
    QuixStreams,
    compile_peer,
    quix_python,
)
from scripts.benchmarks.report import Findings, at_least
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Driver, Setup
from scripts.benchmarks.scale import Scale
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.kinds import burst

SLUICE = "Sluice"

HELD_TO = f"Kafka Streams {Guarantee.EXACTLY_ONCE}"
"""Peer with Sluice's guarantee: the bar is against this one."""

QUIX = "Quix Streams exactly-once"

_BARS = {HELD_TO: at_least(1.0), QUIX: at_least(2.0)}
_PERCENTILES = (50, 99)
_RATE_PER_S = 1_000
_WARM_S = 3.0
_QUOTA = ONE_CHARGE.quotas[0]


@dataclass(frozen=True, slots=True)
class Field:
    """Sluice, in one Spark driver, and the peers, which are started."""

    rig: BenchmarkRig
    scale: Scale
    driver: Driver
    peers: Mapping[str, Peer]

    def names(self, warming: bool) -> list[str]:
        """Sluice and the peers, in turns; while Java warms up, without the others."""
        return [SLUICE, *(name for name, peer in self.peers.items() if peer.warms_up or not warming)]

    @contextmanager
    def running(self, name: str, setup: Setup) -> Iterator[None]:
        """Let Sluice or a peer decide the requests of this setup."""
        if name == SLUICE:
            self.driver.start("enforce", setup.file)
            yield
            self.driver.stop()
        else:
            self.peers[name].start(application(setup))
            yield
            self.peers[name].stop()


def measure_peers(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Decisions of the peers, then throughput and latency of Sluice and of them, in turns."""
    if scale.batch_events < CHECKS:
        raise BenchError(f"a micro-batch of {scale.batch_events} events is too small; give --batch-events {CHECKS}")
    with ExitStack() as stack:
        driver = stack.enter_context(rig.driver())
        peers = {name: stack.enter_context(start()) for name, start in peer_starters(rig.folder).items()}
        field = Field(rig, scale, driver, peers)
        add_throughput(findings, _measure_throughput(field))
        add_latency(findings, _measure_latency(field))


def peer_starters(folder: Path) -> Mapping[str, Callable[[], Peer]]:
    """A starter of each peer, with logs in the folder; compiled, and installed if that isn't done yet."""
    classes, python = compile_peer(folder), quix_python()
    once, least = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
    return {
        HELD_TO: lambda: KafkaStreams(classes, once, folder / "kafka-streams.log"),
        f"Kafka Streams {least}": lambda: KafkaStreams(classes, least, folder / "kafka-streams-least.log"),
        QUIX: lambda: QuixStreams(python, folder / "quix-streams.log"),
    }


def application(setup: Setup) -> Application:
    """The application with which a peer decides as Sluice does with this setup."""
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


def _measure_throughput(field: Field) -> Mapping[str, Sequence[float]]:
    """Requests/s by name. Raises BenchError if a peer decides otherwise than Sluice."""
    scale, requests = field.scale, "peers-requests"
    field.driver.session(field.rig.setup("peers", requests, ONE_CHARGE.quotas).file)
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
    return speeds


def _run(field: Field, name: str, setup_name: str, requests: str) -> tuple[float, dict[str, Decided]]:
    """Requests/s over the backlog, and the decisions."""
    rig, scale = field.rig, field.scale
    if name != SLUICE:
        _create_stamped(rig, f"{setup_name}-decisions")
    setup = rig.setup(setup_name, requests, ONE_CHARGE.quotas, enforce={"max_offsets_per_trigger": scale.batch_events})
    topic = setup.settings.topics.decisions
    if name == SLUICE:
        field.driver.start("enforce", setup.file)
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


def _measure_latency(field: Field) -> Mapping[str, Sequence[Latencies]]:
    rig, scale = field.rig, field.scale
    found: dict[str, list[Latencies]] = {}
    for run in range(scale.runs + 1):
        for number, name in enumerate(field.names(warming=run == 0)):
            setup_name = f"peers-latency-{run}-{number}"
            setup = rig.setup(setup_name, f"{setup_name}-requests", ONE_CHARGE.quotas)
            with rig.reader(setup.settings.topics.decisions) as reader, field.running(name, setup):
                answered(rig, scale, setup, reader, _RATE_PER_S, _WARM_S if run else scale.warm_s)
                latencies_ms = answered(rig, scale, setup, reader, _RATE_PER_S, scale.latency_s)
            if run:
                found.setdefault(name, []).append(latencies_ms)
    return found


def add_throughput(findings: Findings, per_s: Mapping[str, Sequence[float]]) -> None:
    """Add requests/s by name, and the ratio of Sluice's to each peer's."""
    section = "Peers: throughput, 1 charge a request"
    figures = {name: findings.add(section, name, "requests/s", values) for name, values in per_s.items()}
    sluice = figures.pop(SLUICE)
    for name, figure in figures.items():
        findings.compare(f"{SLUICE} / {name}, throughput", sluice, figure, _BARS.get(name))


def add_latency(findings: Findings, latencies_ms: Mapping[str, Sequence[Latencies]]) -> None:
    """Add p50 and p99 of each run's latencies by name, and the ratio of Sluice's to each peer's."""
    section = f"Peers: latency at {_RATE_PER_S} requests/s"
    for percentile in _PERCENTILES:
        figures = {
            name: findings.add(
                section, f"{name}, p{percentile}", "ms", [float(np.percentile(run, percentile)) for run in runs]
            )
            for name, runs in latencies_ms.items()
        }
        sluice = figures.pop(SLUICE)
        for name, figure in figures.items():
            findings.compare(f"{SLUICE} / {name}, p{percentile} latency", sluice, figure)
