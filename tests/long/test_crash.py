"""kill -9 of the job: every request still has exactly one decision, and the balances are as if nothing had happened."""

import json
import time
from pathlib import Path
from threading import Event

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from scripts.testbed.load_generator import DEFAULT_MIX, PRODUCER_OPTIONS, LoadGenerator, publish
from scripts.testbed.reconciliation import audited, rows
from scripts.testbed.rig import QUOTAS
from sluice.configs.quotas import load_quotas_file
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline import Simulation
from tests.integration.job_process import AUDITED, JobProcess, wait_until

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
    decisions = {decision["decision_id"]: decision for decision in job.decisions()}
    letters = {letter["source"]["offset"] for letter in job.dead_letters()}
    assert job.count(topics.decisions, topics.dead_letters) == requests
    assert len(decisions) + len(letters) == requests
    assert rows(job.settings.delta.decisions) == len(decisions)
    assert rows(job.settings.delta.dead_letters) == len(letters)
    assert metric_count(job) == sum(len(decision["charges"]) for decision in decisions.values())
    events = [record.value for record in job.topic(topics.requests)]
    simulation = Simulation(Quotas(load_quotas_file(job.folder / "quotas.yaml")), job.settings)
    for record in simulation.decide(value or b"" for value in events):
        answer = json.loads(record.value)
        if "decision_id" in answer and answer["decision_id"] in decisions:
            made = decisions[answer["decision_id"]]
            assert {**made, "decided_at_ms": 0, "job_id": None} == {**answer, "decided_at_ms": 0}


def metric_count(job: JobProcess) -> int:
    table = DeltaTable(job.settings.delta.quota_metrics).to_pyarrow_dataset().to_table(["count"])
    return sum(table["count"].to_pylist())
