"""Lets commands find the settings of a demo that runs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.cli import options
from sluice.jvm.jars import make_own


@contextmanager
def announced_run(name: str, settings_file: Path) -> Iterator[None]:
    """Let commands find the settings of this process while the block runs, under a `name` of its own."""
    make_own(options.RUNNING, "settings")
    path = options.RUNNING / name
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate()
        file.write(str(settings_file.absolute()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
