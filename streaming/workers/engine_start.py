"""The engine that an extra gives, found once in each process: where the driver and the daemon of its workers start.

Without one, and with one that can't be used, Python plans and decides all events: the same, at several times the cost.
"""

from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ENTRY_POINT = "sluice.engine"
"""The group of entry points whose one member makes the engine, without arguments."""

NATIVE_VARIABLE, NATIVE_LOADED, NATIVE_MISSING = "SLUICE_NATIVE", "loaded", "missing"
"""The variable that tells workers whether native code is wanted, and the driver has it."""

PYTHON_INSTEAD = "not used, so Python plans and decides all events, at several times the cost"

_CORE = "sluice-kafka"


class EngineStart(ABC):
    """The part of an engine that driver, doctor and daemon ask; `sluice.streaming.enforce.engine` has the other one.

    It is made once in a process, and loads then all that workers need, who are forked later: it must not start a
    thread, nor raise for what a machine may lack.
    """

    daemon = "sluice.streaming.workers.daemon"
    """The module of the worker daemon on the driver's machine; it calls `run_daemon` of this one."""

    batched_daemon: str | None = None
    """The module of a daemon whose workers give many groups at once to `PageOperator.decide_groups`; None for none."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it was loaded from, for people."""

    @property
    def unusable(self) -> str | None:
        """The reason why it leaves all work to Python in this process, and the cure; None if it doesn't."""
        return None

    def broken_contract(self) -> str | None:
        """The reason why its daemon can't hand over groups in batches with this PySpark; None if it can."""
        return "this engine has no such workers"


class FoundEngine(NamedTuple):
    """The engine of an extra; or the reason why there is none, and the cure."""

    engine: EngineStart | None
    reason: str | None


@cache
def found_engine() -> FoundEngine:
    """The engine of the extra that is installed, which is looked for once in a process."""
    point = _entry_point()
    if point is None or point.dist is None:
        return FoundEngine(None, "it is of the extra native; pip install 'sluice-kafka[native]'")
    of = f"{point.dist.name} {point.dist.version}"
    beside = distributions(name=_CORE, path=[str(point.dist.locate_file(""))])  # a checkout may hold an older build's
    own = next((each.version for each in beside), None) or version(_CORE)
    if point.dist.version != own:
        return FoundEngine(None, f"{of} is of another release than {_CORE} {own}; install the same version of both")
    try:
        engine = point.load()()
    except (Exception, SystemExit) as error:  # an extra's own code runs, and may raise anything
        return FoundEngine(None, f"{of} doesn't fit this {_CORE} ({error}); install both again, in the same version")
    if not isinstance(engine, EngineStart):
        return FoundEngine(None, f"{of} gives no engine; uninstall it")
    return FoundEngine(engine, None)


def engine_missing() -> str | None:
    """The reason why Python does all in this process, and the cure; None if an engine of an extra does."""
    engine, reason = found_engine()
    return reason if engine is None else engine.unusable


def worker_daemon(*, batched: bool, one_machine: bool) -> str | None:
    """The module of the job's worker daemon: one whose workers are batched, if that is wanted and possible.

    None is PySpark's own, on the machines of a cluster.
    """
    engine = found_engine().engine or EngineStart
    if are_batched(batched) and engine.batched_daemon:
        return engine.batched_daemon
    return engine.daemon if one_machine else None


def unbatched() -> str | None:
    """The reason why workers can't get groups in batches; None if they can. The first call takes milliseconds."""
    engine, reason = found_engine()
    return reason if engine is None else engine.broken_contract()


def are_batched(wanted: bool) -> bool:
    """True if the job's workers are batched: if that is wanted, and possible with this PySpark."""
    return wanted and unbatched() is None


def engine_package() -> Path | None:
    """The folder of the package that gives the engine, whose files are of the job's release as those of the core."""
    point = _entry_point()
    spec = None if point is None else find_spec(point.module.partition(".")[0])
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _entry_point() -> EntryPoint | None:
    return next(iter(entry_points(group=ENTRY_POINT)), None)
