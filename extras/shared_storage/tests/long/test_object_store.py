"""Checkpoints and tables on a real S3: a job that goes on after a crash, and what its store has to be able to do."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JJavaError

from sluice.configs.settings import Settings, load_settings, reach_stores
from sluice.sinks.tables.delta import AuditTable, Commit, create_table
from sluice.sinks.tables.delta_files import DayFiles, add_files
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime.properties import bare_java, checkpoint_properties
from sluice_demo.job import TABLES, Json
from sluice_lab.testbed.object_store import ObjectStore
from sluice_shared_storage import object_store
from sluice_shared_storage.jars import FILE_MANAGER
from sluice_shared_storage.object_store import open_s3
from sluice_toolbox.machine import Jvm
from storage_rules import (
    QUOTA,
    assert_files_are_there_replaced_and_gone,
    assert_storage_that_does_not_answer_is_an_error,
    assert_the_quotas_table_is_altered,
)
from tests.commands import run_sluice
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]

EVENTS = [b'{"api": "Metadata", "user": "alice", "request_time_ns": 1000}'] * 20
QUOTAS = [{"entity": {"user": None}, "quotas": {"request_percentage": 5}}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store") / "store") as store:
        yield store


@pytest.fixture(autouse=True)
def well(store: ObjectStore) -> Iterator[None]:
    """The store is well before and after each test."""
    yield
    store.misbehave()


@pytest.fixture
def folder(store: ObjectStore, request: pytest.FixtureRequest) -> str:
    """A new place in the bucket for each test."""
    return f"{store.url}/{re.sub(r'[^a-z]+', '-', request.node.name)}"


@pytest.fixture
def settings(store: ObjectStore, folder: str, tmp_path: Path) -> Settings:
    """Those of a job with its checkpoints there; this process reaches the store as its commands do."""
    file = tmp_path / "settings.yaml"
    s3 = ", ".join(f"{name}: '{value}'" for name, value in store.settings()["s3"].items())
    file.write_text(
        f"enforce: {{checkpoint: '{folder}/enforce'}}\naudit: {{checkpoint: '{folder}/audit'}}\ns3: {{{s3}}}\n"
    )
    settings = load_settings(file)
    reach_stores(settings)
    object_store._bucket.cache_clear()  # the keys may have been renewed: the first request with the old ones is refused
    return settings


def job_on(
    store: ObjectStore,
    folder: str,
    tmp_path: Path,
    broker: str,
    profile: str = "default",
    name: str = "enforce",
    **sections: Json,
) -> JobProcess:
    delta = {name: f"{folder}/delta/{name}" for name in TABLES}
    return JobProcess(
        tmp_path / "job",
        broker,
        QUOTAS,
        enforce={"checkpoint": f"{folder}/checkpoints/{name}"},
        audit={"checkpoint": f"{folder}/checkpoints/audit"} | AUDITED,
        delta=delta,
        **store.settings(profile),
        **sections,
    )


def rows(job: JobProcess, table: str) -> list[Json]:
    path = getattr(job.settings.delta, table)
    if not DeltaTable.is_deltatable(path):
        return []
    found: list[Json] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return found


def test_a_job_decides_and_writes_tables_and_goes_on_after_a_crash_and_after_the_store_was_away(
    store: ObjectStore, folder: str, tmp_path: Path, kafka_broker: str
) -> None:
    job = job_on(store, folder, tmp_path, kafka_broker)
    try:
        job.start()
        job.publish(EVENTS)
        job.answered(20)
        wait_until(lambda: len(rows(job, "decisions")) == 20, 120)

        job.publish(EVENTS)
        job.kill()
        job.start()
        job.answered(40)

        store.misbehave(away=True)
        job.publish(EVENTS)
        wait_until(lambda: "onnection refused" in job.log_file.read_text(), 120)
        store.misbehave()
        job.answered(60)
        wait_until(lambda: len(rows(job, "decisions")) == 60, 120)
        ids = [decision["decision_id"] for decision in job.decisions()]
    finally:
        job.stop()

    exported = run_sluice("state", "export", tmp_path / "balances", "--config", job.settings_file)
    written = [*tmp_path.rglob("*.log"), job.settings_file]

    assert exported.code == 0, exported.error
    assert len(set(ids)) == len(ids) == 60
    assert not [file for file in written if store.secret in file.read_text()]
    assert sorted(row["source_offset"] for row in rows(job, "decisions")) == list(range(60))


def test_balances_move_to_other_pages_there(store: ObjectStore, folder: str, tmp_path: Path, kafka_broker: str) -> None:
    job = job_on(store, folder, tmp_path, kafka_broker)
    try:
        job.start()
        job.publish(EVENTS)
        job.answered(20)
        job.stop()

        assert run_sluice("state", "export", tmp_path / "balances", "--config", job.settings_file).code == 0
        job = job_on(store, folder, tmp_path, kafka_broker, name="other", state={"pages": 7})
        imported = run_sluice("state", "import", tmp_path / "balances", "--config", job.settings_file)
        assert "imported 1 entities into 7 pages" in imported.output, imported.error
        job.start()
        job.publish(EVENTS)
        job.answered(40)
    finally:
        job.stop()

    assert len({decision["decision_id"] for decision in job.decisions()}) == 40


def refusal(job: JobProcess) -> str:
    """The line with which a job ends at its start."""
    job.launch()
    try:
        wait_until(lambda: not job.alive, 120)
    finally:
        job.kill()
    return job.last_line()


def test_a_store_that_overwrites_what_is_there_is_refused_with_one_line(
    store: ObjectStore, folder: str, tmp_path: Path, kafka_broker: str
) -> None:
    store.misbehave(unconditional=True)

    line = refusal(job_on(store, folder, tmp_path, kafka_broker))
    assert "is in a store that overwrites an object although If-None-Match forbids it" in line


@pytest.mark.parametrize("profile", ["without-rights", "without-list", "reader"])
def test_a_bucket_without_rights_is_one_line(
    store: ObjectStore, folder: str, tmp_path: Path, kafka_broker: str, profile: str
) -> None:
    job = job_on(store, folder, tmp_path, kafka_broker, profile)
    line = refusal(job)

    assert "403 Forbidden" in line
    assert "may not all of s3:GetObject, PutObject, DeleteObject and ListBucket there" in line
    assert traces(job) == []


def test_a_job_outlasts_keys_that_are_renewed_an_expired_token_and_a_bucket_that_is_gone(
    store: ObjectStore, folder: str, tmp_path: Path, kafka_broker: str
) -> None:
    job = job_on(store, folder, tmp_path, kafka_broker, restart={"max_failures": 20, "max_backoff_ms": 1000})
    said = {
        "ExpiredToken": "The provided token has expired",
        "NoSuchBucket": "The specified bucket does not exist",
        "AccessDenied": "Access Denied",
    }
    count = 0

    def is_all_written() -> bool:
        return len(rows(job, "decisions")) == count

    def is_said() -> bool:
        return any(said[code] in entry["message"] for entry in job.log())

    try:
        job.start()
        for code in ("", "renewed", *said):
            if code in said:
                store.misbehave(refusal=code)
            elif code:
                store.renew_keys()
            job.publish(EVENTS)
            if code in said:
                wait_until(is_said, 120)
                store.misbehave()
            count += len(EVENTS)
            job.answered(count)
            wait_until(is_all_written, 120)
    finally:
        job.stop()

    assert sorted(row["source_offset"] for row in rows(job, "decisions")) == list(range(100))
    assert len({decision["decision_id"] for decision in job.decisions()}) == 100
    assert traces(job) == []


def traces(job: JobProcess) -> list[str]:
    """Lines of the last start that are neither an entry nor a line of Java's log."""
    lines = job.log_file.read_text().splitlines()
    return [line for line in lines if not re.match(r"\{|\d{4}-\d\d-\d\dT|sluice: error: |WARNING: Using incub", line)]


def test_files_are_there_once_written_replaced_in_one_step_and_gone_once_removed(settings: Settings) -> None:
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    assert_files_are_there_replaced_and_gone(checkpoint)
    QuotaSnapshots(checkpoint).save(3, [QUOTA])
    assert QuotaSnapshots(checkpoint).entries(3) == [QUOTA]


def hadoop_settings(java: Any, settings: Settings) -> Any:
    """Hadoop's configuration of the job."""
    configuration = java.org.apache.hadoop.conf.Configuration()
    for name, value in checkpoint_properties(settings).items():
        configuration.set(name.removeprefix("spark.hadoop."), value)
    return configuration


@contextmanager
def spark_files(settings: Settings, folder: str) -> Iterator[tuple[Any, Any, Callable[[str], Any]]]:
    """Java, the files of a folder of the checkpoint as Spark has them, and a function that makes the path of one."""
    class_path, options = bare_java(settings)
    location = f"{Checkpoint(settings.enforce.checkpoint).location}/{folder}"
    with Jvm(class_path, options) as jvm:
        java = jvm.packages
        assert FILE_MANAGER == "sluice.spark.ObjectStoreFiles"
        path = java.org.apache.hadoop.fs.Path
        files = java.sluice.spark.ObjectStoreFiles(path(location), hadoop_settings(java, settings))
        yield java, files, lambda name: path(f"{location}/{name}")


def test_of_drivers_that_make_one_file_at_once_one_does(settings: Settings) -> None:
    with spark_files(settings, "offsets") as (_, files, path):

        def create(number: int) -> str:
            stream = files.createAtomic(path("7"), False)
            stream.write(b"%d" % number)
            try:
                stream.close()
            except Exception as error:
                return str(error)
            return "made"

        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(create, range(4)))
        content = Checkpoint(settings.enforce.checkpoint).spark.read("offsets/7")
        cancelled = files.createAtomic(path("8"), False)
        cancelled.write(b"never")
        cancelled.cancel()
        listed = [status.getPath().getName() for status in files.list(path(""))]

    assert made.count("made") == 1
    assert all("FileAlreadyExistsException" in each for each in made if each != "made")
    assert content == b"%d" % made.index("made")
    assert listed == ["7"]


def test_a_file_of_a_snapshot_is_copied_there(settings: Settings, tmp_path: Path) -> None:
    local = tmp_path / "8.sst"
    local.write_bytes(b"x" * 5000)
    with spark_files(settings, "state/0/0") as (java, _, path):
        copied = path("8.sst").getFileSystem(hadoop_settings(java, settings))
        copied.copyFromLocalFile(java.org.apache.hadoop.fs.Path(local.as_uri()), path("8.sst"))

    assert Checkpoint(settings.enforce.checkpoint).spark.read("state/0/0/8.sst") == local.read_bytes()


def test_a_query_that_is_stopped_while_keys_are_read_is_interrupted(settings: Settings) -> None:
    """For Spark any other error is a failure, at whose report it reads keys again, and prints where."""
    with spark_files(settings, "offsets") as (java, files, path):

        def is_interrupted_at_keys() -> bool:
            java.java.lang.Thread.currentThread().interrupt()
            try:
                files.exists(path("7"))
            except Py4JJavaError as error:
                return "UncheckedIOException: java.io.InterruptedIOException: Interrupted waiting" in str(error)
            return False

        files.exists(path("7"))
        wait_until(is_interrupted_at_keys, 120)  # keys are looked at again from time to time


def test_a_changelog_that_is_opened_twice_takes_two_requests_and_is_read_again_after_that(
    store: ObjectStore, settings: Settings
) -> None:
    with spark_files(settings, "state/0/0") as (_, files, path):

        def write(content: bytes) -> None:
            stream = files.createAtomic(path("1.changelog"), True)
            stream.write(content)
            stream.close()

        def read() -> bytes:
            stream = files.open(path("1.changelog"))
            content: bytes = stream.readAllBytes()
            stream.close()
            return content

        write(b"old")
        before = len(store.requests())
        found = [read(), read()]
        asked = [request.partition(" ")[0] for request in store.requests()[before:]]
        write(b"new")
        found += [read(), read()]

    assert found == [b"old", b"old", b"new", b"new"]
    assert asked == ["HEAD", "GET"]


@pytest.mark.usefixtures("settings")
def test_all_commits_of_writers_at_once_are_in_the_table(folder: str) -> None:
    """delta-rs alone writes tables, with a conditional write for each commit; the second of two repeats its own."""
    path = f"{folder}/table"
    write_deltalake(path, pa.table({"writer": [0], "number": [0]}))

    def write(writer: int) -> None:
        for number in range(10):
            write_deltalake(path, pa.table({"writer": [writer], "number": [number]}), mode="append")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (1, 2)))
    table = DeltaTable(path)

    assert table.version() == 20
    written = [(row["writer"], row["number"]) for row in table.to_pyarrow_table().to_pylist()]
    assert sorted(written) == [(0, 0), *((writer, number) for writer in (1, 2) for number in range(10))]


@pytest.mark.usefixtures("settings")
def test_a_commit_lists_only_what_came_after_the_last_checkpoint_of_the_log(store: ObjectStore, folder: str) -> None:
    """A listing of the whole log is a request for each thousand commits: 260 for those of a month."""
    columns = pa.schema([("source_offset", pa.int64()), ("date", pa.date32())])
    table = AuditTable(f"{folder}/table", columns, ["source_offset"])
    create_table(table, {})
    files, path = open_s3(table.path)
    for number in range(1, 51):
        with files.open_output_stream(f"{path}/_delta_log/{number:020}.json") as stream:
            stream.write(b'{"commitInfo": {"timestamp": 0, "operation": "WRITE"}}\n')
    DeltaTable(table.path).create_checkpoint()
    rows = DayFiles(table, {})
    rows.write(pa.table([[1], [date(2026, 1, 31)]], schema=columns))
    added = rows.close()
    opened = DeltaTable(table.path)

    before = len(store.requests())
    add_files(opened, added, Commit("audit", 0))
    asked = store.requests()[before:]

    assert DeltaTable(table.path).version() == 51
    assert len(asked) < 10, asked
    listings = [request for request in asked if request == "GET /sluice"]
    assert len(listings) == 2, "one before the commit, and one after it; both since the checkpoint"


@pytest.mark.usefixtures("settings")
def test_the_quotas_table_is_altered_there(folder: str) -> None:
    assert_the_quotas_table_is_altered(folder)


@pytest.mark.usefixtures("settings")
def test_a_file_with_new_keys_is_read_once_the_old_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).read_text()
    keys = tmp_path / "keys"
    keys.write_text(right.replace("secret_access_key = ", "secret_access_key = old"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    files = Checkpoint("s3a://of-no-other-test/enforce").sluice
    with pytest.raises(CheckpointError, match="403 Forbidden: the keys are wrong"):
        files.read("a.json")

    keys.write_text(right)
    with pytest.raises(CheckpointError, match="bucket does not exist"):
        files.read("a.json")


@pytest.mark.parametrize(
    ("fault", "reason"), [({"away": True}, "refused"), ({"refusal": "NoSuchBucket"}, "bucket does not exist")]
)
def test_a_store_that_does_not_answer_is_an_error_and_no_new_checkpoint(
    store: ObjectStore, settings: Settings, fault: Json, reason: str
) -> None:
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    checkpoint.sluice.write("quotas/1.msgpack", b"content")
    store.misbehave(**fault)
    wait_until(lambda: _fails(checkpoint.is_new), 120)

    assert_storage_that_does_not_answer_is_an_error(checkpoint, reason)


def _fails(call: Any) -> bool:
    try:
        call()
    except CheckpointError:
        return True
    return False
