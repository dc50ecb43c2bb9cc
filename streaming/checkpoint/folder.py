"""A query's checkpoint, and the files in it: Spark's own at its top, Sluice's in the subfolder `sluice`."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec
from filelock import FileLock, Timeout
from pyarrow import fs

from sluice.state.errors import UNREADABLE
from sluice.streaming.checkpoint.store import CheckpointStore, store_of
from sluice.streaming.errors import CheckpointError, CheckpointStorageError

_Kind = TypeVar("_Kind")

_SLUICE = "sluice"
_LOCK = "lock"

RUNS = f"{_SLUICE}/run"
"""Below the checkpoint: the folders of the processes that run now, which are no part of it."""

ORIGIN = "sluice.json"
"""Sluice's file without which a checkpoint isn't whole: the first to go and the last to come where files are copied."""

_NOT_DONE = (OSError, RuntimeError)
"""Errors of file systems; hdfs-native raises RuntimeError when its connection to a data node fails."""


class CheckpointFiles:
    """Small files in a checkpoint, or in a subfolder of it, that the driver and every executor can reach."""

    def __init__(self, location: str, subfolder: str = "") -> None:
        self._location = location
        self._subfolder = subfolder

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if it doesn't exist. Raises CheckpointError if the folder can't be read."""
        filesystem, folder = self._open()
        try:
            with filesystem.open_input_stream(str(folder / name)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None
        except _NOT_DONE as error:
            raise _unreachable(self._location, f"can't read {name} in {self._location}: {error}") from error

    def read_json(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """The content of a JSON file, None if it doesn't exist. Raises CheckpointError, also for another kind."""
        content = self.read(name)
        try:
            return None if content is None else msgspec.json.decode(content, type=kind)
        except UNREADABLE as error:
            raise self.damaged_file(name, str(error)) from error

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step, so that a crash leaves the old or the new one. Raises CheckpointError."""
        filesystem, folder = self._open()
        target = str(folder / name)
        store = store_of(self._location)
        draft = target if store is not None and store.writes_whole else f"{target}.draft"
        try:
            filesystem.create_dir(str((folder / name).parent), recursive=True)
            with filesystem.open_output_stream(draft) as stream:
                stream.write(content)
            if draft != target:
                filesystem.move(draft, target)
        except _NOT_DONE as error:
            reason = f"can't write {name} in {self._location}: {error}; give the job a checkpoint folder it can write"
            raise _unreachable(self._location, reason) from error

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder of this one; none if it doesn't exist. Raises CheckpointError."""
        filesystem, path = self._open()
        entries = _entries(filesystem, str(path / folder), self._location, recursive=False)
        return [entry.base_name for entry in entries if entry.is_file]

    def remove(self, name: str) -> None:
        """Remove a file, if another driver hasn't."""
        filesystem, folder = self._open()
        with suppress(FileNotFoundError):
            filesystem.delete_file(str(folder / name))

    def damaged_file(self, name: str, reason: str) -> CheckpointError:
        """The error for a file that can't be used."""
        return CheckpointError(
            f"{PurePosixPath(self._subfolder, name)} in {self._location} is damaged ({reason}); restore the checkpoint"
            " from a backup, or name a new one (balances start from zero)"
        )

    def _open(self) -> tuple[fs.FileSystem, PurePosixPath]:
        filesystem, path = _opened(self._location)
        return filesystem, path / self._subfolder


class Checkpoint:
    """A query's checkpoint folder: a path or a URI.

    `location` is the URI, as Spark takes it, or the absolute path so that workers find it too. `spark` are Spark's own
    files, `sluice` those of Sluice.
    """

    def __init__(self, location: str) -> None:
        store = store_of(location)
        self.location = str(Path(location).absolute()) if store is None else store.location(location.rstrip("/"))
        self.spark = CheckpointFiles(self.location)
        self.sluice = CheckpointFiles(self.location, _SLUICE)

    @property
    def is_local(self) -> bool:
        """True if it is a path on this machine rather than a URI."""
        return "://" not in self.location

    @property
    def store(self) -> CheckpointStore | None:
        """The store of a URI; None for a path."""
        return store_of(self.location)

    @property
    def lock_file(self) -> Path:
        """The file that a process locks while it works on a local checkpoint."""
        return Path(self.location) / _SLUICE / _LOCK

    def is_new(self) -> bool:
        """True if neither Spark nor Sluice keeps anything in the checkpoint yet; a lock doesn't count."""
        return all(entry.base_name == _LOCK for entry in self._files())

    def size_bytes(self) -> int:
        """The size of all files in it; 0 for a new one."""
        return sum(entry.size or 0 for entry in self._files())

    def _files(self) -> list[fs.FileInfo]:
        """All but those of runs, which come and go while they are listed."""
        filesystem, folder = _opened(self.location)
        listed, folders = list[fs.FileInfo](), [str(folder)]
        while folders:
            entries = _entries(filesystem, folders.pop(), self.location, recursive=not self.is_local)
            if self.is_local:
                folders += [each.path for each in entries if not each.is_file and each.path != str(folder / RUNS)]
            listed += (each for each in entries if each.is_file)
        return listed


def _entries(filesystem: fs.FileSystem, folder: str, location: str, *, recursive: bool) -> list[fs.FileInfo]:
    """The files and folders in a folder of the location. Raises CheckpointError if nobody can say which there are."""
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    try:
        return list(filesystem.get_file_info(selector))
    except _NOT_DONE as error:
        raise _unreachable(location, f"can't read {location}: {error}") from error


def _unreachable(location: str, reason: str) -> CheckpointError:
    """The error for files that can't be read or written now; a disk doesn't get well by itself, other storage may."""
    return CheckpointStorageError(reason) if "://" in location else CheckpointError(reason)


def _opened(location: str) -> tuple[fs.FileSystem, PurePosixPath]:
    store = store_of(location)
    filesystem, path = (fs.LocalFileSystem(), location) if store is None else store.open(location)
    return filesystem, PurePosixPath(path)


@contextmanager
def locked(checkpoint: Checkpoint) -> Iterator[None]:
    """Lock the checkpoint; the lock ends with the process, even if it is killed.

    Raises CheckpointError if it is locked. Only a path can be locked: with a URI the operator has to make sure that
    nobody else works on the checkpoint.
    """
    if not checkpoint.is_local:
        yield
        return
    path = checkpoint.lock_file
    # without fallback_to_soft=False a file system without locks would get a lock file that outlives a killed process
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} is in use by a job or another command; stop it with SIGTERM first"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"can't lock {path} ({error.strerror}); give the job a checkpoint folder it can write"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(checkpoint: Checkpoint) -> bool | None:
    """True if a process holds the checkpoint; None where it can't be locked, or this account can't see it.

    Changes nothing.
    """
    if not checkpoint.is_local:
        return None
    try:
        with checkpoint.lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    except BlockingIOError:
        return True
    return False
