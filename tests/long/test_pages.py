"""Pages and the workers that decide them, in real jobs: which workers there are and how many pages changes nothing."""

import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.testbed.job import Json
from sluice.configs.quotas import load_quotas_file
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from tests.integration.job_process import JobProcess
from tests.integration.test_job import creates
from tests.long.test_state_commands import QUOTAS, requests_of, state, stop_after_a_micro_batch, untimed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

GOLDEN = Path(__file__).parents[1] / "data" / "checkpoint-32-pages.tar.gz"
"""Of a job of commit fbd306e, which read ten requests: each of ten users created 60 partitions at GOLDEN_MS."""

GOLDEN_MS = 1_700_000_000_000
USERS = 10


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
            stop_after_a_micro_batch(job, len(requests))
    job.answered(len(requests))
    job.stop()

    quotas = Quotas(load_quotas_file(job.folder / "quotas.yaml"))
    simulated = [json.loads(record.value) for record in Simulation(quotas, job.settings).decide(requests)]
    expected = {answer["decision_id"]: untimed(answer) for answer in simulated if "decision_id" in answer}
    assert job.count(job.settings.topics.decisions, job.settings.topics.dead_letters) == len(requests)
    assert {decision["decision_id"]: untimed(decision) for decision in job.decisions()} == expected


def job_with(folder: Path, broker: str, batched: bool) -> JobProcess:
    """The job of this folder, with these workers."""
    enforce: Json = {
        "checkpoint": str(folder / "checkpoint"),
        "max_offsets_per_trigger": 400,
        "batched_workers": batched,
    }
    return JobProcess(folder, broker, QUOTAS, state={"pages": 16}, enforce=enforce)


def test_the_checkpoint_of_an_earlier_release_goes_on_and_can_be_resharded(kafka_broker: str, tmp_path: Path) -> None:
    """Everybody is in debt, under its 32 pages and under the many of a new checkpoint."""
    folder = tmp_path / "golden"  # the topics are named after it, and the checkpoint knows them
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, filter="data")
    enforce: Json = {"checkpoint": str(folder / "checkpoint"), "shuffle_partitions": 2}
    keep_for_ever: Json = {"requests_retention_ms": -1}
    job = JobProcess(folder, kafka_broker, QUOTAS, topics=keep_for_ever, enforce=enforce)
    ensure_topics(job.settings.topics, job.settings.kafka)
    job.publish([b"{}"] * USERS, GOLDEN_MS)  # in place of the requests that the checkpoint has charged
    assert later(job, 30)
    job.stop()

    resharded = state(job, "reshard")
    assert f"moved {USERS} entities from 32 pages to 4096 pages" in resharded.stdout, resharded.stderr
    assert later(job, 60)
    job.stop()

    assert [decision["verdict"] for decision in job.decisions()] == ["REJECT"] * 2 * USERS
    # The bucket was at -5, and gains 5 tokens/s; refused requests take none.
    assert {round(decision["charges"][0]["tokens"], 9) for decision in job.decisions()} == {-4.85, -4.7}


def later(job: JobProcess, after_ms: int) -> bool:
    """Start the job; whether it answers one more request of each user, this long after the first."""
    answered = job.count(job.settings.topics.decisions)
    job.start()
    job.publish([creates(f"early{number}", [1], GOLDEN_MS + after_ms, "") for number in range(USERS)], GOLDEN_MS)
    job.answered(answered + USERS)
    return job.count(job.settings.topics.decisions) == answered + USERS
