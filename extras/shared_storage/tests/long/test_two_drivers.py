"""Two drivers on one checkpoint that has no lock, as in shared storage: one of them decides."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.job_process import TOPICS, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


def decided(job: JobProcess, count: int) -> None:
    """Wait until so many events have a decision that counts."""
    wait_until(lambda: len(job.decisions()) >= count, 120)


def test_a_standby_takes_over_from_a_driver_that_pauses_and_that_one_ends_when_it_wakes_up(
    kafka_broker: str, tmp_path: Path
) -> None:
    """Before, a second driver without --standby is refused. In the end each event has one decision."""
    checkpoint = {"checkpoint": (tmp_path / "shared").as_uri()}
    one = JobProcess(tmp_path / "one", kafka_broker, [], enforce=checkpoint)
    topics = {name: getattr(one.settings.topics, name) for name in TOPICS}
    shared = {"quotas": one.settings.delta.quotas}
    two = JobProcess(tmp_path / "two", kafka_broker, [], enforce=checkpoint, topics=topics, delta=shared)
    try:
        one.start()
        one.publish([b'{"api": "Metadata"}'] * 20)
        decided(one, 20)
        leader = one.running()

        two.launch()
        wait_until(lambda: not two.alive, 120)
        assert f"is in use by the driver with process {leader.pid} on " in two.last_line()

        two.launch("--standby")
        wait_until(lambda: two.status().get("waiting_for") == "leadership", 300)
        os.killpg(leader.pid, signal.SIGSTOP)
        one.publish([b'{"api": "Metadata"}'] * 20)
        decided(one, 40)

        os.killpg(leader.pid, signal.SIGCONT)
        wait_until(lambda: not one.alive, 120)
        assert "has taken over the checkpoint" in one.last_line()
        one.publish([b'{"api": "Metadata"}'] * 20)
        decided(one, 60)
        ids = [decision["decision_id"] for decision in one.decisions()]
    finally:
        one.kill()
        two.stop()

    assert len(ids) == len(set(ids)) == 60
