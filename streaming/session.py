"""The Spark session of the job."""

import atexit
import os
import shutil
import sys
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from pyspark.sql import SparkSession

from configs.settings import Settings
from streaming.checkpoint import CheckpointFolder
from streaming.jars import spark_jars
from streaming.java import find_java

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_LONGEST_SOCKET_FOLDER_BYTES = 60
"""Linux allows a socket's path 107 bytes and macOS 103; Spark's name for it takes 43."""

_DEFAULTS = {
    "spark.app.name": "sluice",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a Delta commit of the audit query must not hold up a decision
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|passphrase",
    "spark.sql.session.timeZone": "UTC",
    # Spark makes this folder, by default in the current one; Sluice has no managed tables.
    "spark.sql.warehouse.dir": str(Path(gettempdir()) / "sluice-warehouse"),
    "spark.sql.debug.maxToStringFields": "1000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.metricsEnabled": "true",
}

_LOCAL_CHECKPOINTS = {
    # Hadoop's other interface starts ten processes (chmod, readlink) for each local file, a quarter of a second in
    # every micro-batch. Neither renames in one step with its check on a local disk; the checkpoint's lock sees to that.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def session_properties(settings: Settings) -> dict[str, str]:
    """Sluice's properties of the session; section `spark` overrides any of them, and adds to Java's options."""
    checkpoints = (CheckpointFolder(settings.enforce.checkpoint), CheckpointFolder(settings.audit.checkpoint))
    local = all(checkpoint.is_local for checkpoint in checkpoints)
    properties = _DEFAULTS | (_LOCAL_CHECKPOINTS if local else {}) | settings.spark
    properties[_JAVA_OPTIONS] = f"{_LOGGING} {properties.get(_JAVA_OPTIONS, '')}".strip()
    return properties


def start_session(settings: Settings) -> SparkSession:
    """The session with Sluice's properties. Raises JarError and JavaError."""
    properties = session_properties(settings)
    # Workers would start the python3 of the PATH; the UI and block manager would listen on every interface.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if properties["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties = local_properties() | properties
    find_java()
    builder = SparkSession.builder.config("spark.jars", ",".join(map(str, spark_jars())))
    for name, value in properties.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    partitions = settings.enforce.shuffle_partitions or session.sparkContext.defaultParallelism
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return session


def local_properties() -> dict[str, str]:
    """Properties for a driver whose executor and workers are on the same machine."""
    properties = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    sockets = mkdtemp(prefix="sluice-")  # only this user may enter it
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    if len(os.fsencode(sockets)) <= _LONGEST_SOCKET_FOLDER_BYTES:
        # Over TCP a worker waits 40 ms for each acknowledgement that the other side puts off.
        properties["spark.python.unix.domain.socket.enabled"] = "true"
        properties["spark.python.unix.domain.socket.dir"] = sockets
    return properties
