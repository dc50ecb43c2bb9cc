"""The folder of a run: sockets, working copies of the state, and libraries that Java unpacks. It ends with the process.

It is in the checkpoint, where no cleaner of temporary files looks, no mount forbids programs, and the next start finds
what a killed one has left; for a checkpoint in shared storage it is a temporary folder of this machine.
"""

import atexit
import os
import re
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from sluice.streaming.checkpoint.folder import RUNS, Checkpoint
from sluice.streaming.errors import RunFolderError

_PLAIN = re.compile(r"[A-Za-z0-9/._+=@-]+")
"""A path that Spark, which splits at commas, and Java's options take as it is."""

_LONGEST_BYTES = 60
"""Longest path of the folder: a socket's path has at most 107 bytes on Linux and 103 on macOS; Spark adds 43."""


class RunFolder:
    """A new folder, for this user alone."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Make it. Raises RunFolderError."""
        self._runs = Path(checkpoint.location) / RUNS if checkpoint.is_local else None
        try:
            if self._runs is not None:
                self._runs.mkdir(parents=True, exist_ok=True)
            self.folder = Path(mkdtemp(prefix="" if self._runs else "sluice-", dir=self._runs))
            self._opened = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            place = self._runs or "the temporary folder"
            cure = "give the job a checkpoint folder that it can write" if self._runs else "set TMPDIR to another one"
            raise RunFolderError(
                f"no folder for sockets and copies of the state can be made in {place} ({error.strerror}); {cure}"
            ) from error
        self._known: frozenset[str] = frozenset()
        atexit.register(self.remove)

    @property
    def path(self) -> Path:
        """A short path of plain characters for Spark and Java; Linux has one for each folder that is open."""
        is_plain = _PLAIN.fullmatch(str(self.folder)) and len(os.fsencode(self.folder)) <= _LONGEST_BYTES
        by_number = Path(f"/proc/{os.getpid()}/fd/{self._opened}")
        return self.folder if is_plain or not by_number.is_dir() else by_number

    @property
    def takes_sockets(self) -> bool:
        """False where a socket's path would be too long."""
        return len(os.fsencode(self.path)) <= _LONGEST_BYTES

    def remember(self) -> None:
        """Note the folders that Spark has made, for `check`."""
        self._known = frozenset(entry.name for entry in os.scandir(self.folder) if entry.is_dir())

    def check(self) -> None:
        """Raise RunFolderError if somebody has removed it, or a folder in it: Spark makes none of them again."""
        lost = sorted(name for name in ("", *self._known) if not (self.folder / name).is_dir())
        if lost:
            raise RunFolderError(
                f"{self.folder / lost[0]} was removed while the job runs, and only a new process makes it again;"
                " leave it out where temporary files are cleaned; if Spark has ended by itself, its last error says why"
            )

    def remove_others(self) -> None:
        """Remove what killed runs have left; only for who has locked the checkpoint."""
        for other in self._runs.iterdir() if self._runs is not None else ():
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def remove(self) -> None:
        """Remove it; does nothing the second time."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._runs is not None:
            with suppress(OSError):  # another run may have one there
                self._runs.rmdir()


@cache
def run_folder(location: str) -> RunFolder:
    """The folder of this process for the job whose checkpoint is at a location. Raises RunFolderError."""
    return RunFolder(Checkpoint(location))
