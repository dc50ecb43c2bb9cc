"""A checkpoint and tables on a real HDFS: what Sluice keeps there by itself, without Java, and beside Spark."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hdfs_native import Client
from pyspark.sql import SparkSession

from sluice.streaming.checkpoint.folder import Checkpoint
from sluice_lab.testbed.hdfs import Hdfs
from sluice_shared_storage import stores
from sluice_shared_storage.leader_epochs import new_epoch
from storage_rules import (
    assert_files_are_there_replaced_and_gone,
    assert_storage_that_does_not_answer_is_an_error,
    assert_the_quotas_table_is_altered,
)

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """One name node and three data nodes."""
    with Hdfs(tmp_path_factory.mktemp("hdfs") / "hdfs", 3) as hdfs:
        yield hdfs


@pytest.fixture
def checkpoint(hdfs: Hdfs, request: pytest.FixtureRequest) -> Checkpoint:
    """A new one for each test."""
    return Checkpoint(f"{hdfs.url}/checkpoints/{request.node.name}")


def test_files_are_there_once_written_replaced_in_one_step_and_gone_once_removed(checkpoint: Checkpoint) -> None:
    assert_files_are_there_replaced_and_gone(checkpoint)


def test_a_process_that_has_read_can_be_forked(checkpoint: Checkpoint) -> None:
    """As Spark's Python does to start Java and workers."""
    checkpoint.sluice.write("a.json", b"content")
    forked = multiprocessing.get_context("fork").Process(target=checkpoint.sluice.read, args=("a.json",))
    forked.start()
    forked.join(60)
    try:
        assert forked.exitcode == 0
    finally:
        forked.kill()


def test_of_drivers_that_make_one_file_at_once_one_does(spark: SparkSession, checkpoint: Checkpoint) -> None:
    """As Spark makes the files of its own logs: the name node renames without replacing."""
    create = stores.Hdfs().file_creator(spark, checkpoint.location)

    for name in ("batches/1.json", "batches/2.json"):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(partial(create, name), (b"%d" % number for number in range(4))))
        assert sum(made) == 1
        assert checkpoint.sluice.read(name) == b"%d" % made.index(True)
    assert [new_epoch(checkpoint, create) for _ in range(2)] == [1, 2]


def test_the_quotas_table_is_altered_without_java(hdfs: Hdfs) -> None:
    assert_the_quotas_table_is_altered(hdfs.url)


def test_files_are_written_and_read_while_a_data_node_is_dead(hdfs: Hdfs, checkpoint: Checkpoint) -> None:
    checkpoint.sluice.write("before", b"before")
    hdfs.data_nodes[1].end(signal.SIGKILL, 10)
    try:
        for number in range(6):  # the dead one is the first of some
            checkpoint.sluice.write(f"after-{number}", b"after")
            assert [checkpoint.sluice.read(name) for name in ("before", f"after-{number}")] == [b"before", b"after"]
        written = Client(hdfs.url).list_status(urlsplit(checkpoint.location).path, recursive=True)
        assert {file.replication for file in written if not file.isdir} == {3}  # HDFS makes those that are missing
    finally:
        hdfs.restart(1)


def test_an_hdfs_that_does_not_answer_is_an_error_and_no_new_checkpoint(tmp_path: Path) -> None:
    with Hdfs(tmp_path / "hdfs", 1) as gone:
        checkpoint = Checkpoint(f"{gone.url}/checkpoint")
        checkpoint.sluice.write("quotas/1.msgpack", b"content")

    assert_storage_that_does_not_answer_is_an_error(checkpoint)
