"""Two jobs with two checkpoints on the same topics: both decide everything, and both say so."""

import json
import urllib.request
from pathlib import Path

import pytest

from sluice_proxy.processes import free_ports
from tests.integration.job_process import TOPICS, JobProcess, Json, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def readiness(job: JobProcess) -> Json:
    with urllib.request.urlopen(f"http://127.0.0.1:{job.settings.health.port}/readyz", timeout=60) as answer:
        body: Json = json.loads(answer.read())
        return body


def test_each_of_two_jobs_on_one_topic_notices_the_other(kafka_broker: str, tmp_path: Path) -> None:
    ports = free_ports(2)
    one = JobProcess(tmp_path / "one", kafka_broker, [], health={"port": ports[0]})
    topics = {name: getattr(one.settings.topics, name) for name in TOPICS}
    two = JobProcess(tmp_path / "two", kafka_broker, [], health={"port": ports[1]}, topics=topics)
    one.start()
    try:
        one.publish([b'{"api": "Metadata"}'] * 20)
        one.answered(20)
        assert readiness(one)["foreign_decisions"]["count"] == 0

        two.start()
        one.publish([b'{"api": "Metadata"}'] * 20)
        for job in (one, two):
            wait_until(lambda job=job: readiness(job)["foreign_decisions"]["count"] >= 20, 120)  # type: ignore[misc]
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{one.settings.health.port}/metrics", timeout=60).read()
    finally:
        one.stop()
        two.stop()

    assert b"sluice_foreign_decisions " in metrics
    said = [entry["message"] for entry in one.log() if "decisions with another job_id" in entry["message"]]
    assert len(said) == 1
    assert len({decision["job_id"] for decision in one.decisions()}) == 2
