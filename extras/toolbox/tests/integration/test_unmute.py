"""`sluice unmute` against a running job: one command ends a wait, in the state and in the waits topic."""

import json
import re
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.commands import run_sluice
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


USER = "long-wait"
WAIT = b'{"entity":{"user":"long-wait"},"quota":"producer_byte_rate"}'


def produce(size: int) -> bytes:
    partitions = [{"topic": "t", "partition": 0, "bytes": size}]
    event = {"api": "Produce", "user": USER, "client_id": "app", "topic_partitions": partitions}
    return json.dumps({**event, "timestamp_ms": now_ms()}).encode()


def tracked_entities(job: JobProcess) -> float:
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{job.settings.health.port}/metrics", timeout=120).read()
    (line,) = re.findall(rb"^sluice_known_entities (\S+)$", metrics, re.MULTILINE)
    return float(line)


def test_one_command_ends_a_long_wait(shared_job: JobProcess) -> None:
    job = shared_job

    def waits() -> list[tuple[bytes, bytes | None]]:
        return [(wait.key, wait.value) for wait in job.topic(job.settings.topics.waits) if wait.key == WAIT]

    answered = job.count(job.settings.topics.requests)
    tracked = tracked_entities(job)
    job.publish([produce(100_000)])
    job.answered(answered + 1)
    wait_until(lambda: len(waits()) == 1, 120)
    ran = run_sluice("unmute", "--config", job.settings_file, "--user", USER, "--client-id", "app")
    job.publish([produce(100)])
    job.answered(answered + 3)
    decisions = [decision for decision in job.decisions() if decision["user"] == USER]

    wait_until(lambda: tracked_entities(job) >= tracked + 1, 120)
    assert (ran.code, ran.error) == (0, "")
    assert ran.output.splitlines() == [
        "producer_byte_rate: the counter of user 'long-wait' is reset",
        "request_percentage: the counter of user 'long-wait' is reset",
        "controller_mutation_rate: the counter of user 'long-wait' is reset",
        "consumer_byte_rate: the counter of client-id 'app' is reset",
    ]
    assert [(decision["api"], decision["verdict"]) for decision in decisions] == [
        ("Produce", "THROTTLE"),
        ("Unmute", "ALLOW"),
        ("Produce", "ALLOW"),
    ]
    (_, wait), (_, nothing) = waits()
    assert wait is not None
    assert json.loads(wait)["until_ms"] == decisions[0]["mute_until_ms"]
    assert nothing is None


def test_without_the_topics_it_says_so_at_once(kafka_broker: str, tmp_path: Path) -> None:
    job = JobProcess(tmp_path / "never-started", kafka_broker, [], topics={"requests": "nobody-made-it"})
    quota = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 10.0)
    QuotasTable(job.settings.delta.quotas).create([quota], "test", datetime.now(UTC))

    ran = run_sluice("unmute", "--config", job.settings_file, "--user", "alice")

    assert ran.code == 1
    assert ran.error_line.startswith("sluice: error: no topic nobody-made-it, ")
