"""Faults that no restart cures: the real job ends with one line that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kafka import KafkaAdminClient, TopicPartition

from sluice.demo.counts import answered, audited
from sluice.demo.job import Json, write_settings
from sluice.kafka_io.topics import ensure_topics
from tests.audit_tables import rows
from tests.integration.faulty_job import Faulty
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


def test_topics_deleted_while_the_job_runs(tmp_path: Path) -> None:
    """Topic of decisions: created again, all requests are answered. Topic of requests: the job ends with a reason."""
    soon = {"delivery.timeout.ms": 5000, "request.timeout.ms": 4000}  # a decision that can't be written fails then
    faulty = Faulty(tmp_path, audit=AUDITED, kafka=soon)
    topics = faulty.settings.topics
    try:
        faulty.job.start()
        faulty.publish(300)
        assert faulty.balance().balanced
        letters = faulty.job.count(topics.dead_letters)

        delete_topic(faulty, topics.decisions)
        faulty.publish(100)
        wait_until(lambda: answered(faulty.settings) - letters == 100, 180)
        wait_until(lambda: "Kafka no longer has" in str(faulty.query("audit").get("reason")), 180)
        assert any(f"topic {topics.decisions} was deleted" in entry["message"] for entry in faulty.job.log())

        faulty.job.stop()
        change(faulty.job, audit={"checkpoint": str(tmp_path / "new audit")})
        faulty.job.start()
        wait_until(lambda: audited(faulty.settings) >= 400, 180)
        assert audited(faulty.settings) == 400

        delete_topic(faulty, topics.requests)
        ensure_topics(faulty.settings.topics, faulty.settings.kafka)
        faulty.publish(100)
        wait_until(lambda: not faulty.job.alive, 180)
        line = faulty.job.last_line()
        assert "fail_on_data_loss" in line, line

        code, line = faulty.run_to_the_end(restart={"max_failures": 1})
        assert (code, f"topic {topics.requests} is another one" in line) == (1, True), line
        change(faulty.job, enforce={"checkpoint": str(tmp_path / "new enforce")})
        faulty.job.start()
        wait_until(lambda: audited(faulty.settings) >= 500, 180)
        assert audited(faulty.settings) == 500
        assert len({row["source_topic_id"] for row in rows(faulty.settings.delta.decisions)}) == 2
        assert rows(faulty.settings.delta.unreadable) == []
    finally:
        faulty.job.stop()
        faulty.broker.stop()


def test_lost_input_and_damage_end_the_job_with_one_line(tmp_path: Path) -> None:
    """Errors that no restart cures: exit 1 and a line with the file; after the repair the balances are the same."""
    faulty = Faulty(tmp_path)
    try:
        faulty.job.start()
        faulty.publish(500)
        assert faulty.answers().answered
        faulty.job.stop()

        offsets = newest_batch(Path(faulty.settings.enforce.checkpoint) / "offsets")
        with damaged(offsets):
            code, line = faulty.run_to_the_end()
            assert (code, f"offsets/{offsets.name} in" in line) == (1, True), line

        state_file = newest(Path(faulty.settings.enforce.checkpoint) / "state")
        with damaged(state_file):
            faulty.publish(1)
            code, line = faulty.run_to_the_end(restart={"max_failures": 1})
            assert (code, "restore the checkpoint from a backup" in line) == (1, True), line

        topic = faulty.settings.topics.requests
        faulty.publish(499)
        with KafkaAdminClient(bootstrap_servers=faulty.broker.bootstrap_servers) as admin:
            admin.delete_records({TopicPartition(topic, 0): 700})
        code, line = faulty.run_to_the_end(restart={"max_failures": 1})
        assert (code, "fail_on_data_loss" in line) == (1, True), line
        change(faulty.job, enforce={"fail_on_data_loss": False})
        faulty.job.start()
        faulty.job.answered(500 + 300)
        faulty.job.stop()
        assert answered(faulty.settings) == 500 + 300
    finally:
        faulty.job.stop()
        faulty.broker.stop()


def change(job: JobProcess, **sections: Json) -> None:
    """Change the job's settings file, for its next start."""
    write_settings(job.settings_file, yaml.safe_load(job.settings_file.read_text()), sections)


@contextmanager
def damaged(file: Path) -> Iterator[None]:
    """Cut a file in half, and restore it afterwards."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    try:
        yield
    finally:
        file.write_bytes(content)


def delete_topic(faulty: Faulty, name: str) -> None:
    with KafkaAdminClient(bootstrap_servers=faulty.broker.bootstrap_servers) as admin:
        admin.delete_topics([name])


def newest_batch(folder: Path) -> Path:
    """The file of Spark's last micro-batch."""
    return max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def newest(folder: Path) -> Path:
    """The state file written last."""
    files = [path for path in folder.rglob("*") if path.suffix in (".changelog", ".zip") and path.name[0] != "."]
    return max(files, key=lambda path: path.stat().st_mtime)
