"""The newest commit of a Delta table that somebody polls: a poll without a new one costs the same at any age."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from deltalake import DeltaTable

if TYPE_CHECKING:
    from deltalake.fs import DeltaStorageHandler

_MOST_SINCE_CHECKPOINT = 100
"""Most commits of a tail: more take as long to read as a log takes to list."""

_PATIENCE = {"max_retries": "2", "retry_timeout": "10s", "timeout": "10s"}


def polled(storage_options: Mapping[str, str]) -> dict[str, str]:
    """The options for who asks again and again: delta-rs waits 3 minutes for a store that is away, also at a start."""
    return {**_PATIENCE, **storage_options}


class Commit(NamedTuple):
    """A commit of a log, and what its file shows without being read: size in bytes and time of its last change."""

    version: int
    size: int
    changed_ns: int


class _LastCheckpoint(msgspec.Struct):
    """The file `_last_checkpoint` of a log. A checkpoint in parts has none of the name that a tail looks for."""

    version: int


class NewestCommit:
    """The commit that was read last. Delta-rs would list the log, and read all that a checkpoint and its commits have.

    All methods raise delta-rs's errors, OSError and ValueError. None keeps other threads from working while a store
    doesn't answer, as reading a file by delta-rs's file system would.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str], temporary: Path | None = None) -> None:
        """`temporary` is where a tail has its links, by default the temporary folder of this machine."""
        self.known: Commit | None = None
        """The newest of those that were read completely; whoever has read one sets it."""
        self._path = path
        self._storage_options = dict(storage_options)
        self._temporary = temporary
        self._files: DeltaStorageHandler | None = None

    def is_still_newest(self) -> bool:
        """True if it is there as it was, and none follows it. A restored backup may have its version, not its time."""
        if self.known is None:
            return False
        version = self.known.version
        return self._found(version, version + 1) == [self.known, None]

    def whole(self, version: int) -> Commit:
        """A commit. Raises OSError if it is empty: Delta's readers pass over it, and nobody misses its rows."""
        (commit,) = self._found(version)
        if commit is None or not commit.size:
            raise OSError(f"commit {version} is empty: a full disk or a crash has cut it off")
        return commit

    @contextmanager
    def tail(self) -> Iterator[DeltaTable]:
        """The table, of its last checkpoint and the commits since, in a folder of links that is gone afterwards.

        Delta-rs would list the log, which takes 130 ms where it has 40 000 versions; object stores list the end alone.
        Raises an error where that may not be the whole table: the caller reads it as others do.
        """
        known, log = self.known, Path(self._path).absolute() / "_delta_log"
        if "://" in self._path or known is None or self._found(known.version) != [known]:
            raise FileNotFoundError(f"{self._path} isn't on a local disk, or another than before")
        checkpoint = msgspec.json.decode((log / "_last_checkpoint").read_bytes(), type=_LastCheckpoint).version
        needed = [log / f"{checkpoint:020d}.checkpoint.parquet"]
        last = checkpoint
        while (commit := log / f"{last + 1:020d}.json").is_file():
            needed.append(commit)
            last += 1
        if last < known.version or len(needed) > _MOST_SINCE_CHECKPOINT:
            raise FileNotFoundError(f"too few or too many commits follow checkpoint {checkpoint} of {self._path}")
        with TemporaryDirectory(prefix="sluice-", dir=self._temporary) as name:
            folder = Path(name).resolve()
            (folder / "_delta_log").mkdir()
            for file in needed:
                (folder / "_delta_log" / file.name).symlink_to(file.resolve(strict=True))
            table = DeltaTable(folder)
            for uri in table.file_uris():
                part = Path(uri).relative_to(folder)
                (folder / part).symlink_to(log.parent / part)
            yield table

    def _found(self, *versions: int) -> list[Commit | None]:
        """These commits; None for each that isn't there."""
        if self._files is None:
            from deltalake.fs import DeltaStorageHandler  # with PyArrow, which is slow to import: commands don't poll

            self._files = DeltaStorageHandler(self._path, self._storage_options)
        found = self._files.get_file_info([f"_delta_log/{version:020d}.json" for version in versions])
        return [
            Commit(version, info.size, info.mtime_ns) if info.is_file else None
            for version, info in zip(versions, found, strict=True)
        ]
