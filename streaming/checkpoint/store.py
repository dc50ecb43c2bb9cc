"""Checkpoint stores: extras that keep checkpoints where several machines reach them, each for some URI schemes.

An extra names a CheckpointStore in the entry points of the group `sluice.checkpoint_stores`, under each scheme, or
under `any` for all others. A checkpoint that is a path of this machine needs none: a lock keeps other drivers from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from sluice.configs.extras import loaded, store_point
from sluice.state.decisions.leader_epochs import LeaderEpoch

if TYPE_CHECKING:  # workers import this
    from sluice.configs.settings import Settings
    from sluice.jvm.jars import JarSet

Spark = Any
"""The job's SparkSession; who only looks at files imports no Spark."""

CreateFile = Callable[[str, bytes], bool]
"""Makes a file of Sluice's in the checkpoint, by its name, with this content; False if there is one. Never both."""


class Leadership(ABC):
    """This process as a driver that leads a checkpoint, or wants to. The job's main thread calls it."""

    @abstractmethod
    def acquire(self, stop: Event) -> bool:
        """Become the leader. False if `stop` is set before. Raises LeadershipError."""

    @abstractmethod
    def start(self) -> None:
        """Begin to send signs of life."""

    @abstractmethod
    def stop(self) -> None:
        """Let another driver lead. Nothing may be decided any more."""

    @abstractmethod
    def begin_epoch(self, spark: Spark) -> LeaderEpoch:
        """A new epoch, higher than those of all drivers before, from which on their records don't count.

        Raises CheckpointError, LeadershipError and EpochMarkerError.
        """

    @abstractmethod
    def may_decide(self) -> bool:
        """True if this driver is certain to lead. Raises LeadershipError once another one has taken its place."""

    @abstractmethod
    def waits_for(self) -> str | None:
        """The reason why no micro-batch may begin now, None if it may. Raises LeadershipError as `may_decide` does."""


class CheckpointStore(ABC):
    """Reaches checkpoints by their URIs: in the driver, in its workers and in commands. Made once a process and scheme.

    Its module imports neither Spark nor a client that most processes don't need: each is imported when it is used.
    """

    writes_whole = False
    """True if a file is there whole once it is written, or not at all, so that it needs no draft."""

    def location(self, uri: str) -> str:
        """The URI as Spark takes it."""
        return uri

    @abstractmethod
    def open(self, uri: str) -> tuple[fs.FileSystem, str]:
        """The file system of a URI, and the path in it. Raises CheckpointStorageError if it can't be right."""

    @abstractmethod
    def file_creator(self, spark: Spark, uri: str) -> CreateFile:
        """Makes a file of Sluice's in a checkpoint for one of several drivers alone, as Spark makes its own."""

    @abstractmethod
    def leadership(self, settings: "Settings", uri: str, *, standby: bool) -> Leadership:
        """The leadership of a checkpoint. With `standby` it waits for its turn; else a living leader is an error."""

    def properties(self, environment: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 # most need none
        """Properties by which Spark reads and writes the files of its checkpoints."""
        return {}

    def jar_sets(self) -> Sequence["JarSet"]:
        """The jars of others that Spark needs for it."""
        return ()

    def jars(self) -> Sequence[Path]:
        """All jars that Spark needs for it, downloaded at the first call. Raises JarError."""
        return ()


def store_of(location: str) -> CheckpointStore | None:
    """The store of a checkpoint; None for a path. Raises InvalidSettingsError where its extra isn't installed."""
    return _store(location.partition("://")[0]) if "://" in location else None


@cache
def _store(scheme: str) -> CheckpointStore:
    made: CheckpointStore = loaded(store_point(scheme))()
    return made
