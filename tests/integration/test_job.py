"""The whole job over a real broker: each request is decided once."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event

import pytest
from deltalake import DeltaTable

from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.spark_files import check_spark_files
from sluice.streaming.enforce.simulation import Simulation
from sluice_reading.quotas_admin import QuotasAdmin
from tests.bad_events import BAD
from tests.builders import Json, creates_event, quota
from tests.commands import run_sluice
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NAMES = ["a|b", "<default>", "two words", "🦊 fox", 'quo"te', "new\nline", "a%7Cb"]


@pytest.fixture
def job(shared_job: JobProcess) -> JobProcess:
    return shared_job


def test_the_proposals_example_over_kafka(job: JobProcess) -> None:
    """KIP-599: Q=5, S=100, W=1 s; 560 allowed, tokens -60; the next refused with 12 000 ms; admitted at +12 s."""
    start_ms = now_ms()
    answered = job.count(job.settings.topics.requests)
    job.publish(
        [
            creates_event("kip599", [80] * 7, start_ms, "burst"),
            creates_event("kip599", [1], start_ms, "refused"),
            creates_event("kip599", [1], start_ms + 12_000, "admitted"),
        ]
    )
    job.answered(answered + 3)

    decisions = {decision["request_id"]: decision for decision in job.decisions()}
    assert decisions["burst"]["verdict"] == "ALLOW"
    assert decisions["burst"]["charges"][0]["tokens"] == -60.0
    assert (decisions["refused"]["verdict"], decisions["refused"]["throttle_time_ms"]) == ("REJECT", 12_000)
    assert decisions["admitted"]["verdict"] == "ALLOW"


def test_every_bad_event_is_a_dead_letter_and_the_job_goes_on(job: JobProcess) -> None:
    """Requests = decisions + dead letters, which keep the bytes; later requests are decided."""
    before = len(job.topic(job.settings.topics.requests))
    strange = [creates_event(name, [1], now_ms(), f"strange {number}") for number, name in enumerate(NAMES)]
    megabyte = b'{"api": "Fetch", "user": "big", "more": "' + b"x" * 1_000_000 + b'"}'
    past = b'{"api": "Fetch", "user": "past", "timestamp_ms": %d}' % (now_ms() - 6 * 86_400_000)
    far_past = b'{"api": "Fetch", "user": "past", "timestamp_ms": 1}'
    future = b'{"api": "Fetch", "user": "future", "timestamp_ms": %d}' % (now_ms() + 3_600_000)
    expected = {**BAD, "far future": (future, "timestamp_ms", "lies "), "far past": (far_past, "timestamp_ms", "lies ")}
    bad = [value for value, _, _ in expected.values()]

    job.publish([*bad, megabyte, past, *strange])
    job.answered(before + len(bad) + 2 + len(NAMES))

    letters = {offset: each for each in job.dead_letters() if (offset := each["source"]["offset"]) >= before}
    assert sorted(letters) == list(range(before, before + len(bad)))
    for offset, (value, field, problem) in enumerate(expected.values(), start=before):
        letter = letters[offset]
        assert letter["error"]["field"] == field
        assert letter["error"]["problem"].startswith(problem)
        assert letter["value"] is None if value is None else base64.b64decode(letter["value"]) == value
    users = [decision["user"] for decision in job.decisions()]
    assert {"big", "past", *NAMES} <= set(users)


def test_simulate_decides_as_the_job_does(job: JobProcess) -> None:
    """Field by field, a mix of every kind of charge, under the quotas in force; its counters are its own."""
    table, start_ms = QuotasAdmin(job.settings.delta.quotas), now_ms()
    wait_until(lambda: job.status()["quota_version"] == table.version(), 120)
    quotas = Quotas(table.entries(), version=table.version())
    events = []
    for number in range(300):
        event: Json = {
            "request_id": f"simulated-{number}",
            "user": f"user{number % 3}",
            "client_id": f"client{number % 2}",
            "timestamp_ms": start_ms + number * 37 % 5000,
            "request_time_ns": number * 1_000_000,
            "network_time_ns": 5_000_000,
            "gateway": "test",
        }
        partitions = [{"topic": topic, "partition": number % 2, "bytes": number * 10} for topic in ("orders", "clicks")]
        if number % 3 == 0:
            event |= {"api": "CreateTopics", "api_version": number % 8, "mutations": [{"topic": "t", "partitions": 9}]}
        else:
            event |= {"api": "Produce" if number % 3 == 1 else "Fetch", "topic_partitions": partitions}
        events.append(json.dumps(event).encode())
    job.publish(events)
    job.answered(len(job.topic(job.settings.topics.requests)))

    def comparable(decision: Json) -> Json:
        return decision | dict.fromkeys(("decision_id", "decided_at_ms", "job_id", "source_topic_id"))

    simulated = [comparable(json.loads(record.value)) for record in Simulation(quotas, job.settings).decide(events)]
    made = {decision["request_id"]: comparable(decision) for decision in job.decisions()}
    assert [made[decision["request_id"]] for decision in simulated] == simulated


def test_each_answer_is_one_row_in_delta(job: JobProcess) -> None:
    """Decisions, dead letters and their metrics, with the same numbers."""
    requests = len(job.topic(job.settings.topics.requests))
    job.answered(requests)
    decided = {decision["decision_id"] for decision in job.decisions()}
    letters = len(job.dead_letters())

    wait_until(lambda: len(rows(job.settings.delta.decisions)) >= len(decided), 120)
    wait_until(lambda: len(rows(job.settings.delta.dead_letters)) >= letters, 120)

    table = rows(job.settings.delta.decisions)
    assert sorted(row["decision_id"] for row in table) == sorted(decided)
    found_letters = rows(job.settings.delta.dead_letters)
    assert len(found_letters) == letters
    with TopicReader(job.settings.kafka, job.settings.topics.requests) as reader:
        assert {row["source_topic_id"] for row in (*table, *found_letters)} == {reader.topic_id()} != {None}
    (burst,) = [row for row in table if row["request_id"] == "burst"]
    assert burst["charges"][0]["tokens"] == -60.0
    charges = sum(len(row["charges"] or []) for row in table)
    metrics = rows(job.settings.delta.quota_metrics)
    assert sum(row["count"] for row in metrics) == charges
    assert len(
        {(r["window_start"], r["quota"], r["user"], r["client_id"], r["topic"], r["partition"]) for r in metrics}
    ) == len(metrics)


def test_a_quota_change_acts_on_a_running_load_without_a_restart(job: JobProcess) -> None:
    """Micro-batches go on; from the first one with the new version on, none has the old one."""
    child = job.child
    table = QuotasAdmin(job.settings.delta.quotas)
    raised = quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1000.0, user="changed")
    job.publish(
        [creates_event("changed", [101], now_ms(), "before"), creates_event("changed", [1], now_ms(), "refused")]
    )
    job.answered(len(job.topic(job.settings.topics.requests)))

    with load(job):
        decided = job.count(job.settings.topics.decisions)
        wait_until(lambda: job.count(job.settings.topics.decisions) > decided + 100, 120)
        version = table.alter(lambda entries: [*entries, raised], "test", datetime.now(UTC))
        wait_until(lambda: job.status()["quota_version"] == version, 120)
        decided = job.count(job.settings.topics.decisions)
        wait_until(lambda: job.count(job.settings.topics.decisions) > decided + 200, 120)
    job.publish([creates_event("changed", [50], now_ms(), "under the new limit")])
    requests = len(job.topic(job.settings.topics.requests))
    job.answered(requests)

    made = job.decisions()
    decisions = {decision["request_id"]: decision for decision in made}
    assert decisions["refused"]["charges"][0]["limit"] == 1.0
    assert decisions["under the new limit"]["charges"][0]["limit"] == 1000.0
    micro_batches = sorted({(decision["decided_at_ms"], decision["quota_version"]) for decision in made})
    versions = [in_force for _, in_force in micro_batches]
    assert versions == sorted(versions)
    assert versions[-1] == version
    assert job.count(job.settings.topics.decisions, job.settings.topics.dead_letters) == requests
    assert job.child is child
    assert job.alive


@contextmanager
def load(job: JobProcess) -> Iterator[None]:
    """About 100 requests a second meanwhile."""
    left = Event()

    def publish() -> None:
        while not left.wait(0.5):
            job.publish([creates_event("load", [1], now_ms(), "load")] * 50)

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        try:
            yield
        finally:
            left.set()
        publishing.result()


def rows(path: str) -> list[Json]:
    """All rows of a Delta table."""
    if not DeltaTable.is_deltatable(path):
        return []
    return list(DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist())


def test_balances_are_read_beside_the_job_as_spark_stores_them(job: JobProcess) -> None:
    """Without a session of Spark's, and without a word of Java's."""
    start_ms = now_ms()
    answered = job.count(job.settings.topics.requests)
    checkpoint = Checkpoint(job.settings.enforce.checkpoint)
    job.publish([creates_event("held", [80] * 7, start_ms, "held")])
    job.answered(answered + 1)
    wait_until(lambda: check_spark_files(checkpoint).committed >= 0 and bool(run_balance(job)["counters"]), 120)

    (tokens,) = run_balance(job)["counters"]

    assert (tokens["entity"], tokens["quota"]) == ({"user": "held"}, "controller_mutation_rate")
    assert tokens["last_event_ms"] == start_ms
    assert tokens["tokens"] >= -60.0


def run_balance(job: JobProcess) -> Json:
    """The answer of the command for the user `held`."""
    found = run_sluice("balance", "--user", "held", "--json", "--config", job.settings_file)
    assert (found.code, found.error) == (0, "")
    answer: Json = json.loads(found.output)
    return answer
