"""Faults against the real job, the real broker and real Delta tables: everything balances after each.

Requests = decisions + dead letters, each once in its topic and one row in Delta, each charge counted once in the
metrics, and each decision the one that `simulate` makes of the same events, so that no balance is lost either.
"""

import json
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from scripts.testbed.broker import Broker, free_ports
from scripts.testbed.job import Json, write_settings
from scripts.testbed.job_under_test import QUOTAS
from scripts.testbed.load_generator import DEFAULT_MIX, LoadGenerator
from scripts.testbed.processes import descendants, kill, python_workers
from scripts.testbed.reconciliation import Reconciliation, answered, audited, reconcile, reconcile_counts
from sinks.topics import ensure_topics
from tests.e2e.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RESTART = {"max_failures": 4, "backoff_ms": 200, "max_backoff_ms": 1000}
START_MS = time.time_ns() // 1_000_000
EVENTS = LoadGenerator(seed=8, users=50, clients=10, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01)


class Faulty:
    """A job with its own broker, and the load on it."""

    def __init__(self, folder: Path, **sections: Json) -> None:
        self.broker = Broker(folder / "broker")
        self.broker.start()
        self.job = JobProcess(folder / "faults", self.broker.bootstrap_servers, QUOTAS, restart=RESTART, **sections)
        self.settings = self.job.settings
        self._published = 0

    def publish(self, count: int) -> None:
        """Publish the next `count` events; one in a hundred is bad."""
        first, self._published = self._published, self._published + count
        self.job.publish(EVENTS.event(number, START_MS + number) for number in range(first, self._published))

    def answers(self) -> Reconciliation:
        """Wait until every request is answered, and reconcile; Delta may be behind."""
        self.job.answered(self.job.count(self.settings.topics.requests), 180)
        return reconcile(self.settings)

    def balance(self) -> Reconciliation:
        """Wait until every answer is in Delta too, and reconcile."""
        requests = self.job.count(self.settings.topics.requests)
        wait_until(lambda: audited(self.settings) >= requests, 180)
        return self.answers()

    def query(self, name: str) -> Json:
        """State, restarts and reason of a query, as the status file has them."""
        state: Json = self.job.status().get("queries", {}).get(name, {})
        return state

    def run_to_the_end(self, **sections: Json) -> tuple[int, str]:
        """Start the job with other settings and wait for its end: exit code and last line."""
        other = self.job.folder / "other.yaml"
        write_settings(other, yaml.safe_load(self.job.settings_file.read_text()), sections)
        command = [sys.executable, "-m", "streaming.cli.main", "run", "--config", str(other)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in [line for line in ended.stderr.splitlines() if not line.startswith("{")]
        return ended.returncode, ended.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One job that goes through the faults of this file one after the other, as a job that runs for months."""
    faulty = Faulty(tmp_path_factory.mktemp("faults"), health={"port": free_ports(1)[0]})
    faulty.job.start()
    yield faulty
    faulty.job.stop()
    faulty.broker.stop()


def test_killed_python_workers_are_replaced(faulty: Faulty) -> None:
    """The micro-batch fails, the query restarts on its checkpoint, and skips what it has already written."""
    before = faulty.query("enforce").get("restarts", 0)
    faulty.publish(5_000)
    assert faulty.job.child is not None
    while faulty.query("enforce").get("restarts", 0) == before:
        for pid in python_workers(faulty.job.child.pid):
            kill(pid)
        if not faulty.job.count(faulty.settings.topics.requests) > answered(faulty.settings):
            faulty.publish(1_000)

    assert faulty.answers().answered
    assert any("query enforce ended" in entry["message"] for entry in faulty.job.log())


def test_a_broker_that_is_killed_and_then_away_for_twenty_seconds(faulty: Faulty) -> None:
    """kill -9 in the middle of micro-batches, and an outage: the job stays alive, and both queries continue."""
    faulty.publish(5_000)
    wait_until(lambda: answered(faulty.settings) < faulty.job.count(faulty.settings.topics.requests), 180)
    faulty.broker.kill()
    faulty.broker.start()
    faulty.publish(2_000)
    faulty.broker.stop()
    time.sleep(20)  # the outage itself
    assert faulty.job.alive
    faulty.broker.start()
    faulty.publish(500)

    assert faulty.balance().balanced


def test_the_same_request_delivered_twice_is_two_requests(faulty: Faulty) -> None:
    """Each record is a request: a repeated one is charged again, and both decisions carry its request id."""
    event = EVENTS.event(10_000_001, START_MS)
    assert event is not None
    faulty.job.publish([event, event])
    found = faulty.answers()

    request_id = json.loads(event)["request_id"]
    twice = [decision for decision in faulty.job.decisions() if decision["request_id"] == request_id]
    assert len({decision["decision_id"] for decision in twice}) == 2
    assert found.answered


def test_decisions_go_on_while_delta_is_broken(faulty: Faulty) -> None:
    """A table is replaced by a file: the audit query backs off with a reason, and catches up after the repair."""
    folder = Path(faulty.settings.delta.decisions)
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("no table")
    try:
        faulty.publish(2_000)
        faulty.job.answered(faulty.job.count(faulty.settings.topics.requests))
        wait_until(lambda: faulty.query("audit").get("state") == "backing off", 180)
        assert health(faulty, "/healthz")[0] == 200
        ready, body = health(faulty, "/readyz")
        assert ready == 200
        assert body["queries"]["audit"]["reason"]
        assert faulty.query("enforce")["state"] == "running"
    finally:
        folder.unlink()
        aside.rename(folder)

    assert faulty.balance().balanced
    wait_until(lambda: faulty.query("audit").get("state") == "running", 180)


def test_a_full_disk(faulty: Faulty) -> None:
    """Checkpoint, state and tables can't be written: both queries wait until there is space, and lose nothing."""
    assert faulty.job.child is not None
    pid = faulty.job.child.pid
    java = [child for child, command in descendants(pid).items() if "org.apache.spark.deploy" in command]
    before = faulty.query("enforce").get("restarts", 0)
    with full_disk([pid, *java]):
        faulty.publish(2_000)
        wait_until(lambda: restarts(faulty, "enforce") > before, 180)

    assert faulty.balance().balanced


def test_commits_of_another_writer_double_nothing(faulty: Faulty) -> None:
    """Another writer rewrites the metrics table all the time: conflicting commits are repeated completely."""
    before, done = restarts(faulty, "audit"), Event()
    rewriter = Thread(target=rewrite, args=(faulty.settings.delta.quota_metrics, done))
    rewriter.start()
    try:
        faulty.publish(500)
        wait_until(lambda: restarts(faulty, "audit") > before, 180)
    finally:
        done.set()
        rewriter.join()

    assert faulty.balance().balanced


def test_new_partitions_of_the_topic_are_read(faulty: Faulty) -> None:
    """Added while the job runs; their first records too."""
    topic = faulty.settings.topics.requests
    with KafkaAdminClient(bootstrap_servers=faulty.broker.bootstrap_servers) as admin:
        admin.create_partitions({topic: 3})
    before = faulty.job.count(topic)
    partitions_published(faulty, 3, 100)
    assert faulty.job.count(topic) == before + 300

    found = faulty.balance()
    assert found.balanced
    assert reconcile_counts(faulty.settings) == found  # what the soak counts in bounded memory


def test_topics_deleted_while_the_job_runs(tmp_path: Path) -> None:
    """Topic of decisions: created again, all requests are answered. Topic of requests: the job ends with a reason."""
    soon = {"delivery.timeout.ms": 5000, "request.timeout.ms": 4000}  # a decision that can't be written fails then
    faulty = Faulty(tmp_path, kafka=soon)
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


def restarts(faulty: Faulty, query: str) -> int:
    """Restarts of a query by the metrics endpoint: the status file can't be written on a full disk."""
    (line,) = [
        line
        for line in health_text(faulty, "/metrics")[1].splitlines()
        if line.startswith(f'sluice_query_restarts{{query="{query}"}}')
    ]
    return int(float(line.rsplit(" ", 1)[1]))


def partitions_published(faulty: Faulty, partitions: int, count: int) -> None:
    """Publish `count` events to each partition."""
    with KafkaProducer(bootstrap_servers=faulty.broker.bootstrap_servers) as producer:
        for number in range(count * partitions):
            event = EVENTS.event(20_000_000 + number, START_MS)
            producer.send(faulty.settings.topics.requests, value=event, partition=number % partitions)
        producer.flush()


def health(faulty: Faulty, path: str) -> tuple[int, Json]:
    status, text = health_text(faulty, path)
    return status, json.loads(text)


def health_text(faulty: Faulty, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{faulty.settings.health.port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def rewrite(path: str, done: Event) -> None:
    """Rewrite a table repeatedly until `done`; a commit that conflicts is tried again."""
    while not done.is_set():
        try:
            DeltaTable(path).update({"count": "count"})
        except DeltaError:
            continue


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


@contextmanager
def full_disk(pids: list[int]) -> Iterator[None]:
    """Keep processes from extending any file: each write fails, as on a full disk."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    try:
        for pid, (_, most) in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


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
