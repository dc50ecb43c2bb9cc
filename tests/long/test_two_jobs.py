"""Two jobs with two checkpoints on the same topics: both decide everything, and both say so."""

import json
from pathlib import Path

import pytest

from sluice_proxy.processes import free_ports
from tests.integration.job_process import TOPICS, JobProcess, Json, wait_until
from tests.web import answer_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def readiness(job: JobProcess) -> Json:
    body: Json = json.loads(answer_of(job.settings.health.port, "/readyz")[1])
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
        metrics = answer_of(one.settings.health.port, "/metrics")[1]
    finally:
        one.stop()
        two.stop()

    assert "sluice_foreign_decisions " in metrics
    said = [entry["message"] for entry in one.log() if "decisions with another job_id" in entry["message"]]
    assert len(said) == 1
    assert len({decision["job_id"] for decision in one.decisions()}) == 2
