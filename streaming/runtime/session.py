"""The Spark session of the job."""

import atexit
import logging
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from threading import current_thread, main_thread

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.jvm.class_archive import ARCHIVE_OPTION, find_archive, joined
from sluice.jvm.jars import SPARK_JARS, jars_home
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.java_bridge import java
from sluice.streaming.runtime.log import OWNER_ONLY
from sluice.streaming.workers.contract import are_batched, broken_contract

log = logging.getLogger("sluice.session")

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_STACK = "-Xss32m"
"""Spark looks for an interruption in the text of an error, with a regular expression that recurses for each character.

With Java's 1 MiB an interrupted micro-batch prints a StackOverflowError of 1 024 lines. A thread takes only what it
uses of that.
"""

_DAEMON = "spark.python.daemon.module"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"

_LONGEST_SOCKET_FOLDER_BYTES = 60
"""Longest path of the folder: a socket's path has at most 107 bytes on Linux and 103 on macOS; Spark adds 43."""

_DEFAULTS = {
    "spark.app.name": "sluice",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a Delta commit of the audit query must not hold up a decision
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|passphrase",
    "spark.sql.session.timeZone": "UTC",
    # Spark creates this folder, by default in the current directory; Sluice has no managed tables.
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
    # Hadoop sets the mode of a local file that it writes by this, not by the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": f"{OWNER_ONLY:03o}",
}

_LOCAL_CHECKPOINTS = {
    # Hadoop's default interface (FileContext) starts a process (readlink) for each local file, which slows every
    # micro-batch. On a local disk neither interface checks and renames in one step; the checkpoint's lock keeps a
    # second job out.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_LOCAL_FILES = {
    # Hadoop's own class starts a process (chmod) for each file and folder that it makes.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
}


def session_properties(settings: Settings) -> dict[str, str]:
    """The properties of the session. Section `spark` overrides all but Java's options, which it adds to."""
    checkpoints = (Checkpoint(settings.enforce.checkpoint), Checkpoint(settings.audit.checkpoint))
    local = all(checkpoint.is_local for checkpoint in checkpoints)
    properties = _DEFAULTS | (_LOCAL_CHECKPOINTS if local else {}) | _workers(settings) | settings.spark
    properties[_JAVA_OPTIONS] = f"{_LOGGING} {_STACK} {properties.get(_JAVA_OPTIONS, '')}".strip()
    return properties


def _workers(settings: Settings) -> dict[str, str]:
    """The daemon of the Python workers; PySpark's own on the machines of a cluster, unless the workers are batched."""
    if are_batched(settings.enforce.batched_workers):
        return {_DAEMON: "sluice.streaming.workers.batched_daemon"}
    return {_DAEMON: "sluice.streaming.workers.daemon"} if settings.spark["spark.master"].startswith("local") else {}


def start_session(settings: Settings) -> SparkSession:
    """Start a session with Sluice's properties. Raises JarError and JavaError.

    What this process, Java and the workers write from now on is for its owner alone.
    """
    os.umask(OWNER_ONLY)
    properties = session_properties(settings)
    # Spark's defaults are the python3 of the PATH for workers, and every interface for the UI and block manager.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if properties["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties = local_properties() | properties
    if settings.enforce.batched_workers and (reason := broken_contract()):
        log.warning("workers are those of PySpark %s, slower with many pages: %s", version("pyspark"), reason)
    properties = (_LOCAL_FILES if _is_one_process(properties) else {}) | properties | _jars(properties)
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext.getOrCreate(SparkConf().setAll(list(properties.items())))
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, interrupt)  # the context has set a handler that raises KeyboardInterrupt
    _leave_signals_to_the_driver(context)
    _tell_of_unused_archive(context, properties)
    builder = SparkSession.builder
    for name, value in properties.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    partitions = settings.enforce.shuffle_partitions or session.sparkContext.defaultParallelism
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return session


def _jars(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties by which Java finds Sluice's jars, and the archive of their classes if there is one that fits.

    Those of `spark.jars` can't be archived, nor can any after jars that section `spark` has on the class path.
    """
    own, given, archive = SPARK_JARS.paths(), properties.get(_CLASS_PATH), find_archive()
    jars = {} if _is_one_process(properties) else {"spark.jars": ",".join(map(str, own))}
    if archive is None or given:
        command = f"{sys.executable} -m {SPARK_JARS.command}"
        why = f"with {_CLASS_PATH}" if given else f"for this Java and these jars, which {command} makes"
        log.info("the start takes longer: there is no archive of classes %s", why)
        return jars | {_CLASS_PATH: joined([*filter(None, [given]), *own])}
    return jars | {
        _CLASS_PATH: joined(archive.class_path),
        _JAVA_OPTIONS: f"{shlex.join(archive.options)} {properties[_JAVA_OPTIONS]}",
    }


def _tell_of_unused_archive(context: SparkContext, properties: Mapping[str, str]) -> None:
    """Say so if Java has left the archive aside, which Java itself doesn't."""
    if ARCHIVE_OPTION not in properties[_JAVA_OPTIONS]:
        return
    jvm = java(context)
    diagnostics = jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    bean = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(diagnostics)
    if bean.getVMOption("UseSharedSpaces").getValue() != "true":
        log.info(
            "the start takes longer: Java leaves the archive of classes in %s aside, which is damaged, or made with"
            " other options; remove it, and %s -m %s makes it again",
            jars_home(),
            sys.executable,
            SPARK_JARS.command,
        )


def _is_one_process(properties: Mapping[str, str]) -> bool:
    """True if the executor is the driver, which needs no copies of jars."""
    return re.fullmatch(r"local(\[.*\])?", properties["spark.master"]) is not None


def _leave_signals_to_the_driver(context: SparkContext) -> None:
    """Make Java ignore SIGTERM and SIGINT, which terminals and systemd send to the driver's children too.

    The driver lets the micro-batch under way end first. Java ends when its standard input does, so it still ends with
    the driver, however that ends.
    """
    signals = java(context).sun.misc
    for name in ("TERM", "INT"):
        signals.Signal.handle(signals.Signal(name), signals.SignalHandler.SIG_IGN)


def local_properties() -> dict[str, str]:
    """Properties for a driver whose executor and workers are on the same machine."""
    properties = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    sockets = mkdtemp(prefix="sluice-")  # accessible to this user only
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    if len(os.fsencode(sockets)) <= _LONGEST_SOCKET_FOLDER_BYTES:
        # Over TCP a worker waits for delayed acknowledgements.
        properties["spark.python.unix.domain.socket.enabled"] = "true"
        properties["spark.python.unix.domain.socket.dir"] = sockets
    return properties
