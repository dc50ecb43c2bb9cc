"""Folders of runs: one that no other run uses, so that two runs can work side by side, and the size of one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

_WORK = Path(".work")


@contextmanager
def work_folder(name: str, fresh: bool) -> Iterator[Path]:
    """The absolute path of .work/NAME, or of .work/NAME-2 and so on if that is in use; `fresh` empties it."""
    for number in count(1):
        folder = _WORK / (name if number == 1 else f"{name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(f"{folder}.lock").acquire(timeout=0)
        except Timeout:
            continue
        with lock:
            if fresh:
                shutil.rmtree(folder)
                folder.mkdir()
            yield folder.absolute()
            return


def folder_bytes(folder: Path) -> int:
    """Size of all files below the folder; files that are removed meanwhile count 0."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total
