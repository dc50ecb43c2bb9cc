"""The Spark session of the job."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from sluice.configs.settings import Properties, load_settings
from sluice.streaming.runtime.properties import driver_properties, huge_pages

pytestmark = pytest.mark.spark

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_options_for_java_are_added_to_sluices_own(spark: SparkSession) -> None:
    """Section `spark` of the settings must not switch off Sluice's logging as a side effect."""
    jvm: Any = spark._jvm
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()

    assert [option for option in options if option.startswith("-Dlog4j2.configurationFile=file:")]
    assert "-XX:TieredStopAtLevel=1" in options


@pytest.mark.parametrize(("given", "used"), [("", "Parallel"), ("-XX:+UseG1GC", "G1"), ("-XX:+UseXGC", "Parallel X")])
def test_java_gets_one_garbage_collector(given: str, used: str) -> None:
    """It doesn't start with two; a name that Java doesn't know, which Spark lets it ignore, leaves it Sluice's."""
    settings, name = load_settings(environment={}), "spark.driver.extraJavaOptions"
    options = driver_properties(replace(settings, spark=Properties({**settings.spark, name: given})))[name]

    assert re.findall(r"-XX:\+Use(\w+)GC", options) == used.split()


def test_java_asks_for_huge_pages_where_the_kernel_offers_them(tmp_path: Path) -> None:
    """Elsewhere it would warn at each start."""
    for content, options in (
        ("always [madvise] never", 1),
        ("[always] madvise never", 1),
        ("always madvise [never]", 0),
    ):
        (tmp_path / "enabled").write_text(content)
        assert len(huge_pages(tmp_path / "enabled")) == options
    assert not huge_pages(tmp_path / "nowhere")


def test_an_interruption_is_found_in_a_long_error(spark: SparkSession) -> None:
    """Spark's search recurses for each character; with Java's own stack it ends in a StackOverflowError."""
    jvm: Any = spark._jvm
    streaming = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "StreamExecution$")
    trace = "\tat org.apache.spark.Some.method(Some.scala:1)\n" * 1_000
    call = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.save.\n"
    error = jvm.py4j.Py4JException(f"{call}{trace}Caused by: java.lang.InterruptedException")

    found = getattr(streaming, "MODULE$").isInterruptionException(error, spark.sparkContext._jsc.sc())

    assert found


@pytest.mark.parametrize(
    ("checkpoints", "file_manager"),
    [
        ("/var/lib/sluice", "FileSystemBasedCheckpointFileManager"),
        ("hdfs://name", ""),
        ("s3a://bucket", "ObjectStoreFiles"),
    ],
)
def test_the_file_manager_goes_by_where_the_checkpoints_are(checkpoints: str, file_manager: str) -> None:
    """On a local disk Hadoop's FileContext runs readlink for each file; on HDFS it alone renames atomically."""
    settings = load_settings(environment={})
    settings = replace(
        settings,
        enforce=replace(settings.enforce, checkpoint=f"{checkpoints}/enforce"),
        audit=replace(settings.audit, checkpoint=f"{checkpoints}/audit"),
    )

    assert driver_properties(settings).get(_FILE_MANAGER, "").endswith(file_manager)
    assert bool(file_manager) == (_FILE_MANAGER in driver_properties(settings))


def test_local_files_are_made_without_starting_a_process(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's own class runs chmod for each; the time that ended children have taken tells."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    files = path(tmp_path.as_uri()).getFileSystem(spark._jsc.hadoopConfiguration())
    java = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())

    before = java.cpu_times()
    for number in range(100):
        files.create(path((tmp_path / str(number)).as_uri()), True).close()
    after = java.cpu_times()

    assert after.children_user + after.children_system == before.children_user + before.children_system
    assert len([file for file in tmp_path.iterdir() if not file.name.startswith(".")]) == 100


def test_a_micro_batch_broadcasts_no_defaults_of_hadoop(spark: SparkSession) -> None:
    """Spark writes the whole configuration for each of them; what the properties set stays in force."""
    configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
    prefix, properties = "spark.hadoop.", spark.sparkContext.getConf().getAll()
    set_by_spark = {name.removeprefix(prefix) for name, _ in properties if name.startswith(prefix)}

    names = set(configuration.getValByRegex(".*").keySet())

    assert set_by_spark <= names
    assert {name for name in names if not name.startswith("spark.")} <= set_by_spark
    files = configuration.getPropertySources("io.file.buffer.size")  # a name of Hadoop's own
    assert (configuration.get("fs.permissions.umask-mode"), files) == ("077", None)


def test_no_task_is_sent_what_java_was_launched_with(spark: SparkSession) -> None:
    """Spark sends all properties of the session to each task, and the class path is 30 KB."""
    name = "spark.driver.extraClassPath"
    assert spark.conf.get(name, None) is None
    assert spark.sparkContext.getConf().get(name)


def test_workers_talk_over_sockets_that_only_this_user_can_reach(spark: SparkSession) -> None:
    """Over TCP a micro-batch waits for delayed acknowledgements; no other user can enter the folder."""
    folder = Path(str(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir")))

    assert spark.range(4).rdd.map(lambda row: row.id).sum() == 6  # starts workers
    assert [file for file in folder.iterdir() if file.is_socket()]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_local_checkpoint_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    """The file manager reads back what it wrote; each micro-batch is written once."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for text in ("a", "b"):
        (source / text).write_text(text)
        stream = spark.readStream.text(str(source)).writeStream.option("checkpointLocation", str(tmp_path / "c"))
        stream.trigger(availableNow=True).start(str(output), "json").awaitTermination()

    assert sorted(row.value for row in spark.read.json(str(output)).collect()) == ["a", "b"]
    assert sorted(name for name in os.listdir(tmp_path / "c" / "offsets") if not name.startswith(".")) == ["0", "1"]


def test_what_java_and_workers_write_is_for_its_owner_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Tables, checkpoints and shuffle files hold users' names; Hadoop sets modes by itself, whatever the umask is."""

    def write(number: int) -> int:
        (tmp_path / f"worker-{number}").write_text("alice")
        return number

    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    spark.range(100).repartition(4).write.format("delta").save(str(table))
    stream = spark.readStream.format("delta").load(str(table)).groupBy("id").count().writeStream
    stream = stream.option("checkpointLocation", str(checkpoint)).format("noop").outputMode("complete")
    stream.trigger(availableNow=True).start().awaitTermination()
    assert spark.sparkContext.parallelize(range(4), 4).map(write).map(lambda n: (n, n)).groupByKey().count() == 4

    jvm: Any = spark._jvm
    local = [
        Path(str(folder))
        for folder in jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirsString()
    ]
    written = [tmp_path / "table", *(path for folder in (tmp_path, *local) for path in folder.rglob("*"))]
    assert {path.name for path in written} >= {"worker-0", "_delta_log", "offsets"}
    assert [path for path in (*written, *local) if path.stat().st_mode & 0o077] == []
