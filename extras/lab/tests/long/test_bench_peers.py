"""The peers of the bench on a real broker: each decides as Sluice does, to the last bit, also after a restart."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from sluice.configs.settings import load_settings
from sluice.state.quotas.kinds import burst
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_lab.benchmarks.events import ONE_CHARGE
from sluice_lab.benchmarks.peers.decided import (
    CHECKS,
    ComparedDecision,
    check_requests,
    check_same,
    decision,
    read_decisions,
)
from sluice_lab.benchmarks.peers.measure import (
    Application,
    KafkaStreams,
    Peer,
    compile_peer,
    plain_loop,
    quix_python,
    quix_streams,
)

pytestmark = pytest.mark.kafka

Records = Sequence[tuple[bytes, bytes]]

BEFORE = 400
"""Requests before the restart."""


@pytest.fixture
def application(kafka_broker: str, tmp_path: Path) -> Application:
    suffix, (quota,) = uuid4().hex[:8], ONE_CHARGE.quotas
    requests, decisions = f"peer-requests-{suffix}", f"peer-decisions-{suffix}"
    with closing(KafkaAdminClient(bootstrap_servers=kafka_broker)) as admin:
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1} for topic in (requests, decisions)})
        admin.wait_for_topics([requests, decisions])
    return Application(
        name=f"peer-{suffix}",
        servers=kafka_broker,
        requests=requests,
        decisions=decisions,
        state_folder=str(tmp_path / "state"),
        partitions=2,
        limit=quota.value,
        burst=burst(load_settings(environment={}).quota.controller_window, quota.value),
    )


@pytest.fixture
def requests() -> Records:
    return list(check_requests(time.time_ns() // 1_000_000))


def test_kafka_streams_decides_as_sluice_does(application: Application, requests: Records, tmp_path: Path) -> None:
    classes = compile_peer(tmp_path)

    decided = _decided_around_a_restart(lambda: KafkaStreams(classes, tmp_path / "streams.log"), application, requests)

    check_same("Kafka Streams", decided, _sluices(requests))


@pytest.mark.long
def test_quix_streams_decides_as_sluice_does(application: Application, requests: Records, tmp_path: Path) -> None:
    python = quix_python()

    decided = _decided_around_a_restart(lambda: quix_streams(python, tmp_path), application, requests)

    check_same("Quix Streams", decided, _sluices(requests))


def test_the_plain_loop_decides_as_sluice_does(application: Application, requests: Records, tmp_path: Path) -> None:
    _publish(application, requests)
    with plain_loop(tmp_path) as peer:
        peer.start(application)
        decided = read_decisions(application.servers, application.decisions, CHECKS).decided

    check_same("the loop", decided, _sluices(requests))


def _decided_around_a_restart(
    start: Callable[[], Peer], application: Application, requests: Records
) -> dict[str, ComparedDecision]:
    """Decisions of a peer that is stopped on the way and started again without its store, so from its changelog."""
    for part, count in ((requests[:BEFORE], BEFORE), (requests[BEFORE:], CHECKS)):
        _publish(application, part)
        with start() as peer:
            peer.start(application)
            decided = read_decisions(application.servers, application.decisions, count).decided
            peer.stop()
        shutil.rmtree(application.state_folder)
    return decided


def _publish(application: Application, records: Records) -> None:
    producer = Producer({"bootstrap.servers": application.servers})
    for key, value in records:
        producer.produce(application.requests, value, key)
    producer.flush()


def _sluices(requests: Records) -> dict[str, ComparedDecision]:
    """Decisions of the job's own pipeline on these requests in this order."""
    simulation = Simulation(Quotas(ONE_CHARGE.quotas), load_settings(environment={}))
    return dict(decision(record.value) for record in simulation.decide(value for _, value in requests))
