"""The needs of the job on its machine, in one list: `sluice doctor` shows each check, and `sluice run` ends at a fault.

No check starts anything, makes a file or asks a broker; all of them take a tenth of a second.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from platform import python_version
from pwd import getpwuid
from resource import RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from shlex import quote
from tempfile import gettempdir

from sluice.cli.errors import CheckError, CheckWarningError
from sluice.configs.capacity import broker_limits
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.extras import JOB_PARTS, quota_source
from sluice.configs.quotas import seed_quotas
from sluice.configs.settings import Settings, folders, holds_path
from sluice.jvm.jars import SPARK_JARS, JarSet
from sluice.jvm.java import find_java
from sluice.process.folders import owner
from sluice.process.surroundings import foreign_python
from sluice.state.quotas.limits import OPERATOR
from sluice.streaming.checkpoint.folder import ORIGIN, RUNS, Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.checkpoint.store import store_of
from sluice.streaming.runtime.capacities import has_copy
from sluice.streaming.runtime.properties import left_out
from sluice.streaming.workers.engine_start import PYTHON_INSTEAD, engine_missing, found_engine

Check = Callable[[], str]
"""A line's words if all is well; raises CheckWarningError, another SluiceError, KafkaError or OSError if not."""

_LEAST_OPEN_FILES = 1_024  # Java doesn't start with 256; a job at work on one machine has about 500 open
_LEAST_THREADS = 512  # a job on two cores has some 150; those of the account's other processes count, too
_LEAST_ADDRESS_BYTES = 8 << 30  # with the default memory Java has 6.4 GB
_LEAST_FREE_BYTES = 64 << 20
"""Java unpacks 60 MB of libraries; the state's working copies come on top."""


def start_checks(settings: Settings) -> Iterator[tuple[str, Check]]:
    """Name and check of each; a Python older than 3.11 can't install Sluice."""
    yield "python", check_python
    yield "account", check_account
    yield "limits", check_limits
    yield "environment", partial(check_environment, settings)
    yield "folders", partial(check_folders, settings)
    yield "temporary files", partial(check_temporary_files, settings)
    yield "java", lambda: "{1} ({0})".format(*find_java())
    yield "jars of Spark", partial(check_jars, SPARK_JARS)
    yield "native code", partial(check_native_code, settings)
    store = store_of(settings.enforce.checkpoint)
    for jars in () if store is None else store.jar_sets():
        yield f"jars of {jars.name.upper()}", partial(check_jars, jars)
    if settings.quotas.source != "table":
        yield "quotas source", partial(check_quotas_source, settings)
    if settings.quotas.seed and _is_seeded_next(settings):
        yield "seed", partial(check_seed, settings)
    if any(settings.brokers.disk_floor):
        yield "disk guard", check_disk_guard
    parts = {each.name for each in entry_points(group=JOB_PARTS)}
    if OPERATOR not in parts and os.path.exists(holds_path(settings.delta.quotas)):  # false without rights, too
        yield "holds", partial(check_part, "nobody is stopped by `sluice quotas hold`")
    if settings.health.port and "troubles" not in parts:
        yield "troubles", partial(check_part, "/readyz and /metrics lack gateways, brokers, topics and tables")
    if settings.delta.maintain_every_hours and "maintenance" not in parts:
        yield "maintenance", partial(check_part, "no table is compacted, so reading gets slower from week to week")
    if settings.brokers.capacity_file is not None:
        yield "capacities", partial(check_capacities, settings)


def check_python() -> str:
    """The Python of this process and of the workers. Raises CheckError if the environment has made another of it."""
    if (fault := foreign_python()) is not None:
        raise CheckError(fault)
    return f"{python_version()} ({sys.executable})"


def check_account() -> str:
    """The name of the account. Raises CheckError for a number without one: Hadoop, which Spark has, refuses it."""
    number = os.getuid()
    try:
        return f"{getpwuid(number).pw_name} ({number})"
    except KeyError:
        raise CheckError(
            f"the account {number} has no name, and Spark's Java starts for none without; give it a line in /etc/passwd"
            f" (echo 'sluice:x:{number}:0::/tmp:/bin/false' >>/etc/passwd), or run as an account that has a name"
        ) from None


def check_limits() -> str:
    """The system's limits of this process. Raises CheckError for one that a job passes: Java would end anywhere."""
    files, threads, address_bytes = (
        getrlimit(RLIMIT_NOFILE)[1],  # Java raises its own to the hard one
        -1 if os.geteuid() == 0 else getrlimit(RLIMIT_NPROC)[0],
        getrlimit(RLIMIT_AS)[0],
    )
    if 0 <= files < _LEAST_OPEN_FILES:
        raise CheckError(f"the hard limit of open files is {files}; raise it to {_LEAST_OPEN_FILES:,} (`ulimit -n`)")
    if 0 <= threads < _LEAST_THREADS:
        raise CheckError(
            f"the limit of processes and threads is {threads}; raise it to {_LEAST_THREADS} or more (`ulimit -u`)"
        )
    if 0 <= address_bytes < _LEAST_ADDRESS_BYTES:
        raise CheckError(
            f"the limit of address space is {address_bytes >> 20} MiB, of which Java takes several times its memory;"
            f" raise it to {_LEAST_ADDRESS_BYTES >> 20} or more, or to unlimited (`ulimit -v`)"
        )
    return "any number of open files" if files < 0 else f"{files:,} open files at most"


def check_environment(settings: Settings) -> str:
    """The variables of other programs that the job's processes don't get."""
    names = left_out(settings)
    return f"not handed to Java and workers: {', '.join(names)}" if names else "no variable of another Spark or Java"


def check_jars(jars: JarSet) -> str:
    """The number of jars of a set, each with the right checksum. Raises JarError."""
    return f"{jars.verify()} in {jars.folder}, checksums right"


def check_native_code(settings: Settings) -> str:
    """Say whether plain events are planned and decided natively or in Python, which do the same, at another cost.

    Raises CheckWarningError where native code could, and doesn't.
    """
    if not settings.enforce.native:
        return "off, as enforce.native is false: Python plans and decides all events, at several times the cost"
    if (reason := engine_missing()) is not None:
        raise CheckWarningError(f"{PYTHON_INSTEAD}: {reason}; a job that runs goes on with what it has loaded")
    engine = found_engine().engine
    place = "" if engine is None else engine.place
    return f"plans and decides the events that gateways send ({place}); enforce.native: false turns it off"


def check_folders(settings: Settings) -> str:
    """The rights on the folders of checkpoints and tables, and on those within.

    Raises CheckError, and CheckWarningError for tables of a job that has run before: it goes on without them.
    """
    local = {key: Path(place).absolute() for key, place in folders(settings).items() if "://" not in place}
    for key, folder in sorted(local.items(), key=lambda each: each[0].startswith("delta.")):
        if (fault := _fault(key, folder)) is not None:
            ran = key.startswith("delta.") and Checkpoint(settings.enforce.checkpoint).sluice.read(ORIGIN) is not None
            raise (CheckWarningError if ran else CheckError)(fault)
    return f"{len(local)} of this machine, readable and writable" if local else "none is of this machine"


def _fault(key: str, folder: Path) -> str | None:
    existing = _nearest(folder)
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return f"{existing}, of {key}, is mounted read-only, and the job writes there; remount it, or set another one"
    if not existing.is_dir():
        return f"{existing}, of {key}, is no folder; set another one, or remove that file"
    if existing != folder:
        if _is_usable(existing):
            return None
        if not os.access(existing, os.X_OK, effective_ids=_EFFECTIVE):
            return (
                f"{folder}, of {key}, is out of reach of this account ({os.geteuid()}), as {existing} is of"
                f" {owner(existing)}; use that account, or let this one in"
            )
        return (
            f"{folder}, of {key}, can't be made by this account ({os.geteuid()}), as {existing} is of"
            f" {owner(existing)}; make it: install -d -m 700 -o {os.geteuid()} {quote(str(folder))}"
        )
    inner = (place for name in _INNER for place in sorted(folder.glob(name)) if place.is_dir())
    if (place := next((each for each in (folder, *inner) if not _is_usable(each)), None)) is not None:
        return (
            f"{place}, of {key}, can't be read and written by this account ({os.geteuid()}), as the job has to; use"
            f" that of its owner, {owner(place)}, or give it to this one: chown -R {os.geteuid()}"
            f" {quote(str(place))}"
        )
    return None


_INNER = ("_delta_log", "date=*", "sluice", "state", "offsets", "commits")
"""Folders in a table's or checkpoint's that the job writes to."""

_EFFECTIVE = os.access in os.supports_effective_ids


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above that is there, as far as this account can see."""
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def _is_usable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)


def check_temporary_files(settings: Settings) -> str:
    """The place of sockets and of working copies of the state. Raises CheckError if Java can't use it."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    place = Path(checkpoint.location) / RUNS if checkpoint.is_local else Path(gettempdir())
    existing = _nearest(place)
    found = os.statvfs(existing)
    cure = "set enforce.checkpoint to a folder elsewhere" if checkpoint.is_local else "set TMPDIR to a folder elsewhere"
    free, fault = found.f_bavail * found.f_frsize, ""
    if found.f_flag & os.ST_NOEXEC:
        fault = "is mounted noexec, and Java loads libraries from there; mount it with exec"
    elif free < _LEAST_FREE_BYTES:
        fault = f"has {free >> 20} MiB free, and Java unpacks libraries there; make room"
    elif found.f_files and found.f_favail < 500:  # 0 where a file system has no fixed number
        fault = f"has room for {found.f_favail} further files (df -i), and a job makes more; remove some"
    if fault:
        raise CheckError(f"{existing} {fault}, or {cure}")
    return f"in {place} while a job runs"


def check_disk_guard() -> str:
    """Say who throttles producers while a disk is low. Raises CheckWarningError where no extra does."""
    if not entry_points(group=JOB_PARTS, name="elastic"):
        raise CheckWarningError(
            "no producers are throttled while a disk is below brokers.disk_min_free_bytes or disk_min_free_percent;"
            " pip install 'sluice-kafka[elastic]'"
        )
    return "throttles producers while a disk is low"


def check_quotas_source(settings: Settings) -> str:
    """The source of the quotas, which an extra reads. Raises InvalidSettingsError without the extra."""
    quota_source(settings.quotas.source)
    return f"{settings.quotas.source}, which the job mirrors"


def check_seed(settings: Settings) -> str:
    """The file that the quotas table will be made from. Raises InvalidSettingsError and InvalidQuotaError."""
    return f"{len(seed_quotas(settings))} quotas of {settings.quotas.seed}"


def _is_seeded_next(settings: Settings) -> bool:
    """True if the next start makes the quotas table, as far as can be seen on this machine."""
    checkpoint, table = Checkpoint(settings.enforce.checkpoint), settings.delta.quotas
    is_local = checkpoint.is_local and "://" not in table
    return is_local and not os.path.exists(os.path.join(table, "_delta_log")) and not QuotaSnapshots(checkpoint).kept()


def check_part(lacking: str) -> str:
    """Raise CheckWarningError: the extra that has a part of the job isn't installed."""
    raise CheckWarningError(f"{lacking}; pip install 'sluice-kafka[toolbox]'")


def check_capacities(settings: Settings) -> str:
    """The brokers whose capacity is known. Raises InvalidSettingsError; CheckWarningError where the job has a copy."""
    try:
        limits = broker_limits(settings.brokers)
    except InvalidSettingsError as error:
        if not has_copy(settings):
            raise
        raise CheckWarningError(f"{error}; the capacities that were read last stay in force") from error
    return f"of {len(limits.capacities)} brokers in {settings.brokers.capacity_file}"
