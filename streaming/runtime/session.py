"""The Spark session of the job."""

import logging
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import version
from threading import current_thread, main_thread

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.jvm.class_archive import ARCHIVE_OPTION
from sluice.jvm.driver import DriverJava, forget_address
from sluice.jvm.errors import JavaError
from sluice.jvm.jars import SPARK_JARS, jars_home
from sluice.streaming.java_bridge import forget_hadoop_defaults, forget_launch, has_java, java, keep_process
from sluice.streaming.queries.reasons import reason_of
from sluice.streaming.runtime.properties import (
    JAVA_OPTIONS,
    has_remote_folders,
    is_on_one_machine,
    is_one_process,
    prepared_properties,
    start_java,
)
from sluice.streaming.runtime.run_folder import run_folder
from sluice.streaming.workers.engine_start import (
    NATIVE_LOADED,
    NATIVE_MISSING,
    NATIVE_VARIABLE,
    engine_missing,
    unbatched,
    worker_daemon,
)
from sluice.streaming.workers.release import VARIABLE, package_digest

log = logging.getLogger("sluice.session")

_DAEMON = "spark.python.daemon.module"


def start_session(settings: Settings, driver_java: DriverJava | None = None) -> SparkSession:
    """Start a session with Sluice's properties, in this Java if it is given.

    Raises JarError, JavaError and RunFolderError.
    """
    if settings.enforce.batched_workers and (reason := unbatched()):
        log.warning("workers are those of PySpark %s, slower with many pages: %s", version("pyspark"), reason)
    if has_java():
        properties = prepared_properties(settings)
    else:
        driver_java = driver_java or start_java(settings)
        properties = dict(driver_java.properties)
        driver_java.hand_over()
    properties = properties_of_workers(settings) | properties
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext.getOrCreate(SparkConf().setAll(list(properties.items())))
    except Py4JError as error:
        raise JavaError(f"Spark doesn't start: {reason_of(error, 'enforce').text}") from error
    finally:
        forget_address()
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, interrupt)  # the context has set a handler that raises KeyboardInterrupt
    if driver_java is not None:
        keep_process(context, driver_java.process)
    _leave_signals_to_the_driver(context)
    _tell_of_unused_archive(context, properties)
    session = SparkSession.builder.config(map=dict(properties)).getOrCreate()
    partitions = settings.enforce.shuffle_partitions or session.sparkContext.defaultParallelism
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    forget_launch(session)
    if is_one_process(properties) and not has_remote_folders(settings):
        forget_hadoop_defaults(session)
    run_folder(settings.enforce.checkpoint).remember()
    return session


def properties_of_workers(settings: Settings) -> dict[str, str]:
    """The daemon, and the variables that say which release the driver has, and if native code is wanted and there."""
    daemon = worker_daemon(batched=settings.enforce.batched_workers, one_machine=is_on_one_machine(settings))
    variables = {VARIABLE: package_digest()}
    if settings.enforce.native:
        variables[NATIVE_VARIABLE] = NATIVE_MISSING if engine_missing() else NATIVE_LOADED
    properties = {f"spark.executorEnv.{name}": value for name, value in variables.items()}
    return properties | ({_DAEMON: daemon} if daemon else {})


def _tell_of_unused_archive(context: SparkContext, properties: Mapping[str, str]) -> None:
    """Say so if Java has left the archive aside, which Java itself doesn't."""
    if ARCHIVE_OPTION not in properties[JAVA_OPTIONS]:
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


def _leave_signals_to_the_driver(context: SparkContext) -> None:
    """Make Java ignore SIGTERM and SIGINT, which terminals and systemd send to the driver's children too.

    The driver lets the micro-batch under way end first. Java ends when its standard input does, so it still ends with
    the driver, however that ends.
    """
    signals = java(context).sun.misc
    for name in ("TERM", "INT"):
        signals.Signal.handle(signals.Signal(name), signals.SignalHandler.SIG_IGN)
