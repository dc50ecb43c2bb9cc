"""Faults against the real job, the real broker and real Delta tables: everything balances after each."""

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from sluice_demo.counts import answered
from sluice_demo.job import Json
from sluice_lab.testbed.processes import descendants, kill, python_workers
from sluice_lab.testbed.reconciliation import reconcile_counts
from sluice_proxy.processes import free_ports
from tests.integration.faulty_job import Faulty
from tests.integration.job_process import AUDITED, wait_until
from tests.web import answer_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One job that goes through the faults of this file one after the other, as a job that runs for months."""
    faulty = Faulty(tmp_path_factory.mktemp("faults"), audit=AUDITED, health={"port": free_ports(1)[0]})
    faulty.job.start()
    yield faulty
    faulty.job.stop()
    faulty.broker.stop()


def test_killed_python_workers_are_replaced(faulty: Faulty) -> None:
    """The micro-batch fails, the query restarts on its checkpoint, and skips what it has already written."""
    before = faulty.query("enforce").get("restarts", 0)
    faulty.publish(3_000)
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


def test_records_that_their_topics_no_longer_take_are_answered_in_less(faulty: Faulty) -> None:
    """An operator, or a managed cluster's policy, makes records smaller: the job learns of it, and ends at none."""
    topics, before = faulty.settings.topics, len(faulty.job.dead_letters())
    with KafkaAdminClient(bootstrap_servers=faulty.broker.bootstrap_servers) as admin:

        def alter(change: object) -> None:
            for topic in (topics.decisions, topics.dead_letters):
                admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": change})])

        alter("20000")
        wide = {"api": "Fetch", "user": "u" * 30_000, "bytes": 1}
        faulty.job.publish([json.dumps(wide).encode(), b"x" * 500_000])
        assert faulty.answers().answered
        alter("8388608")

    letters = faulty.job.dead_letters()[before:]
    problems = [letter["error"]["problem"] for letter in letters]
    assert sum(problem.startswith("has a decision of 3") for problem in problems) == 1
    assert {letter["value_bytes"] for letter in letters} == {None, 500_000}
    faulty.publish(200)
    assert faulty.balance().balanced


def test_the_same_request_delivered_twice_is_two_requests(faulty: Faulty) -> None:
    """Each record is a request: a repeated one is charged again, and both decisions carry its request id."""
    event = faulty.event(10_000_001)
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
        faulty.publish(500)
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
        faulty.publish(500)
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
            event = faulty.event(20_000_000 + number)
            producer.send(faulty.settings.topics.requests, value=event, partition=number % partitions)
        producer.flush()


def health(faulty: Faulty, path: str) -> tuple[int, Json]:
    status, text = health_text(faulty, path)
    return status, json.loads(text)


def health_text(faulty: Faulty, path: str) -> tuple[int, str]:
    return answer_of(faulty.settings.health.port, path)


def rewrite(path: str, done: Event) -> None:
    """Rewrite a table repeatedly until `done`; a commit that conflicts is tried again."""
    while not done.is_set():
        try:
            DeltaTable(path).update({"count": "count"})
        except DeltaError:
            continue


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
