"""`sluice state ...` on a real job: decisions after a change of what is frozen equal those without it."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient

from mixed_load import EARLY_USERS, QUOTAS, requests_of
from notebooks import run_cells
from sluice.configs.settings import Settings
from sluice.jvm.jars import REPOSITORY
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.streaming.balances.starting_offsets import starting_offsets
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin
from sluice.streaming.checkpoint.spark_files import check_spark_files
from sluice.streaming.errors import CheckpointError
from sluice_lab.testbed.reconciliation import reconcile
from sluice_toolbox.balances import Balances, store_imported
from sluice_toolbox.read_state import DECODER, read_state
from tests.builders import creates_event
from tests.commands import Ended, run_sluice
from tests.integration.job_process import JobProcess, Json, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = REPOSITORY / "docs" / "examples" / "state.ipynb"

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def job_with(folder: Path, broker: str, checkpoint: str, pages: int, shuffle_partitions: int) -> JobProcess:
    """The job of this folder, with its topics and tables, under other settings."""
    enforce: Json = {
        "checkpoint": str(folder / checkpoint),
        "shuffle_partitions": shuffle_partitions,
        "max_offsets_per_trigger": 400,
    }
    return JobProcess(folder, broker, QUOTAS, state={"pages": pages}, enforce=enforce)


def state(job: JobProcess, *arguments: object) -> Ended:
    """`sluice state ...` with the settings of the job."""
    return run_sluice("state", *arguments, "--config", job.settings_file)


@pytest.mark.long
def test_balances_survive_other_pages_partitions_and_checkpoints(kafka_broker: str, tmp_path: Path) -> None:
    """8 pages, exported and imported into 200, and then into 3: one decision a request, the ones of `simulate`."""
    folder = tmp_path / "moved"
    job = job_with(folder, kafka_broker, "first", pages=8, shuffle_partitions=2)
    ensure_topics(job.settings.topics, job.settings.kafka)
    topics, requests = job.settings.topics, requests_of(time.time_ns() // 1_000_000)
    job.start()
    assert "is in use by a job" in state(job, "export", folder / "early").error
    job.publish(requests)
    answered = job.stop_after_a_micro_batch(len(requests))

    for name, pages, partitions in (("second", 200, 1), ("third", 3, 2)):
        exported = state(job, "export", folder / f"balances-{name}")
        assert exported.output.startswith("exported "), exported.error
        job = job_with(folder, kafka_broker, name, pages=pages, shuffle_partitions=partitions)
        imported = state(job, "import", folder / f"balances-{name}")
        assert f" into {pages} pages in {folder / name};" in imported.output, imported.error
        assert f"goes on at {topics.requests} 0:{answered}\n" in imported.output
        job.start()
        if name == "second":
            answered = job.stop_after_a_micro_batch(len(requests))
    job.answered(len(requests))
    job.stop()

    found, decisions = reconcile(job.settings), job.decisions()
    assert (found.requests, found.simulated, found.answered) == (len(requests), True, True), str(found)
    assert len({decision["job_id"] for decision in decisions}) == 3, "each checkpoint is another job's"
    last = [decision for decision in decisions if decision["request_id"].startswith("last ")]
    assert [decision["verdict"] for decision in last] == ["REJECT"] * EARLY_USERS


def test_a_running_jobs_balances_are_read_beside_it(
    kafka_broker: str, tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last token, by the command and by Spark; the checkpoint stays as it is, and the job goes on."""
    folder = tmp_path / "read"
    job = job_with(folder, kafka_broker, "checkpoint", pages=8, shuffle_partitions=2)
    user, start_ms = "O=A|\x1b[2J", time.time_ns() // 1_000_000
    ensure_topics(job.settings.topics, job.settings.kafka)
    job.publish([creates_event(user, [10_000], start_ms, "first"), creates_event("other", [10_000], start_ms, "other")])
    job.start()
    job.answered(2)
    wait_until(lambda: check_spark_files(Checkpoint(job.settings.enforce.checkpoint)).committed >= 0, 120)
    before, began_ms = files_of(folder / "checkpoint"), time.time_ns() // 1_000_000

    found = run_sluice("balance", "--user", user, "--json", "--config", job.settings_file)

    assert found.code == 0, found.error
    assert files_of(folder / "checkpoint") == before
    answer = json.loads(found.output)
    (tokens,) = [counter for counter in answer["counters"] if counter["quota"] == "controller_mutation_rate"]
    assert (tokens["entity"], tokens["limit"], tokens["last_event_ms"]) == ({"user": user}, 5.0, start_ms)
    assert tokens["tokens"] == 55.0 - 10_000 + 5.0 * ((answer["at_ms"] - start_ms) / 1000.0)
    # The state isn't that of the end: what the job decided while Spark started is missing.
    assert answer["at_ms"] - began_ms < time.time_ns() // 1_000_000 - answer["at_ms"]
    job.publish([creates_event(user, [1], start_ms + 1, "last")])
    job.answered(3)
    job.stop()
    location = job.settings.enforce.checkpoint
    newest, first = read_state(spark, location), read_state(spark, location, 0)
    of_user = "user = 'O=A|\\u001b[2J' AND quota = 'controller_mutation_rate'"
    (after,), (before_it,) = (
        state.where(of_user).select("samples.value", "tokens", "tokens_ms", "client_id", "shadow").collect()
        for state in (newest, first)
    )
    assert after.asDict() == {
        "value": [10_000.0],  # the second is refused, and takes nothing
        "tokens": 55.0 - 10_000 + 5.0 * 0.001,
        "tokens_ms": start_ms + 1,
        "client_id": "",
        "shadow": False,
    }
    assert (before_it["tokens"], before_it["tokens_ms"]) == (55.0 - 10_000, start_ms)
    (odd := tmp_path / "odd name").symlink_to(location)
    for place, batch_id, reason in (Path(location), 999, "no micro-batch 999, but 0 to "), (odd, None, "a blank"):
        with pytest.raises(CheckpointError, match=reason):
            read_state(spark, place, batch_id)
    in_sql = f"inline({DECODER}(value.groupState.payload))"
    stored = spark.read.format("statestore").load(location).selectExpr(in_sql)
    assert stored.exceptAll(newest).count() == newest.exceptAll(stored).count() == 0 < newest.count()
    client = "client_id = '' AND quota = 'controller_mutation_rate' AND user != 'other'"
    _, now, then, quotas = run_cells(NOTEBOOK, capsys, CHECKPOINT=location, CLIENT=client, BATCHES_AGO=100)
    assert (now["tokens"].tolist(), then["tokens"].tolist()) == ([after["tokens"]], [before_it["tokens"]])
    assert now["in_window"].tolist() == [10_000.0]
    assert dict(zip(quotas["quota"], quotas["counters"], strict=True))["controller_mutation_rate"] == 2


def files_of(folder: Path) -> set[tuple[str, int]]:
    """Name and time of change of every file."""
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def settings(kafka_broker: str, tmp_path: Path) -> Settings:
    """Settings of a job whose topics exist and whose checkpoint doesn't."""
    settings = job_with(tmp_path / "offsets", kafka_broker, "checkpoint", pages=8, shuffle_partitions=2).settings
    ensure_topics(settings.topics, settings.kafka)
    return settings


def test_a_job_without_a_checkpoint_begins_at_the_beginning(settings: Settings) -> None:
    assert starting_offsets(settings) == "earliest"


def test_a_partition_gained_since_the_export_is_read_from_its_beginning(settings: Settings) -> None:
    begin_at(settings, {0: 17})

    with connect(KafkaAdminClient, settings.kafka) as admin:
        admin.create_partitions({settings.topics.requests: 3})

    wanted = {settings.topics.requests: {"0": 17, "1": -2, "2": -2}}
    wait_until(lambda: json.loads(starting_offsets(settings)) == wanted, 120)


def test_a_partition_that_is_gone_since_the_export_stops_the_start(settings: Settings) -> None:
    """The topic isn't the one that the balances come from."""
    begin_at(settings, {0: 17, 3: 4})

    with pytest.raises(CheckpointError, match="has no partition 3"):
        starting_offsets(settings)


def begin_at(settings: Settings, offsets: dict[int, int]) -> None:
    """A checkpoint without balances that begins at these offsets."""
    store_imported(Checkpoint(settings.enforce.checkpoint), Balances(Origin.of(settings), offsets, {}))
