"""The properties of the job's Spark session that its Java starts with. Nothing here loads PySpark."""

import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sluice.configs.settings import Settings, folders
from sluice.jvm.class_archive import SPARK_CLASSES, class_path, joined
from sluice.jvm.driver import REDACTED, DriverJava
from sluice.jvm.environment import foreign_variables, leave_out
from sluice.jvm.jars import SPARK_JARS
from sluice.streaming.checkpoint.store import store_of
from sluice.streaming.runtime.log import OWNER_ONLY
from sluice.streaming.runtime.run_folder import RunFolder, run_folder

log = logging.getLogger("sluice.session")

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_STACK = "-Xss32m"
"""Spark looks for an interruption in the text of an error, with a regular expression that recurses for each character.

With Java's 1 MiB an interrupted micro-batch prints a StackOverflowError of 1 024 lines. A thread takes what it uses.
"""

_COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=512m -XX:-UsePSAdaptiveSurvivorSizePolicy -XX:MaxTenuringThreshold=3"
"""With G1, which Java takes by itself, decisions come later (docs/decisions/0013-start-of-java.md).

The parallel collector goes through all, for half a second, when heap or room for classes grows: Java starts with both.
Survivor spaces of one size: if they adapted, most objects would soon move to memory that the kernel has to clear first.
"""

_INLINING = "-XX:InlineSmallCode=1200 -XX:FreqInlineSize=120 -XX:MaxInlineLevel=9"
"""About half of what Java's compiler takes into one method: it compiles all that Spark plans with in less CPU time."""

_NAMES_COLLECTOR = re.compile(r"-XX:\+Use(G1|Parallel|Serial|Shenandoah|Z|Epsilon)GC\b")

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"

_DEFAULTS = {
    "spark.app.name": "sluice",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a Delta commit of the audit query must not hold up a decision
    "spark.scheduler.listenerbus.exitTimeout": "10s",  # else the job waits at its end for a listener that blocks
    "spark.redaction.regex": REDACTED,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.debug.maxToStringFields": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Page batches and partial decisions are few rows of many bytes: without a bound all of a task's are one batch, in
    # large buffers of fresh memory each time, which the kernel clears (docs/decisions/0014-cost-of-a-micro-batch.md).
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.extensions.test.loadFromCp": "false",  # else Spark loads its machine learning
    # In each micro-batch Spark would write a class for each stage as text, only to find it compiled. With evaluators
    # stages have no closures, whose classes Spark reads from their jars (docs/decisions/0014-cost-of-a-micro-batch.md).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.execution.usePartitionEvaluator": "true",
    # Hadoop sets the mode of a local file that it writes by this, not by the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": f"{OWNER_ONLY:03o}",
}

_LOCAL_CHECKPOINTS = {
    # Hadoop's default interface (FileContext) starts a process (readlink) for each local file. On a local disk neither
    # interface checks and renames in one step; the checkpoint's lock keeps a second job out.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A commit that makes a snapshot takes 35 to 66 ms longer, by default each tenth. Spark uploads one a minute, so a
    # start after a crash has the changes of a minute to repeat anyway (docs/decisions/0014-cost-of-a-micro-batch.md).
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "50",
}

_ONE_PROCESS = {
    # What a micro-batch shuffles and broadcasts never leaves this process, and no lost executor has it made again
    # (docs/decisions/0014-cost-of-a-micro-batch.md).
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.shuffle.checksum.enabled": "false",
    "spark.broadcast.checksum": "false",
    "spark.broadcast.compress": "false",
    "spark.broadcast.blockSize": "64k",  # else Java clears 4 MiB for each of the three broadcasts
    # Its executor can't be lost alone. After two minutes in which the machine slept, it would be, and end the job.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10d",
    # Hadoop's own class starts a process (chmod) for each file and folder that it makes.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    # The one name that Hadoop's code has no default of its own for, if a listener of section `spark` writes files.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
}


def start_java(settings: Settings) -> DriverJava:
    """Start the driver's Java with Sluice's properties. Raises JarError, JavaError and RunFolderError."""
    return DriverJava(prepared_properties(settings), run_folder(settings.enforce.checkpoint).path)


def prepared_properties(settings: Settings) -> dict[str, str]:
    """All properties that Java gets, with this process prepared for its start.

    Raises JarError, JavaError and RunFolderError. Files that this process, Java and the workers write from now on are
    for their owner alone.
    """
    os.umask(OWNER_ONLY)
    properties = driver_properties(settings)
    leave_out(left_out(settings))
    # Spark's defaults are the python3 of the PATH for workers, and every interface for the UI and block manager.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = run_folder(settings.enforce.checkpoint)
    if is_on_one_machine(settings):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties = local_properties(folder) | properties
    properties = folder_properties(folder.path) | properties
    # Spark's own folders are there as well, unless section `spark` has a spark.local.dir.
    properties[JAVA_OPTIONS] = f"-Djava.io.tmpdir={folder.path} {properties[JAVA_OPTIONS]}"
    return (_ONE_PROCESS if is_one_process(properties) else {}) | properties | _jars(properties, _store_jars(settings))


def driver_properties(settings: Settings) -> dict[str, str]:
    """Sluice's own properties. Section `spark` overrides all but Java's options, which it adds to."""
    properties = _DEFAULTS | checkpoint_properties(settings) | settings.spark
    given = properties.get(JAVA_OPTIONS, "")
    own = [_LOGGING, _STACK, _INLINING, *huge_pages()]
    if not _NAMES_COLLECTOR.search(given):
        own += [_COLLECTOR, f"-Xms{properties['spark.driver.memory']}"]
    return properties | {JAVA_OPTIONS: " ".join([*own, given]).strip()}


def huge_pages(offered: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> list[str]:
    """The option for pages of 2 MiB, if the kernel offers them. Where it doesn't, Java would warn at each start."""
    with suppress(OSError):  # no Linux, or a container that hides it
        if "[never]" not in offered.read_text():
            return ["-XX:+UseTransparentHugePages"]
    return []


def checkpoint_properties(settings: Settings) -> dict[str, str]:
    """Properties by which Spark reads and writes the files of checkpoints where they are; none for its own ways."""
    stores = store_of(settings.enforce.checkpoint), store_of(settings.audit.checkpoint)
    if stores == (None, None):
        return _LOCAL_CHECKPOINTS
    return {name: value for each in stores if each for name, value in each.properties(os.environ).items()}


def _store_jars(settings: Settings) -> list[Path]:
    """The jars that Spark needs to reach the checkpoint. Raises JarError."""
    store = store_of(settings.enforce.checkpoint)
    return [] if store is None else [*store.jars()]


def bare_java(settings: Settings) -> tuple[list[Path], list[str]]:
    """Class path and options of a Java with Spark's classes and no session. Raises JarError and JavaError."""
    archive, given = SPARK_CLASSES.find(), settings.spark.get(_CLASS_PATH)
    own = [*(archive.class_path if archive else class_path()), *_store_jars(settings)]
    temporary = f"-Djava.io.tmpdir={run_folder(settings.enforce.checkpoint).path}"
    options = [*(archive.options if archive else ()), _LOGGING, temporary]
    options += ["-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    hadoop = [os.environ[name] for name in ("HADOOP_CONF_DIR",) if name in os.environ]
    return [*own, *map(Path, given.split(os.pathsep) if given else ()), *map(Path, hadoop)], options


def _jars(properties: Mapping[str, str], more: Sequence[Path]) -> dict[str, str]:
    """Properties by which Java finds Sluice's jars and `more`, and the archive of classes if there is one that fits.

    Those of `spark.jars` can't be archived, nor can any after jars that section `spark` has on the class path.
    """
    own, given, archive = [*SPARK_JARS.paths(), *more], properties.get(_CLASS_PATH), SPARK_CLASSES.find()
    jars = {} if is_one_process(properties) else {"spark.jars": ",".join(map(str, own))}
    if archive is None or given:
        command = f"{sys.executable} -m {SPARK_JARS.command}"
        why = f"with {_CLASS_PATH}" if given else f"for this Java and these jars, which {command} makes"
        log.info("the start takes longer: there is no archive of classes %s", why)
        return jars | {_CLASS_PATH: joined([*filter(None, [given]), *own])}
    return jars | {
        _CLASS_PATH: joined([*archive.class_path, *more]),
        JAVA_OPTIONS: f"{shlex.join(archive.options)} {properties[JAVA_OPTIONS]}",
    }


def is_one_process(properties: Mapping[str, str]) -> bool:
    """True if the executor is the driver, which needs no copies of jars."""
    return re.fullmatch(r"local(\[.*\])?", properties["spark.master"]) is not None


def is_on_one_machine(settings: Settings) -> bool:
    """True if the driver's machine has the executor and the workers as well."""
    return settings.spark["spark.master"].startswith("local")


def left_out(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables of the environment that the job doesn't take."""
    one_machine, hadoop = is_on_one_machine(settings), has_remote_folders(settings)
    return foreign_variables(environment, one_machine=one_machine, hadoop=hadoop)


def has_remote_folders(settings: Settings) -> bool:
    """True if a checkpoint or table is where Hadoop's configuration may tell how to reach it."""
    return any("://" in place for place in folders(settings).values())


def folder_properties(folder: Path) -> dict[str, str]:
    """Properties by which all that Spark keeps for a run is in one folder, not in the current one or by a known name.

    It has no managed tables and no packages.
    """
    names = {"spark.sql.warehouse.dir": "warehouse", "spark.hadoop.hadoop.tmp.dir": "hadoop", "spark.jars.ivy": "ivy"}
    return {name: str(folder / subfolder) for name, subfolder in names.items()}


def local_properties(folder: RunFolder) -> dict[str, str]:
    """Properties for a driver whose executor and workers are on the same machine."""
    properties = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if folder.takes_sockets:
        # Over TCP a worker waits for delayed acknowledgements.
        properties["spark.python.unix.domain.socket.enabled"] = "true"
        properties["spark.python.unix.domain.socket.dir"] = str(folder.path)
    return properties
