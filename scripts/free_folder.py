"""A folder that no other run uses, so that a second start beside a first works."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_WORK = Path(".work")


@contextmanager
def free_folder(name: str, fresh: bool) -> Iterator[Path]:
    """The absolute path of .work/NAME, or with one running there of .work/NAME-2 and so on; `fresh` empties it."""
    number = 1
    while True:
        folder = _WORK / (name if number == 1 else f"{name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        with (_WORK / f"{folder.name}.lock").open("w") as lock:
            if _locked(lock):
                if fresh:
                    shutil.rmtree(folder)
                    folder.mkdir()
                yield folder.absolute()
                return
        number += 1


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
