"""`sluice unmute` against a running job: one command ends a wait, in the state and in the waits topic."""

import json
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scripts.testbed.broker import free_ports
from sluice.kafka_io.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def produce(size: int) -> bytes:
    partitions = [{"topic": "t", "partition": 0, "bytes": size}]
    event = {"api": "Produce", "user": "alice", "client_id": "app", "topic_partitions": partitions}
    return json.dumps({**event, "timestamp_ms": now_ms()}).encode()


def test_one_command_ends_a_long_wait(kafka_broker: str, tmp_path: Path) -> None:
    quotas = [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 10}}]
    job = JobProcess(tmp_path / "unmute", kafka_broker, quotas, health={"port": free_ports(1)[0]})
    job.start()
    try:
        job.publish([produce(100_000)])
        job.answered(1)
        wait_until(lambda: job.count(job.settings.topics.waits) == 1, 30)
        command = [sys.executable, "-m", "sluice.cli.main", "unmute", "--config", str(job.settings_file)]
        ran = subprocess.run(
            [*command, "--user", "alice", "--client-id", "app"], capture_output=True, text=True, check=False
        )
        job.publish([produce(100)])
        job.answered(3)
        decisions = job.decisions()
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{job.settings.health.port}/metrics", timeout=5).read()
        waits = [(record.key, record.value) for record in job.topic(job.settings.topics.waits)]
    finally:
        job.stop()

    assert b"\nsluice_known_entities 1.0\n" in metrics
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "producer_byte_rate: the counter of user alice is reset\n"
    assert [(decision["api"], decision["verdict"]) for decision in decisions] == [
        ("Produce", "THROTTLE"),
        ("Unmute", "ALLOW"),
        ("Produce", "ALLOW"),
    ]
    (muted, wait), (ended, nothing) = waits
    assert muted == ended == b'{"entity":{"user":"alice"},"quota":"producer_byte_rate"}'
    assert json.loads(wait)["until_ms"] == decisions[0]["mute_until_ms"]
    assert nothing is None


def test_without_the_topics_it_says_so_at_once(kafka_broker: str, tmp_path: Path) -> None:
    job = JobProcess(tmp_path / "never-started", kafka_broker, [], topics={"requests": "nobody-made-it"})
    quota = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 10.0)
    QuotasTable(job.settings.delta.quotas).create([quota], "test", datetime.now(UTC))

    command = [sys.executable, "-m", "sluice.cli.main", "unmute", "--config", str(job.settings_file)]
    ran = subprocess.run([*command, "--user", "alice"], capture_output=True, text=True, check=False, timeout=30)

    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.startswith("sluice: error: no topic nobody-made-it, ")
