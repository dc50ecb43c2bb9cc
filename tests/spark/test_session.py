"""The Spark session that Sluice makes."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from configs.settings import load_settings
from streaming.session import local_properties, session_properties

pytestmark = pytest.mark.spark

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_options_for_java_are_added_to_sluices_own(spark: SparkSession) -> None:
    """Section `spark` of the settings must not switch off Sluice's logging by the way."""
    jvm: Any = spark._jvm
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()

    assert [option for option in options if option.startswith("-Dlog4j2.configurationFile=file:")]
    assert "-XX:TieredStopAtLevel=1" in options


def test_the_file_manager_goes_by_where_the_checkpoints_are(spark: SparkSession) -> None:
    """On a local disk Hadoop's FileContext runs chmod and readlink for each file; on HDFS only it renames at once."""
    settings = load_settings(environment={})
    remote = replace(settings, enforce=replace(settings.enforce, checkpoint="s3a://bucket/enforce"))

    assert str(spark.conf.get(_FILE_MANAGER)).endswith(".FileSystemBasedCheckpointFileManager")
    assert _FILE_MANAGER not in session_properties(remote)


def test_workers_talk_over_sockets_that_only_this_user_can_reach(spark: SparkSession) -> None:
    """Over TCP a micro-batch waited 40 ms for an acknowledgement that was put off; the folder is no one else's."""
    folder = Path(str(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir")))

    assert spark.range(4).rdd.map(lambda row: row.id).sum() == 6  # starts workers
    assert [file for file in folder.iterdir() if file.is_socket()]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_too_deep_for_sockets_leaves_workers_on_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path may have some hundred bytes; a longer one must not keep the job from starting."""
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    assert "spark.python.unix.domain.socket.enabled" not in local_properties()


def test_a_temporary_folder_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of few letters may have too many bytes for a socket."""
    with tempfile.TemporaryDirectory(prefix="é" * 30) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)

        assert "spark.python.unix.domain.socket.enabled" not in local_properties()


def test_a_local_checkpoint_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    """The file manager finds what it wrote; each micro-batch is written once."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for text in ("a", "b"):
        (source / text).write_text(text)
        stream = spark.readStream.text(str(source)).writeStream.option("checkpointLocation", str(tmp_path / "c"))
        stream.trigger(availableNow=True).start(str(output), "json").awaitTermination()

    assert sorted(row.value for row in spark.read.json(str(output)).collect()) == ["a", "b"]
    assert sorted(name for name in os.listdir(tmp_path / "c" / "offsets") if not name.startswith(".")) == ["0", "1"]
