"""kill -9 of the job: every request still has exactly one decision, and the balances are as if nothing had happened."""

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from threading import Event

import pytest
from kafka import KafkaProducer
from msgspec import convert

from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.state.contract.records import CountedEntity
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.entity import Tags
from sluice.state.shares.counter_share import CounterShare
from sluice.state.shares.read_sums import read_sums
from sluice_demo.counts import audited
from sluice_demo.load import PRODUCER_OPTIONS, publish
from sluice_demo.load_generator import DEFAULT_MIX, LoadGenerator
from sluice_lab.testbed.reconciliation import reconcile
from sluice_lab.testbed.rig import QUOTAS
from tests.integration.job_process import AUDITED, JobProcess, Json, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize(("requests", "batch"), [(6_000, 600), pytest.param(100_000, 15_000, marks=pytest.mark.long)])
def test_many_requests_survive_kill_9_halfway(kafka_broker: str, tmp_path: Path, requests: int, batch: int) -> None:
    """Each request has one decision or dead letter in the topic and one row in Delta, the same as without a crash."""
    job = JobProcess(
        tmp_path / "crash",
        kafka_broker,
        QUOTAS,
        audit=AUDITED,
        enforce={"max_offsets_per_trigger": batch, "checkpoint": str(tmp_path / "cp")},
    )
    topics = job.settings.topics
    ensure_topics(job.settings.topics, job.settings.kafka)
    load = LoadGenerator(seed=7, users=200, clients=20, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01)
    with connect(KafkaProducer, job.settings.kafka, **PRODUCER_OPTIONS) as producer:
        publish(producer, topics.requests, load, Event(), count=requests)
        for foreign in (b"hello", b"{}", b""):  # they have no event, as sums and waits have none
            producer.send(topics.dead_letters, foreign)

    job.start()
    wait_until(lambda: job.count(topics.decisions) > requests * 0.4, 240)
    time.sleep(0.5)  # into the middle of a micro-batch; the exact moment doesn't matter
    job.kill()
    written = job.count(topics.decisions, topics.dead_letters)
    assert written < requests
    job.start()
    job.answered(requests, 240)
    wait_until(lambda: audited(job.settings) >= requests, 180)
    job.stop()

    assert max(job.batch_sizes()) == batch  # a backlog makes no larger one
    found = reconcile(job.settings)
    assert (found.requests, found.simulated, found.balanced) == (requests, True, True), str(found)
    decided = charged_by_decisions(job.decisions())
    assert charged_by_sums(record.value for record in job.topic(topics.sums)) == pytest.approx(decided)


def charged_by_decisions(decisions: Iterable[Json]) -> dict[CounterKey, float]:
    """The sum of charges of each counter with an enforced limit."""
    charged: defaultdict[CounterKey, float] = defaultdict(float)
    for decision in decisions:
        for charge in decision["charges"]:
            if charge["limit"] is not None and "mode" not in charge:
                charged[charge["quota"], Tags.of(convert(charge["entity"], CountedEntity))] += charge["value"]
    return dict(charged)


def charged_by_sums(records: Iterable[bytes]) -> dict[CounterKey, float]:
    """The same by the sums, as gateways count them: a micro-batch that was repeated counts once."""
    charged: defaultdict[CounterKey, float] = defaultdict(float)
    known: dict[CounterKey, CounterShare] = defaultdict(CounterShare)
    for record in map(read_sums, records):
        for entity in record.sums:
            for kind, decided in record.counters(entity):
                counter = (kind, entity.tags())
                if known[counter].is_new(record.job_id, record.batch or 0):
                    charged[counter] += sum(each.value for each in decided.by_gateway)
    return dict(charged)
