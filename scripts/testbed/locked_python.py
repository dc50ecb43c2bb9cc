"""Pythons with packages that Sluice's own can't have, such as those that need older versions of its libraries."""

import hashlib
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from sluice.jvm.jars import jars_home
from sluice.state.errors import SluiceError


class LockedPythonError(SluiceError):
    """The packages can't be installed."""


def locked_python(name: str, lock: Path) -> Path:
    """The Python that has the packages of this lock file, which `./scripts/lock` writes, and nothing else.

    They are installed beside the jars at the first call and when the file has changed. Raises LockedPythonError.
    """
    home = jars_home() / name
    python, stamp = home / "bin" / "python", home / "stamp"
    wanted = hashlib.sha256(f"{home} {sys.version}".encode() + lock.read_bytes()).hexdigest()
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.parent / f"{name}-lock"):  # of two processes the second one waits, and then finds all done
        if not stamp.is_file() or stamp.read_text() != wanted:
            _install(lock, sys.executable, "-m", "venv", "--clear", str(home))
            _install(lock, str(python), "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", str(lock))
            stamp.write_text(wanted)
    return python


def _install(lock: Path, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise LockedPythonError(f"{lock.name} can't be installed: {lines[-1]}; check the network, then try again")
