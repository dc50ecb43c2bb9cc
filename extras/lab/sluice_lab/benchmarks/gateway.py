"""Cost of the gateway client: CPU time of `admit`, of an event with its publishing, and of the sums that it reads."""

import time
from itertools import islice

from kafka import KafkaProducer

from sluice.configs.settings import Settings
from sluice.gateways.client.client import Gateway
from sluice.kafka_io.client import connect
from sluice.state.contract.records import Request, TopicPartition
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS
from sluice_demo.counts import records
from sluice_demo.gateways import gateway_options
from sluice_demo.job import wait_until
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchmarkRig
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.testbed.quotas_without_job import JobInMemory, publish_limits

CLIENTS = 50_000
"""Clients with two counters each: 100 000 counters are tracked."""

_CALLS = 20_000
_EVENTS = 100_000
_OF_BATCH = 2_000
"""Events of a micro-batch, each of another client: so many sums, and so small ones, are the most that there can be."""

_READY_S = 60.0
_LOOKBACK_S = 3_600.0
_UNSENT = 10_000_000
_QUOTAS = [QuotaEntry(QuotaEntity(user=DEFAULT, client_id=DEFAULT), kind, 1024.0) for kind in CLIENT_KINDS]
_SECTION = f"Gateway, {2 * CLIENTS} tracked counters"


def measure_gateway(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """`admit` while no client is throttled, while all are, and beside two other gateways; then reading sums."""
    settings = rig.setup("gateway", "gateway-requests").settings
    publish_limits(rig.servers, _QUOTAS, 1, {}, settings.topics.limits)
    for title, size, gateways in (
        ("no client throttled", 1, 1),
        ("all throttled", 1_000_000, 1),
        ("beside two others", 1, 3),
    ):
        options = gateway_options(settings, expected_gateways=gateways, max_unsent=_UNSENT)
        with Gateway(settings.kafka, options) as gateway:
            costs = _admissions(gateway, size, scale.runs)
        findings.add(_SECTION, f"admit, {title}", "CPU-µs", [of_call for of_call, _ in costs])
        findings.add(_SECTION, f"admit and publish, {title}", "CPU-µs", [of_process for _, of_process in costs])
    summed = _publish_sums(settings)
    findings.add(
        _SECTION, "reading an entity's sums", "CPU-µs", [_reading_us(settings, summed) for _ in range(scale.runs)]
    )


def _admissions(gateway: Gateway, size: int, runs: int) -> list[tuple[float, float]]:
    """Costs of `admit` once the gateway knows the limits and all counters."""
    wait_until(lambda: gateway.stats().limits_version is not None, _READY_S)
    _admit(gateway, CLIENTS, size)
    return [_admit(gateway, _CALLS, size) for _ in range(runs)]


def _admit(gateway: Gateway, calls: int, size: int) -> tuple[float, float]:
    """CPU time of a call in microseconds: of the calling thread, and of the process until the events are published."""
    events = [_produce(number * 7 % CLIENTS, size) for number in range(calls)]
    thread_s, process_s = time.thread_time(), time.process_time()
    for event in events:
        gateway.admit(event)
    thread_s = time.thread_time() - thread_s
    wait_until(lambda: not gateway.stats().unsent, _READY_S)
    return thread_s / calls * 1e6, (time.process_time() - process_s) / calls * 1e6


def _produce(number: int, size: int) -> Request:
    touched = [TopicPartition("orders", number % 12, size)]
    return Request("Produce", user=f"user-{number}", client_id="app", topic_partitions=touched, request_time_ns=size)


def _publish_sums(settings: Settings) -> int:
    """Publish the sums of the events that the gateways have published, as the job would. Returns their number."""
    source = [record.value for record in islice(records(settings, settings.topics.requests), _EVENTS)]
    job = JobInMemory(settings, _QUOTAS)
    with connect(KafkaProducer, settings.kafka, linger_ms=20, batch_size=262_144) as producer:
        for first in range(0, len(source), _OF_BATCH):
            for record in job.decide(source[first : first + _OF_BATCH], first)[1]:
                producer.send(settings.topics.sums, record, b"0")
    return len(source)


def _reading_us(settings: Settings, requests: int) -> float:
    """CPU time of the process for a request whose sums it reads, from the first tenth to the last."""
    with Gateway(settings.kafka, gateway_options(settings, lookback_s=_LOOKBACK_S)) as gateway:
        wait_until(lambda: gateway.stats().sums >= requests * 0.1, _READY_S)
        first, began_s = gateway.stats().sums, time.process_time()
        wait_until(lambda: gateway.stats().sums >= requests * 0.9, _READY_S)
        last, ended_s = gateway.stats().sums, time.process_time()
    return (ended_s - began_s) / (last - first) * 1e6
