"""Forged records in the job's own topics: the audit query goes on, and the books balance with them."""

import json

import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from sluice.process.clock import now_ms
from sluice.state.contract.records import MAX_TIMESTAMP_MS
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


def test_an_event_of_a_time_that_no_table_takes_is_a_dead_letter_whatever_its_records_time_is(
    shared_job: JobProcess,
) -> None:
    """It was decided, and its row was unreadable: requests were more than decisions and dead letters."""
    job, topics = shared_job, shared_job.settings.topics
    before = job.count(topics.requests)
    far = "message.timestamp.after.max.ms"  # a topic that somebody else made has no such bound
    alter(job, topics.requests, {far: str(2**63 - 1)})
    now, day_ms = now_ms(), 86_400_000
    forged = [0, 1, now - 400 * day_ms, now + 10 * day_ms, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, 9 * 10**15]
    near = [now - 20 * day_ms, now - day_ms, now + 3_600_000]
    for at_ms in (*forged, *near):
        own = b', "timestamp_ms": %d' % at_ms
        event = b'{"api": "Metadata", "user": "of %d", "request_time_ns": 1%b}'
        values = [event % (at_ms, own)] if at_ms in near else [event % (at_ms, own), event % (at_ms, b"")]
        job.publish(values, at_ms)
    total = before + 2 * len(forged) + len(near)
    alter(job, topics.requests, {far: "3600000"})

    wait_until(lambda: audited(job.settings) >= total, 120)

    letters = [each for each in job.dead_letters() if each["source"]["offset"] >= before]
    assert len(letters) == 2 * len(forged)
    assert {each["error"]["field"] for each in letters} == {"timestamp_ms"}
    found = reconcile(job.settings)
    assert (found.requests, found.unreadable, found.unaccounted, found.duplicates) == (total, 0, 0, 0), str(found)
    assert (found.decision_rows, found.dead_letter_rows) == (found.decisions, found.dead_letters)
    assert found.metered_charges == found.charges


def alter(job: JobProcess, topic: str, configs: dict[str, str]) -> None:
    """Give a topic these configs."""
    with KafkaAdminClient(bootstrap_servers=job.settings.kafka["bootstrap.servers"]) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])


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
