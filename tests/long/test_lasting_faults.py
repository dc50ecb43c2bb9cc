"""Faults that no restart cures: the real job ends with one line that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kafka import KafkaAdminClient, TopicPartition

from sluice.kafka_io.topics import ensure_topics
from sluice_demo.counts import answered, audited
from sluice_demo.job import Json, write_settings
from tests.audit_tables import rows
from tests.integration.faulty_job import Faulty
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


@contextmanager
def started(folder: Path, **sections: Json) -> Iterator[Faulty]:
    """A job that runs, and its broker."""
    faulty = Faulty(folder, **sections)
    try:
        faulty.job.start()
        yield faulty
    finally:
        faulty.job.stop()
        faulty.broker.stop()


class TestDeletedTopics:
    """One job whose topics are deleted one after the other: each test goes on where the one before it ended."""

    @pytest.fixture(scope="class")
    def faulty(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
        """A job that has answered 300 requests."""
        soon = {"delivery.timeout.ms": 5000, "request.timeout.ms": 4000}  # a decision that can't be written fails then
        with started(tmp_path_factory.mktemp("topics"), audit=AUDITED, kafka=soon) as faulty:
            faulty.publish(300)
            assert faulty.balance().balanced
            yield faulty

    def test_the_topic_of_decisions_is_created_again_and_the_audit_says_what_it_lacks(self, faulty: Faulty) -> None:
        topics = faulty.settings.topics
        letters = faulty.job.count(topics.dead_letters)

        delete_topic(faulty, topics.decisions)
        faulty.publish(100)

        wait_until(lambda: answered(faulty.settings) - letters == 100, 180)
        wait_until(lambda: "Kafka no longer has" in str(faulty.query("audit").get("reason")), 180)
        assert any(f"topic {topics.decisions} was deleted" in entry["message"] for entry in faulty.job.log())

    def test_an_audit_with_a_new_checkpoint_writes_the_decisions_of_the_new_topic(self, faulty: Faulty) -> None:
        faulty.job.stop()
        change(faulty.job, audit={"checkpoint": str(faulty.job.folder / "new audit")})

        faulty.job.start()

        wait_until(lambda: audited(faulty.settings) >= 400, 180)
        assert audited(faulty.settings) == 400

    def test_without_the_topic_of_requests_the_job_ends_with_a_line_that_says_what_to_do(self, faulty: Faulty) -> None:
        delete_topic(faulty, faulty.settings.topics.requests)
        ensure_topics(faulty.settings.topics, faulty.settings.kafka)
        faulty.publish(100)

        wait_until(lambda: not faulty.job.alive, 180)
        line = faulty.job.last_line()
        assert "fail_on_data_loss" in line, line

    def test_a_job_does_not_go_on_with_another_topic_of_requests(self, faulty: Faulty) -> None:
        code, line = faulty.run_to_the_end(restart={"max_failures": 1})

        assert (code, f"topic {faulty.settings.topics.requests} is another one" in line) == (1, True), line

    def test_a_job_with_a_new_checkpoint_decides_the_new_topic(self, faulty: Faulty) -> None:
        change(faulty.job, enforce={"checkpoint": str(faulty.job.folder / "new enforce")})

        faulty.job.start()

        wait_until(lambda: audited(faulty.settings) >= 500, 180)
        assert audited(faulty.settings) == 500
        assert len({row["source_topic_id"] for row in rows(faulty.settings.delta.decisions)}) == 2
        assert rows(faulty.settings.delta.unreadable) == []


class TestLostInputAndDamage:
    """Errors that no restart cures: exit 1 and a line that names what is wrong; each test repairs what it damaged."""

    @pytest.fixture(scope="class")
    def faulty(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
        """A job that has answered 500 requests and was stopped."""
        with started(tmp_path_factory.mktemp("damage")) as faulty:
            faulty.publish(500)
            assert faulty.answers().answered
            faulty.job.stop()
            yield faulty

    def test_a_damaged_file_of_offsets_is_named(self, faulty: Faulty) -> None:
        offsets = newest_batch(Path(faulty.settings.enforce.checkpoint) / "offsets")
        with damaged(offsets):
            code, line = faulty.run_to_the_end()

        assert (code, f"offsets/{offsets.name} in" in line) == (1, True), line

    def test_of_damaged_state_the_line_says_what_to_restore(self, faulty: Faulty) -> None:
        faulty.publish(1)
        with damaged(newest(Path(faulty.settings.enforce.checkpoint) / "state")):
            code, line = faulty.run_to_the_end(restart={"max_failures": 1})

        assert (code, "restore the checkpoint from a backup" in line) == (1, True), line

    def test_lost_requests_end_the_job(self, faulty: Faulty) -> None:
        faulty.publish(499)
        with KafkaAdminClient(bootstrap_servers=faulty.broker.bootstrap_servers) as admin:
            admin.delete_records({TopicPartition(faulty.settings.topics.requests, 0): 700})

        code, line = faulty.run_to_the_end(restart={"max_failures": 1})

        assert (code, "fail_on_data_loss" in line) == (1, True), line

    def test_without_the_lost_requests_the_balances_are_the_same_if_it_may_go_on(self, faulty: Faulty) -> None:
        change(faulty.job, enforce={"fail_on_data_loss": False})

        faulty.job.start()

        faulty.job.answered(500 + 300)
        faulty.job.stop()
        assert answered(faulty.settings) == 500 + 300


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
