"""Forged records in the job's own topics: the audit query goes on, and the books balance with them."""

import json

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from sluice.process.clock import now_ms
from sluice_demo.counts import audited
from sluice_lab.testbed.reconciliation import reconcile, reconcile_counts
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.last]

REQUESTS = 20
FORGED_LETTERS: list[bytes | None] = [
    b'{"source": {"topic": "t", "partition": 0, "offset": 1}, "error": {"problem": "p"}, "value": "A"}',
    None,
]


def forged_decisions(genuine: bytes, later: int) -> list[bytes | None]:
    """No decision, one with a time that no table holds, and answers to an event that has one and to one to come.

    `later` is the offset of an event that isn't published yet.
    """
    decision = json.loads(genuine)
    topic, partition, _ = decision["decision_id"].rsplit("-", 2)
    return [
        b"junk",
        b'{"unknown": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        json.dumps(decision | {"timestamp_ms": 9 * 10**17}).encode(),
        json.dumps(decision | {"user": "mallory"}).encode(),
        json.dumps(decision | {"user": "mallory", "decision_id": f"{topic}-{partition}-{later}"}).encode(),
    ]


def test_forged_records_are_kept_apart_and_every_answer_is_one_row(shared_job: JobProcess) -> None:
    """In the tables, and in the counts of reconciliation."""
    job, topics, delta = shared_job, shared_job.settings.topics, shared_job.settings.delta
    at_ms = now_ms()  # given, because a simulation doesn't know the records' times
    event = b'{"api": "Metadata", "user": "forged", "request_time_ns": %d, "timestamp_ms": %d}'
    before = job.count(topics.requests)
    job.publish(event % (number, at_ms) for number in range(REQUESTS))
    published = before + REQUESTS
    job.answered(published)
    wait_until(lambda: audited(job.settings) >= published, 120)
    found_before = reconcile(job.settings)
    genuine = next(record for record in job.topic(topics.decisions) if b'"user":"forged"' in record.value)
    later = published + 1
    decisions = forged_decisions(genuine.value, later)
    with KafkaProducer(bootstrap_servers=job.settings.kafka["bootstrap.servers"]) as producer:
        for topic, values in ((topics.decisions, decisions), (topics.dead_letters, FORGED_LETTERS)):
            for value in values:
                producer.send(topic, value=value, key=b"forged")
        producer.flush()
    forged = len(decisions) + len(FORGED_LETTERS)
    wait_until(lambda: audited(job.settings) >= published + forged, 120)
    job.publish(event % (number, at_ms) for number in range(REQUESTS, REQUESTS + 2))
    total = later + 1

    wait_until(lambda: audited(job.settings) >= total + forged, 120)

    found = reconcile(job.settings)
    assert found_before.unreadable == 0
    assert (found.requests, found.unreadable, found.unaccounted, found.duplicates) == (total, forged, 0, 0)
    assert (found.decision_rows, found.dead_letter_rows) == (found.decisions, found.dead_letters)
    assert found.metered_charges == found.charges
    assert found.decisions == found_before.decisions + 2
    assert reconcile_counts(job.settings).balanced
    kept = DeltaTable(delta.unreadable).to_pyarrow_dataset().to_table().to_pylist()
    assert {row["value"] for row in kept} == {*decisions, *FORGED_LETTERS}
    assert {row["key"] for row in kept} == {b"forged"}
    written = DeltaTable(delta.decisions).to_pyarrow_dataset().to_table(columns=["source_offset", "user"]).to_pylist()
    rows = sorted(row["source_offset"] for row in written)
    assert len(rows) == len(set(rows)) == found.decisions
    ours = sorted(row["source_offset"] for row in written if row["user"] == "forged")
    assert ours == [*range(before, published), published, later]
    assert {row["user"] for row in written} & {"mallory"} == set()
    assert any("are unreadable" in entry["message"] for entry in job.log())
