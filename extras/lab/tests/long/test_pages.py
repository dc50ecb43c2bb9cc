"""Pages and the workers that decide them, in real jobs: which workers there are and how many pages changes nothing."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mixed_load import QUOTAS, requests_of
from sluice.kafka_io.topics import ensure_topics
from sluice_demo.job import Json
from sluice_lab.testbed.reconciliation import reconcile
from sluice_toolbox.balances import read_balances
from tests.builders import creates_event
from tests.commands import run_sluice
from tests.integration.job_process import JobProcess

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("turns", [(True, False), pytest.param((False, True, False), marks=pytest.mark.long)])
def test_batched_workers_and_those_of_pyspark_decide_alike_and_share_the_state(
    kafka_broker: str, tmp_path: Path, turns: Sequence[bool]
) -> None:
    """Batched ones and PySpark's take turns on one checkpoint: one decision a request, the ones of `simulate`."""
    requests = requests_of(time.time_ns() // 1_000_000)
    for turn, batched in enumerate(turns):
        job = job_with(tmp_path / f"turns-{len(turns)}", kafka_broker, batched)
        if turn == 0:
            ensure_topics(job.settings.topics, job.settings.kafka)
            job.publish(requests)
        job.start()
        if turn < len(turns) - 1:
            job.stop_after_a_micro_batch(len(requests))
    job.answered(len(requests))
    job.stop()

    found = reconcile(job.settings)
    assert (found.requests, found.simulated, found.answered) == (len(requests), True, True), str(found)


def job_with(folder: Path, broker: str, batched: bool) -> JobProcess:
    """The job of this folder, with these workers."""
    enforce: Json = {
        "checkpoint": str(folder / "checkpoint"),
        "max_offsets_per_trigger": 400,
        "batched_workers": batched,
    }
    return JobProcess(folder, broker, QUOTAS, state={"pages": 16}, enforce=enforce)


def test_pages_are_split_as_entities_grow_and_decide_as_before(kafka_broker: str, tmp_path: Path) -> None:
    """A checkpoint of one page has four once there are 600 users, in the job that goes on too, and nobody is lost."""
    start_ms = time.time_ns() // 1_000_000
    folder = tmp_path / "split"
    enforce: Json = {"checkpoint": str(folder / "checkpoint"), "max_offsets_per_trigger": 300}
    job = JobProcess(folder, kafka_broker, QUOTAS, state={"pages": 1}, enforce=enforce)
    ensure_topics(job.settings.topics, job.settings.kafka)
    requests = [creates_event(f"u{number % 600}", [1], start_ms + number, f"r {number}") for number in range(2400)]
    job.publish(requests)
    job.start()
    job.stop_after_a_micro_batch(len(requests))
    job.start()
    job.answered(len(requests))
    job.stop()

    found = reconcile(job.settings)
    assert (found.requests, found.simulated, found.answered) == (len(requests), True, True), str(found)
    assert run_sluice("state", "export", folder / "balances", "--config", job.settings_file).code == 0
    balances = read_balances(folder / "balances")
    assert (balances.origin.pages, balances.entities()) == (4, 600)
