"""Start: from the start of a program, whose processes are all new, to its first decision."""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from confluent_kafka import Consumer

from sluice.process.clock import now_ms
from sluice_lab.benchmarks.events import ONE_CHARGE
from sluice_lab.benchmarks.peers.measure import STREAMS, KafkaStreams, application_of, compile_peer
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchError, BenchmarkRig, Setup
from sluice_lab.benchmarks.scale import Scale
from sluice_proxy.processes import Child

_FIRST_S = 180.0
_END_S = 60.0
_NEW, _AGAIN = "sluice run, new checkpoint", "sluice run, checkpoint of a run before"

Start = Callable[[ExitStack], object]
"""Starts a program; its end is left to the stack."""


def measure_start(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Seconds to the first decision of `sluice run`, on a new checkpoint and again, and of Kafka Streams, in turns.

    Topics, quotas and a request are there before the start.
    """
    classes = compile_peer(rig.folder)
    found: dict[str, list[float]] = {_NEW: [], _AGAIN: [], STREAMS: []}
    for run in range(scale.runs):
        setup, peer = (_setup(rig, f"start-{run}-{name}") for name in ("sluice", "streams"))
        job = partial(_run_job, rig, setup)
        found[_NEW].append(_first_decision_s(rig, setup, job))
        found[_AGAIN].append(_first_decision_s(rig, setup, job))
        streams = partial(KafkaStreams, classes, rig.folder / "kafka-streams.log")
        found[STREAMS].append(_first_decision_s(rig, peer, partial(_run_peer, streams, peer)))
    figures = {name: findings.add("Start: first decision", name, "s", values) for name, values in found.items()}
    findings.compare(f"Start: {_NEW} / {STREAMS}", figures[_NEW], figures[STREAMS])


def _setup(rig: BenchmarkRig, name: str) -> Setup:
    return rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas)


def _run_job(rig: BenchmarkRig, setup: Setup, stack: ExitStack) -> None:
    command = [sys.executable, "-m", "sluice.cli.main", "run", "--config", str(setup.file)]
    stack.callback(Child(command, rig.folder / "start.log").end, signal.SIGTERM, _END_S)


def _run_peer(streams: Callable[[], KafkaStreams], setup: Setup, stack: ExitStack) -> None:
    stack.enter_context(streams()).start(application_of(setup))


def _first_decision_s(rig: BenchmarkRig, setup: Setup, start: Start) -> float:
    """Seconds until the request has its decision. Raises BenchError."""
    rig.publish(setup.settings.topics.requests, ONE_CHARGE.backlog([1], now_ms()))
    with rig.reader(setup.settings.topics.decisions) as reader, ExitStack() as stack:
        begun_s = time.monotonic()
        start(stack)
        while not _is_decision(reader):
            if time.monotonic() - begun_s > _FIRST_S:
                raise BenchError(f"no decision in {_FIRST_S:.0f} s; see {rig.folder}")
        return time.monotonic() - begun_s


def _is_decision(reader: Consumer) -> bool:
    """True if the next record, which is waited for a moment, is an answer to the request."""
    return any(b'"user":"user-1"' in (record.value() or b"") for record in reader.consume(100, timeout=0.05))
