"""Forged records in the job's own topics: the audit query goes on, and the books balance with them."""

import json
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from scripts.testbed.reconciliation import audited, reconcile, reconcile_counts
from sluice.kafka_io.clock import now_ms
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

REQUESTS = 20
LATER = REQUESTS + 1
"""Offset of an event that isn't published yet when its answer is forged."""
FORGED_LETTERS: list[bytes | None] = [
    b'{"source": {"topic": "t", "partition": 0, "offset": 1}, "error": {"problem": "p"}, "value": "A"}',
    None,
]


def forged_decisions(genuine: bytes) -> list[bytes | None]:
    """No decision, one with a time that no table holds, and answers to an event that has one and to one to come."""
    decision = json.loads(genuine)
    topic, partition, _ = decision["decision_id"].rsplit("-", 2)
    return [
        b"junk",
        b'{"unknown": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        json.dumps(decision | {"timestamp_ms": 9 * 10**17}).encode(),
        json.dumps(decision | {"user": "mallory"}).encode(),
        json.dumps(decision | {"user": "mallory", "decision_id": f"{topic}-{partition}-{LATER}"}).encode(),
    ]


@pytest.fixture
def job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    process = JobProcess(tmp_path_factory.mktemp("unreadable"), kafka_broker, [], audit=AUDITED)
    process.start()
    yield process
    process.stop()


def test_forged_records_are_kept_apart_and_every_answer_is_one_row(job: JobProcess) -> None:
    """In the tables, and in the counts of reconciliation."""
    topics, delta = job.settings.topics, job.settings.delta
    at_ms = now_ms()  # given, because a simulation doesn't know the records' times
    event = b'{"api": "Metadata", "user": "alice", "request_time_ns": %d, "timestamp_ms": %d}'
    job.publish(event % (number, at_ms) for number in range(REQUESTS))
    job.answered(REQUESTS)
    genuine = job.topic(topics.decisions)[0]
    decisions = forged_decisions(genuine.value)
    with KafkaProducer(bootstrap_servers=job.settings.kafka["bootstrap.servers"]) as producer:
        for topic, values in ((topics.decisions, decisions), (topics.dead_letters, FORGED_LETTERS)):
            for value in values:
                producer.send(topic, value=value, key=b"forged")
        producer.flush()
    forged = len(decisions) + len(FORGED_LETTERS)
    wait_until(lambda: audited(job.settings) >= REQUESTS + forged, 120)
    job.publish(event % (number, at_ms) for number in range(REQUESTS, LATER + 1))
    total = LATER + 1

    wait_until(lambda: audited(job.settings) >= total + forged, 120)

    found = reconcile(job.settings)
    assert (found.requests, found.decisions, found.unreadable, found.balanced) == (total, total, forged, True)
    assert reconcile_counts(job.settings).balanced
    kept = DeltaTable(delta.unreadable).to_pyarrow_dataset().to_table().to_pylist()
    assert {row["value"] for row in kept} == {*decisions, *FORGED_LETTERS}
    assert {row["key"] for row in kept} == {b"forged"}
    written = DeltaTable(delta.decisions).to_pyarrow_dataset().to_table(columns=["source_offset", "user"]).to_pylist()
    assert sorted((row["source_offset"], row["user"]) for row in written) == [(n, "alice") for n in range(total)]
    assert any("are unreadable" in entry["message"] for entry in job.log())
