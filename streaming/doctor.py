"""Looks over everything the job needs and says, one line a check, what is well and how to mend what isn't."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from configs.settings import Settings
from sinks.quotas_table import QuotasTable
from sinks.topics import connect
from state.errors import SluiceError
from streaming import jars
from streaming.checkpoint import CheckpointFolder, check_origin
from streaming.errors import CheckError
from streaming.java import find_java
from streaming.spark_files import check_enforce_checkpoint

CORE_SECONDS_FOR_A_MILLION = 12
"""What reading and writing the counters of a million entities in a micro-batch takes: ./scripts/soak on 2 cores."""


def run_doctor(settings: Settings, show: Callable[[str], object] = print) -> int:
    """Shows one line a check, `ok` or `FAIL`; answers 0 when all pass, 1 otherwise. Changes nothing."""

    def passes(name: str, check: Callable[[], str]) -> bool:
        try:
            show(f"ok    {name}: {check()}")
        except (SluiceError, OSError) as error:
            show(f"FAIL  {name}: {' '.join(str(error).split())}")
            return False
        return True

    passed = [
        passes("python", check_python),
        passes("java", check_java),
        passes("jars of Spark", lambda: check_jars("spark")),
        passes("jars of the embedded broker", lambda: check_jars("broker")),
        # without a broker the topics could only fail too, after another wait
        passes("broker", lambda: check_broker(settings)) and passes("topics", lambda: check_topics(settings)),
        passes("checkpoint", lambda: check_checkpoint(settings)),
        passes("quotas table", lambda: check_quotas_table(settings)),
        passes("sizing", lambda: check_sizing(settings)),
    ]
    return 0 if all(passed) else 1


def check_python() -> str:
    """Version and place of the running Python; an older one than 3.11 can't even install Sluice."""
    return f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"


def check_java() -> str:
    """Version and place of the Java that Spark will use. Raises JavaError."""
    executable, version = find_java()
    return f"{version} ({executable})"


def check_jars(conf: str) -> str:
    """How many jars of `conf` are there, each with the right checksum. Raises JarError."""
    return f"{jars.verify(conf)} in {jars.jars_home() / conf}, checksums right"


def check_broker(settings: Settings) -> str:
    """The address that answered. Raises KafkaUnavailableError."""
    connect(KafkaAdminClient, settings.kafka).close()
    return f"{settings.kafka['bootstrap.servers']} answers"


def check_topics(settings: Settings) -> str:
    """The three topics of the job. Raises CheckError when one is missing or they can't be listed."""
    topics = settings.topics
    wanted = [topics.requests, topics.decisions, topics.dead_letters]
    try:
        with connect(KafkaAdminClient, settings.kafka) as admin:
            existing = set(admin.list_topics())
    except KafkaError as error:
        raise CheckError(f"can't be listed ({error}); check that the user may describe topics") from error
    missing = [topic for topic in wanted if topic not in existing]
    if missing:
        raise CheckError(f"{', '.join(missing)} not there; sluice run creates them, or create them yourself")
    return f"{', '.join(wanted)} exist"


def check_checkpoint(settings: Settings) -> str:
    """What the enforce checkpoint was made with. Raises CheckError or CheckpointError when the job can't use it."""
    folder = CheckpointFolder(settings.enforce.checkpoint)
    if folder.is_local:
        _check_writable(Path(folder.checkpoint))
    check_enforce_checkpoint(settings)
    made_with = folder.read("sluice.json")
    if made_with is None:
        return f"{folder.checkpoint} is new"
    check_origin(folder, settings)
    return f"{folder.checkpoint} was made with {made_with.decode()}"


def _check_writable(folder: Path) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise CheckError(f"{existing} is no folder that can be written to; set enforce.checkpoint to another one")


def check_quotas_table(settings: Settings) -> str:
    """Place, version and size of the quotas table. Raises QuotasTableError."""
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    version = table.version()
    return f"{table.path} is at version {version} with {len(table.entries(version))} quotas"


def check_sizing(settings: Settings) -> str:
    """What the frozen numbers mean on this machine; docs/operating.md says how to choose them."""
    shards, cores = settings.state.shards, os.cpu_count() or 1
    tasks = settings.enforce.shuffle_partitions or f"as many as Spark has cores (here {cores})"
    return (
        f"{shards} shards; tasks that work on them: {tasks}, more than {shards} would be idle; on {cores} cores a"
        f" micro-batch takes about {CORE_SECONDS_FOR_A_MILLION / cores:.1f} s for each million known entities"
    )
