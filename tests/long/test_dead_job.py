"""A job that is killed under load, as each place shows it: doctor, top, the console, and the port that is gone."""

import json
import subprocess
from pathlib import Path

import pytest

from sluice.process.clock import now_ms
from sluice.process.job_probe import NO_ANSWER, asked
from sluice_insight.console.pages import PAGES
from sluice_proxy.processes import free_ports
from tests.commands import SLUICE, run_sluice
from tests.integration.job_process import JobProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

QUOTAS = [{"entity": {"user": None}, "quotas": {"producer_byte_rate": 1000}}]


def event() -> bytes:
    return json.dumps({"user": "alice", "api": "Produce", "bytes": 10, "timestamp_ms": now_ms()}).encode()


def test_a_job_that_is_killed_under_load_is_a_failure_everywhere_until_it_is_started_again(
    kafka_broker: str, tmp_path: Path
) -> None:
    """For minutes after it doctor said ok, and the figures of clients were 0."""
    job = JobProcess(tmp_path / "job", kafka_broker, QUOTAS, health={"port": free_ports(1)[0]})
    url = f"http://{job.settings.health.place}"
    job.start()
    try:
        job.publish([event()] * 20)
        eventually(lambda: job.count(job.settings.topics.decisions) >= 20)
        alive = run_sluice("doctor", "--config", job.settings_file)
        assert "\nok    job: one runs on " in alive.output

        job.kill()
        job.publish([event()] * 7, now_ms() + 20_000)  # later than the last decision by more than a few micro-batches

        dead = run_sluice("doctor", "--config", job.settings_file)
        table = run_sluice("top", "--once", "--config", job.settings_file)
        command = [*SLUICE, "console", "--port", "0", "--config", str(job.settings_file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            console = process.stdout.readline().split()[-1].rstrip("/")
            eventually(lambda: b"no job runs, " in asked(f"{console}/", 30.0))
            pages = [asked(f"{console}{path}", 30.0) for path, _, _ in PAGES.values()]
            process.terminate()
        with pytest.raises(NO_ANSWER):
            asked(f"{url}/metrics", 5.0)

        job.start()
        eventually(lambda: job.count(job.settings.topics.decisions) >= 27)
        again = run_sluice("doctor", "--config", job.settings_file)
    finally:
        job.stop()

    assert "\nFAIL  job: no job runs, 7 requests wait since " in dead.output
    assert dead.code == 1
    assert table.output.startswith("FAIL  no job runs, 7 requests wait since ")
    assert all(b"no job runs, 7 requests wait since " in page for page in pages)
    assert "\nok    job: one runs on " in again.output
