"""Requests in transactions: they are charged when they are written, and markers between them change nothing."""

import json
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaProducer

from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice_demo.counts import audited
from sluice_lab.testbed.reconciliation import reconcile
from tests.commands import invoke
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TURNS = 5


def test_requests_are_charged_whatever_becomes_of_their_transaction(kafka_broker: str, tmp_path: Path) -> None:
    """One that is left open stops nobody: the requests behind it are decided, also after a new start."""
    job = JobProcess(tmp_path / "transactions", kafka_broker, [], audit=AUDITED)
    requests = job.settings.topics.requests
    ensure_topics(job.settings.topics, job.settings.kafka)

    def event(user: str) -> bytes:
        return json.dumps({"api": "Produce", "user": user, "bytes": 1000, "timestamp_ms": now_ms()}).encode()

    with connect(KafkaProducer, job.settings.kafka, transactional_id=f"{requests}-ended") as ended:
        ended.init_transactions()
        for _ in range(TURNS):
            for user, end in (("committed", ended.commit_transaction), ("aborted", ended.abort_transaction)):
                ended.begin_transaction()
                ended.send(requests, event(user), partition=0).get(60)
                end()
    left_open = connect(KafkaProducer, job.settings.kafka, transactional_id=f"{requests}-open")
    left_open.init_transactions()
    left_open.begin_transaction()
    left_open.send(requests, event("open"), partition=0).get(60)
    job.publish([event("behind")])

    job.start()
    job.answered(2 * TURNS + 2)
    job.stop()
    left_open.abort_transaction()
    left_open.close()
    job.start()
    job.publish([event("behind")])
    job.answered(2 * TURNS + 3)
    wait_until(lambda: audited(job.settings) >= 2 * TURNS + 3, 120)
    job.stop()

    users = Counter(decision["user"] for decision in job.decisions())
    assert users == {"committed": TURNS, "aborted": TURNS, "open": 1, "behind": 2}
    found = reconcile(job.settings)
    assert (found.requests, found.balanced) == (2 * TURNS + 3, True), str(found)
    assert f"0 records of {requests}" in invoke("doctor", "--config", str(job.settings_file)).output
