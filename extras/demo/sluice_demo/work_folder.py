"""Folders of runs: one that no other run uses, so that two runs can work side by side."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from sluice.jvm.jars import in_checkout, make_own, sluice_home


def _work() -> Path:
    """`.work` in the current folder, which a checkout ignores; of an installed Sluice `work` in its home."""
    return Path(".work") if in_checkout() else sluice_home() / "work"


@contextmanager
def work_folder(name: str, fresh: bool) -> Iterator[Path]:
    """The absolute path of a run's folder NAME, or of NAME-2 and so on if that is in use; `fresh` empties it.

    It is in `.work`, or, of an installed Sluice, in `work` of its home. Raises JarError if that is another user's.
    """
    for number in count(1):
        folder = _work() / (name if number == 1 else f"{name}-{number}")
        make_own(folder, "settings")
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
