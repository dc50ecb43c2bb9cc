"""The newest commit of a Delta table that somebody polls: a poll costs the same at any age of the table."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from deltalake.fs import DeltaStorageHandler

_MOST_FOLLOWED = 1_000
"""Most commits that are followed: more take as long to read as a log takes to list."""

_PATIENCE = {"max_retries": "2", "retry_timeout": "10s", "timeout": "10s"}


def polled(storage_options: Mapping[str, str]) -> dict[str, str]:
    """The options for who asks again and again: delta-rs waits 3 minutes for a store that is away, also at a start."""
    return {**_PATIENCE, **storage_options}


class SeenCommit(NamedTuple):
    """A commit of a log, and what its file shows without being read: size in bytes and time of its last change."""

    version: int
    size: int
    changed_ns: int


class _File(msgspec.Struct):
    """A file that a commit adds or removes."""

    path: str


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a commit that changes rows alone: one with another field changes what the table is."""

    add: _File | None = None
    remove: _File | None = None
    commit_info: Any = msgspec.field(name="commitInfo", default=None)
    txn: Any = None


_ACTIONS = msgspec.json.Decoder(_Action)


class NewestCommit:
    """The commit that was read last. Delta-rs would list the log, and read all that a checkpoint and its commits have.

    All methods raise delta-rs's errors, OSError and ValueError. None keeps other threads from working while a store
    doesn't answer, as reading a file by delta-rs's file system would.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        self.known: SeenCommit | None = None
        """The newest of those that were read completely; whoever has read one sets it."""
        self.files: frozenset[str] | None = None
        """The paths of the table's files there, as its log has them; None where their rows may not be all of it."""
        self._path = path
        self._storage_options = dict(storage_options)
        self._files: DeltaStorageHandler | None = None

    def is_still_newest(self) -> bool:
        """True if it is there as it was, and none follows it. A restored backup may have its version, not its time."""
        if self.known is None:
            return False
        version = self.known.version
        return self._found(version, version + 1) == [self.known, None]

    def whole(self, version: int) -> SeenCommit:
        """A commit. Raises OSError if it is empty: Delta's readers pass over it, and nobody misses its rows."""
        (commit,) = self._found(version)
        if commit is None or not commit.size:
            raise OSError(f"commit {version} is empty: a full disk or a crash has cut it off")
        return commit

    def follow(self) -> tuple[SeenCommit, frozenset[str]]:
        """The newest commit, and the files of the table there, by the commits since the one that was read last.

        Delta-rs would list the log, which takes 130 ms where it has 40 000 versions; object stores list the end alone.
        Raises an error where that may not be the whole table: the caller reads it as others do.
        """
        known, files, log = self.known, self.files, Path(self._path).absolute() / "_delta_log"
        if "://" in self._path or known is None or files is None or self._found(known.version) != [known]:
            raise FileNotFoundError(f"{self._path} isn't on a local disk, or another than before")
        version = known.version
        while (commit := log / f"{version + 1:020d}.json").is_file():
            actions = _ACTIONS.decode_lines(commit.read_bytes())
            files -= {action.remove.path for action in actions if action.remove}
            files |= {action.add.path for action in actions if action.add}
            version += 1
            if version > known.version + _MOST_FOLLOWED:
                raise FileNotFoundError(f"too many commits follow version {known.version} of {self._path}")
        return self.whole(version), files

    def _found(self, *versions: int) -> list[SeenCommit | None]:
        """These commits; None for each that isn't there."""
        if self._files is None:
            from deltalake.fs import DeltaStorageHandler  # with PyArrow, which is slow to import: commands don't poll

            self._files = DeltaStorageHandler(self._path, self._storage_options)
        found = self._files.get_file_info([f"_delta_log/{version:020d}.json" for version in versions])
        return [
            SeenCommit(version, info.size, info.mtime_ns) if info.is_file else None
            for version, info in zip(versions, found, strict=True)
        ]
