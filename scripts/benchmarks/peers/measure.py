"""Sluice beside Kafka Streams and Quix Streams: the same requests and decisions, on the same broker and cores."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
import numpy as np
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, TopicPartition
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from gateways.client.clock import now_ms
from scripts.benchmarks.events import ONE_CHARGE, Users, spread
from scripts.benchmarks.latency import answered
from scripts.benchmarks.peers.systems import KafkaStreams, Quix, Sluice, System, running
from scripts.benchmarks.report import Bar, Findings, at_least, at_most
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Scale, Setup
from state.arithmetic.charge import Charge
from state.arithmetic.counter import EntityCounters
from state.decisions.request import Request
from state.quotas.kinds import QuotaSettings

_EXACTLY_ONCE, _AT_LEAST_ONCE = KafkaStreams("exactly_once_v2"), KafkaStreams("at_least_once")
_THROUGHPUT_BARS = {_EXACTLY_ONCE.name: at_least(1.0), Quix().name: at_least(2.0)}
_RESTART_BAR = at_most(1.5)
_RATE_PER_S = 1_000
_WARM_S = 30.0
_QUICK_COMMIT_S = 0.1  # as Kafka Streams commits with exactly_once_v2
_BUSY_USERS, _BUSY_EVENTS = 50, 5_000
_WAITING_EVENTS = 1_000
_QUIET_S = 3.0
_POLL_S = 0.2
_MOST_S = 1_200.0
_FIRST_DECISION_S = 180.0


class Decided(NamedTuple):
    """What all systems must say of a request."""

    throttle_ms: int
    tokens: float


class _DecidedCharge(msgspec.Struct):
    tokens: float


class _Decision(msgspec.Struct):
    request_id: str
    throttle_time_ms: int
    charges: tuple[_DecidedCharge, ...]


_decision = msgspec.json.Decoder(_Decision).decode


def measure_peers(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(i) throughput, latency at 1 000 requests/s and restart of each system, in turns."""
    sluice = Sluice(rig)
    _measure_throughput(rig, scale, findings, [sluice, _EXACTLY_ONCE, _AT_LEAST_ONCE, Quix()])
    quick: list[System] = [sluice, _EXACTLY_ONCE, _AT_LEAST_ONCE, Quix(_QUICK_COMMIT_S)]
    _measure_latency(rig, scale, findings, quick)
    _measure_restart(rig, scale, findings, quick)


def decisions_of(events: Iterable[tuple[bytes, bytes]], settings: QuotaSettings) -> dict[str, Decided]:
    """What Sluice's own arithmetic decides on events of one charge in this order, by request id."""
    (quota,) = ONE_CHARGE.quotas
    counters: dict[str, EntityCounters] = {}
    parse, found = msgspec.json.Decoder(Request).decode, {}
    for _, value in events:
        request = parse(value)
        amounts = [float(mutation.partitions) for mutation in request.mutations]
        charge = Charge(quota.kind, "", quota.value, False, amounts, strict=True)
        entity = counters.setdefault(request.user or "", EntityCounters())
        outcome = entity.charge(charge, request.timestamp_ms or 0, settings)
        found[request.request_id or ""] = Decided(outcome.wait_ms, outcome.tokens or 0.0)
    return found


def check_decisions(name: str, found: Iterable[bytes], wanted: Mapping[str, Decided]) -> None:
    """Each request has its decision, and each decision is the wanted one. Raises BenchError, which names the first."""
    missing = set(wanted)
    for value in found:
        decision = _decision(value)
        decided = Decided(decision.throttle_time_ms, decision.charges[0].tokens)
        if (right := wanted.get(decision.request_id)) != decided:
            raise BenchError(f"{name} decides {decided} on request {decision.request_id}, which is {right}")
        missing.discard(decision.request_id)
    if missing:
        raise BenchError(f"{name} has no decision on {len(missing)} requests, such as {min(missing)}")


def steady_per_s(appended_ms: Sequence[int], warm: int) -> float:
    """Decisions/s after the first `warm`, by the times (ms) at which the broker got them.

    Ten decisions a second after the first two give 10.

    >>> steady_per_s([0, 0, *range(100, 1001, 100)], warm=2)
    10.0
    """
    times_ms = np.sort(np.asarray(appended_ms))
    return float((len(times_ms) - warm) * 1000.0 / (times_ms[-1] - times_ms[warm - 1]))


def _measure_throughput(rig: BenchmarkRig, scale: Scale, findings: Findings, systems: Sequence[System]) -> None:
    """Each system decides the same backlog, some of it throttled; its first half and the warm batches don't count."""
    requests, counted = "peers-requests", scale.batch_events * (scale.batches - scale.warm)
    users = np.concatenate([spread(_BUSY_EVENTS, _BUSY_USERS), spread(2 * scale.events, scale.users)])
    events = list(ONE_CHARGE.backlog(users, now_ms()))
    found: dict[str, list[float]] = {system.name: [] for system in systems}
    wanted: dict[str, Decided] = {}
    for run in range(scale.runs):
        for number, system in enumerate(systems):
            setup = _setup(rig, scale, f"peers-{number}-{run}", requests)
            if not wanted:
                rig.publish(requests, events)
                wanted = decisions_of(events, setup.settings.quota)
            with running(system, setup):
                _wait_for_decisions(rig, setup, len(events))
            records = _all_records(rig, setup)
            check_decisions(system.name, (record.value() or b"" for record in records), wanted)
            appended_ms = [_appended_ms(record) for record in records]
            found[system.name].append(steady_per_s(appended_ms, len(appended_ms) - counted))
    _report(findings, "Peers, throughput with 1 charge", "throughput", "requests/s", found, _THROUGHPUT_BARS)


def _measure_latency(rig: BenchmarkRig, scale: Scale, findings: Findings, systems: Sequence[System]) -> None:
    """p50 and p99 at 1 000 requests/s, after a warm-up."""
    found: dict[int, dict[str, list[float]]] = {50: {}, 99: {}}
    for run in range(scale.runs):
        for number, system in enumerate(systems):
            name = f"peers-latency-{number}-{run}"
            setup = _setup(rig, scale, name, f"{name}-requests")
            reader = rig.reader(setup.settings.topics.decisions)
            try:
                with running(system, setup):
                    answered(rig, scale, setup, reader, _RATE_PER_S, min(scale.warm_s, _WARM_S))
                    latencies_ms = answered(rig, scale, setup, reader, _RATE_PER_S, scale.latency_s)
            finally:
                reader.close()
            for percentile, values in found.items():
                values.setdefault(system.name, []).append(float(np.percentile(latencies_ms, percentile)))
    for percentile, values in found.items():
        section = f"Peers, p{percentile} latency at {_RATE_PER_S} requests/s"
        _report(findings, section, f"p{percentile} latency", "ms", values, {})


def _measure_restart(rig: BenchmarkRig, scale: Scale, findings: Findings, systems: Sequence[System]) -> None:
    """From the start of the process to the first decision, with the most known entities and with one."""
    most = max(scale.known)
    found: dict[int, dict[str, list[float]]] = {1: {}, most: {}}
    for number, system in enumerate(systems):
        for known, values in found.items():
            name = f"peers-restart-{number}-{known}"
            setup = _setup(rig, scale, name, f"{name}-requests")
            _decide(rig, system, setup, spread(known, known))
            values[system.name] = [
                _restart_s(rig, system, setup, spread(_WAITING_EVENTS, max(known, _WAITING_EVENTS), known))
                for _ in range(scale.runs)
            ]
    section = "Peers, start of the process to the first decision"
    for name in found[most]:
        with_most = findings.add(section, f"{name}, {most} known", "s", found[most][name])
        with_one = findings.add(section, f"{name}, 1 known", "s", found[1][name])
        bar = _RESTART_BAR if name == Sluice.name else None
        findings.compare(f"{name}, {most} / 1 known entities, restart", with_most, with_one, bar)


def _decide(rig: BenchmarkRig, system: System, setup: Setup, users: Users) -> None:
    """Publish a request of each user, and let the system decide all of them."""
    rig.publish(setup.settings.topics.requests, ONE_CHARGE.backlog(users, now_ms()))
    with running(system, setup):
        _wait_for_decisions(rig, setup, len(users))


def _restart_s(rig: BenchmarkRig, system: System, setup: Setup, users: Users) -> float:
    """Seconds from the start of the process to the first decision on waiting requests of these users."""
    rig.publish(setup.settings.topics.requests, ONE_CHARGE.backlog(users, now_ms()))
    reader = rig.reader(setup.settings.topics.decisions)
    try:
        start_s = time.monotonic()
        with running(system, setup):
            while not reader.consume(1, timeout=0.05):
                if time.monotonic() > start_s + _FIRST_DECISION_S:
                    raise BenchError(f"{system.name} has no decision in {_FIRST_DECISION_S:.0f} s after a restart")
            taken_s = time.monotonic() - start_s
            _wait_for_decisions(rig, setup, 0)
    finally:
        reader.close()
    return taken_s


def _setup(rig: BenchmarkRig, scale: Scale, name: str, requests: str) -> Setup:
    """A setup whose decisions carry the time at which the broker got them."""
    setup = rig.setup(name, requests, ONE_CHARGE.quotas, enforce={"max_offsets_per_trigger": scale.batch_events})
    changed = {"message.timestamp.type": "LogAppendTime"}
    topic = ConfigResource(ConfigResourceType.TOPIC, setup.settings.topics.decisions, configs=changed)
    with closing(KafkaAdminClient(bootstrap_servers=rig.servers)) as admin:
        admin.alter_configs([topic])
    return setup


def _wait_for_decisions(rig: BenchmarkRig, setup: Setup, events: int) -> None:
    """Wait until the decisions topic has so many records and gets no more. Raises BenchError if that takes too long.

    It looks at the ends of partitions alone, so that nobody competes for the cores. The end of a transaction is a
    record too.
    """
    topic, deadline_s = setup.settings.topics.decisions, time.monotonic() + _MOST_S
    consumer = rig.reader(topic)
    try:
        partitions = consumer.assignment()
        seen, since_s = -1, time.monotonic()
        while seen < events or time.monotonic() < since_s + _QUIET_S:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{topic} has {seen} decisions of {events} after {_MOST_S:.0f} s")
            time.sleep(_POLL_S)
            end = sum(_end(consumer, partition) for partition in partitions)
            if end != seen:
                seen, since_s = end, time.monotonic()
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(partition, timeout=30)[1])


def _all_records(rig: BenchmarkRig, setup: Setup) -> list[Message]:
    """All records of the decisions topic; those of a transaction if it was committed."""
    consumer = rig.reader(setup.settings.topics.decisions)
    try:
        partitions = consumer.assignment()
        ends = {partition.partition: partition.offset for partition in partitions}
        for partition in partitions:
            partition.offset = 0
        consumer.assign(partitions)
        records: list[Message] = []
        while any(place.offset < ends[place.partition] for place in consumer.position(partitions)):
            records += consumer.consume(10_000, timeout=5.0)
        return records
    finally:
        consumer.close()


def _appended_ms(record: Message) -> int:
    kind, time_ms = record.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise BenchError("a decision has no time of the broker")
    return int(time_ms)


def _report(
    findings: Findings,
    section: str,
    what: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    bars: Mapping[str, Bar],
) -> None:
    """Each system's figure, and Sluice's compared with each other one."""
    figures = {name: findings.add(section, name, unit, values) for name, values in found.items()}
    sluice = figures.pop(Sluice.name)
    for name, figure in figures.items():
        findings.compare(f"Sluice / {name}, {what}", sluice, figure, bars.get(name))
