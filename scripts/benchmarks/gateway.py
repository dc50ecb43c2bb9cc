"""Cost of the gateway client: python -m scripts.benchmarks.gateway [--admit] [--outage SECONDS] [--start DECISIONS]

Without arguments it measures one call of `check`. With --admit it measures one call of `admit` with 100 000 counters
known, what an event costs that is published to a real broker, and how many decisions a gateway process takes in from it
each second. With --outage it kills a real
broker and starts it again after this time while events are published, and reports the lost events and the slowest
`check` and `publish`. With --start it measures how long a new gateway takes until it is current, while so many
decisions were made each second.
"""

import logging
import statistics
import sys
import tempfile
import time
import timeit
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from kafka import KafkaProducer

from scripts.command import run_command
from scripts.testbed.broker import Broker
from scripts.testbed.reconciliation import ends
from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.event_sender import WhenFull
from sluice.gateways.client.options import GatewayOptions, StalePolicy
from sluice.gateways.client.wait_table import Wait
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topics import ensure_topics
from sluice.state.decisions.request import Request, TopicPartition
from sluice.state.decisions.wait_records import WaitRecord, wait_key, wait_value
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end

REPEATS = 9
CALLS = 200_000
NOBODY: dict[str, str] = {"bootstrap.servers": "127.0.0.1:1"}
"""An address where no broker answers: `check` doesn't need one."""
EVENTS_PER_S = 500
KEPT_WAITS = 10_000
KNOWN_CLIENTS = 50_000
"""Clients of a bench of `admit`: with two counters each, 100 000 counters are known."""
ADMIT_CALLS = 20_000
TAKEN_DECISIONS = 400_000
PUBLISHED_EVENTS = 50_000


@dataclass(frozen=True)
class GatewayBenchOptions:
    """Measure one call of `check`, or what an outage of the broker does to a gateway."""

    admit: Annotated[
        bool, typer.Option("--admit", help="Measure `admit`, publishing and the intake of decisions instead.")
    ] = False
    outage: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Measure an outage of the broker instead.")
    ] = None
    start: Annotated[
        int | None, typer.Option(min=1, metavar="DECISIONS", help="Measure a start at so many decisions a second.")
    ] = None


def run_gateway_bench(options: GatewayBenchOptions) -> int:
    """Print the figures."""
    logging.disable(logging.CRITICAL)
    if options.admit:
        measure_admit()
        measure_publish()
        measure_intake()
    elif options.outage is not None:
        measure_outage(options.outage)
    elif options.start is not None:
        measure_start(options.start)
    else:
        measure_check()
    return 0


def measure_start(decisions_per_s: int) -> None:
    """Print how long new gateways take until they know all waits: kept ones, and those of the last seconds."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        ensure_topics(settings.topics, settings.kafka)
        count = int(decisions_per_s * GatewayOptions().lookback_s)
        with closing(connect(KafkaProducer, settings.kafka, linger_ms=20, batch_size=262_144)) as producer:
            at_ms = now_ms()
            for number in range(KEPT_WAITS):
                wait = WaitRecord(at_ms + 600_000, 1_200_000, 1024.0, 9999.0, at_ms - 600_000, number)
                key = wait_key((QuotaKind.PRODUCER_BYTE_RATE, Tags(f"user-{number}")))
                producer.send(settings.topics.waits, wait_value(wait), key)
            for number in range(count):
                producer.send(settings.topics.decisions, _decision(number, at_ms), timestamp_ms=now_ms() + 600_000)
            producer.flush()
        for _ in range(3):
            start_s, cpu_s = time.monotonic(), time.process_time()
            with Gateway(settings.kafka) as gateway:
                gateway.wait_until_ready(600)
                took_s, used_s = time.monotonic() - start_s, time.process_time() - cpu_s
                read = gateway.stats().decisions
            print(f"current after {took_s:.1f} s ({used_s:.1f} s CPU): {KEPT_WAITS} kept waits, {read} decisions")


def measure_admit() -> None:
    """Print the median CPU time of one call of `admit` while 100 000 counters are known.

    Nobody waits, all wait, or nobody waits and two other gateways are alive. An addition tells how fast the machine is.
    """
    entries = [QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), kind, 1024.0) for kind in CLIENT_KINDS]
    for title, size, others in (("nobody waits", 1, ()), ("all wait", 1_000_000, ()), ("beside two", 1, ("b", "c"))):
        options = GatewayOptions(when_full=WhenFull.BLOCK, max_unsent=10_000_000, close_timeout_s=0)
        with Gateway(NOBODY, options) as gateway:
            _know_everything(gateway, entries)
            for instance in (*others, gateway.instance):
                gateway._inline._shares.gateways.take_heartbeat(instance, now_ms(), now_ms())  # noqa: SLF001
            for number in range(KNOWN_CLIENTS):
                gateway.admit(_produce(number, size))
            known, _ = gateway._inline.size()  # noqa: SLF001 # a look at all, which no caller needs
            costs_us = [_admit_us(gateway, repeat, size) for repeat in range(REPEATS)]
            calibration_ns = _calibration_ns()
        print(f"admit, {known} counters known, {title}: {statistics.median(costs_us):.1f} us", end=", ")
        print(f"an addition in a loop just then: {calibration_ns:.0f} ns")


def _calibration_ns() -> float:
    seconds = timeit.repeat("n += 1", "n = 0", timer=time.thread_time, number=5_000_000, repeat=REPEATS)
    return statistics.median(seconds) / 5_000_000 * 1e9


def _admit_us(gateway: Gateway, repeat: int, size: int) -> float:
    events = [_produce((repeat * ADMIT_CALLS + number) * 7 % KNOWN_CLIENTS, size) for number in range(ADMIT_CALLS)]
    start_s = time.thread_time()
    for event in events:
        gateway.admit(event)
    return (time.thread_time() - start_s) / ADMIT_CALLS * 1e6


def _produce(number: int, size: int) -> Request:
    touched = [TopicPartition("orders", number % 12, size)]
    return Request("Produce", user=f"user-{number}", client_id="app", topic_partitions=touched, request_time_ns=size)


def measure_publish() -> None:
    """Print the CPU time of the whole process for an event that `publish` gives to a real broker: the median of five.

    `admit` publishes too, but in a thread of its own, which the time of one call leaves out.
    """
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        ensure_topics(settings.topics, settings.kafka)
        with Gateway(settings.kafka, GatewayOptions(when_full=WhenFull.BLOCK, max_unsent=1_000)) as gateway:
            costs_us = [_publish_us(gateway) for _ in range(5)]
        print(f"publish: {statistics.median(costs_us):.1f} us, an addition in a loop: {_calibration_ns():.0f} ns")


def _publish_us(gateway: Gateway) -> float:
    before, start_s = gateway.stats().published, time.process_time()
    for number in range(PUBLISHED_EVENTS):
        gateway.publish(_produce(number, 1024))
    while gateway.stats().published < before + PUBLISHED_EVENTS:
        time.sleep(0.01)
    return (time.process_time() - start_s) / PUBLISHED_EVENTS * 1e6


def measure_intake() -> None:
    """Print how many decisions a gateway process takes in each second, from a real broker: the median of three."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        ensure_topics(settings.topics, settings.kafka)
        at_ms = now_ms()
        with closing(connect(KafkaProducer, settings.kafka, linger_ms=20, batch_size=262_144)) as producer:
            for number in range(TAKEN_DECISIONS):
                value = _decision(number, at_ms, in_line=True)
                producer.send(settings.topics.decisions, value, timestamp_ms=now_ms() + 600_000)
            producer.flush()
        rates = [_intake_per_s(settings) for _ in range(3)]
        print(f"decisions taken in: {statistics.median(rates):.0f} a second of CPU time of the process")


def _intake_per_s(settings: Settings) -> float:
    """Decisions by the CPU time that the process spends on them, from the first tenth to the last."""
    with Gateway(settings.kafka) as gateway:
        while gateway.stats().decisions < TAKEN_DECISIONS * 0.1:
            time.sleep(0.02)
        first, start_s = gateway.stats().decisions, time.process_time()
        while gateway.stats().decisions < TAKEN_DECISIONS * 0.9:
            time.sleep(0.02)
        return (gateway.stats().decisions - first) / (time.process_time() - start_s)


def _decision(number: int, at_ms: int, in_line: bool = False) -> bytes:
    """A Produce with two charges, of which every third has to wait; `in_line`: its gateway charged it too."""
    entity = {"user": f"user-{number % 5_000}", "client_id": "app"}
    wait_ms = 700 if number % 3 == 0 else 0
    charge = {"entity": entity, "matched": "user+client-id", "limit": 1024.0, "value": 512.0, "rate": 1500.5}
    decision = {
        "decision_id": f"quota-requests-0-{number}",
        "request_id": f"gateway-1-0123456789ab-{number}",
        "timestamp_ms": at_ms,
        **entity,
        "api": "Produce",
        "gateway": "gateway-1",
        "verdict": "THROTTLE" if wait_ms else "ALLOW",
        "throttle_time_ms": wait_ms,
        "mute_until_ms": at_ms + wait_ms if wait_ms else None,
        "error_code": 0,
        "topic_results": [],
        "decided_by": "producer_byte_rate" if wait_ms else None,
        "charges": [
            {"quota": "producer_byte_rate", "throttle_ms": wait_ms, "violated": bool(wait_ms), **charge},
            {"quota": "request_percentage", "throttle_ms": 0, "violated": False, **charge},
        ],
        "quota_version": 1,
        "decided_at_ms": at_ms,
    }
    if in_line:
        waits = [{"quota": "producer_byte_rate", "entity": entity, "ms": wait_ms}] if wait_ms else []
        decision |= {"instance": f"gateway-{number % 4}", "throttled_by": waits}
    return msgspec.json.encode(decision)


def measure_outage(outage_s: float) -> None:
    """Print the effects of an outage of the broker on events and calls."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        ensure_topics(settings.topics, settings.kafka)
        with Gateway(settings.kafka, GatewayOptions(close_timeout_s=60)) as gateway:
            slowest_ms = [_publish_for(gateway, 2)]
            broker.kill()
            slowest_ms.append(_publish_for(gateway, outage_s))
            waiting = gateway.stats().unsent
            restart_s = time.monotonic()
            broker.start()
            up_s = time.monotonic()
            slowest_ms.append(_publish_for(gateway, 2))
            while gateway.stats().unsent:
                time.sleep(0.01)
            drained_s = time.monotonic() - up_s
            stats = gateway.stats()
        records = sum(ends(settings, settings.topics.requests).values())
        print(f"outage {outage_s + up_s - restart_s:.1f} s at {EVENTS_PER_S} events/s; {waiting} events waited")
        print(f"published {stats.published}, failed {stats.failed}, records in the topic {records}")
        print(f"slowest check and publish: {slowest_ms[0]:.1f} ms before, {slowest_ms[1]:.1f} ms in the outage")
        print(f"nothing waited {drained_s:.1f} s after the broker was back")


def _publish_for(gateway: Gateway, seconds: float) -> float:
    """Publish at EVENTS_PER_S; returns the duration in ms of the slowest `check` and `publish`."""
    start_s, slowest_s = time.monotonic(), 0.0
    for number in range(int(seconds * EVENTS_PER_S)):
        time.sleep(max(0.0, start_s + number / EVENTS_PER_S - time.monotonic()))
        call_s = time.perf_counter()
        gateway.check("alice", "app")
        gateway.publish(Request("Produce", user=f"user-{number % 100}"))
        slowest_s = max(slowest_s, time.perf_counter() - call_s)
    return slowest_s * 1000


def measure_check() -> None:
    """Print the median cost of one call of `check` with 0 and with 100 000 counters that wait."""
    entries = [QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), kind, 1024.0) for kind in CLIENT_KINDS]
    for policy in StalePolicy:
        options = GatewayOptions(policy=policy, close_timeout_s=0)
        with Gateway(NOBODY, options) as gateway:
            _know_everything(gateway, entries)
            print(f"{policy}, nobody waits: {_cost_ns(gateway, 'user-7', 'app'):.0f} ns")
            at_ms = now_ms()
            for number in range(100_000):
                counter = (QuotaKind.PRODUCER_BYTE_RATE, Tags(f"user-{number}", "app"))
                wait = Wait(at_ms + 3_000_000 + number, (at_ms, number), 3_000_000)
                gateway._in_force.decided.take(counter, wait)  # noqa: SLF001
            for api in (None, "Produce"):
                asked = api or "any API"
                print(f"{policy}, 100000 wait, {asked}, this one too: {_cost_ns(gateway, 'user-7', 'app', api):.0f} ns")
                cost_ns = _cost_ns(gateway, "user-7", "other", api)
                print(f"{policy}, 100000 wait, {asked}, this one not: {cost_ns:.0f} ns")


def _know_everything(gateway: Gateway, entries: list[QuotaEntry]) -> None:
    """Hand the gateway these limits, and let it be current, as after reading its topics."""
    for entry in entries:
        gateway._in_force.take_limit(limit_key(entry), limit_value(entry, 1))  # noqa: SLF001 # no broker answers
    gateway._in_force.take_limit(VERSION_KEY, version_end(1, len(entries)))  # noqa: SLF001
    gateway._current.set()  # noqa: SLF001


def _cost_ns(gateway: Gateway, user: str, client_id: str, api: str | None = None) -> float:
    check = gateway.check
    seconds = timeit.repeat(lambda: check(user, client_id, api), timer=time.thread_time, number=CALLS, repeat=REPEATS)
    return statistics.median(seconds) / CALLS * 1e9


if __name__ == "__main__":
    sys.exit(run_command("gateway", GatewayBenchOptions, run_gateway_bench))
