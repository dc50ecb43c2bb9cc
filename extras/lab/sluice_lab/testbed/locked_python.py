"""Pythons with packages that Sluice's own can't have, such as those that need older versions of its libraries."""

import hashlib
import sys
from pathlib import Path

from filelock import FileLock

from sluice.jvm.jars import jars_home
from sluice.state.errors import SluiceError
from sluice_lab.testbed.processes import output_of


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
            problem = f"{lock.name} can't be installed: {{}}; check the network, then try again"
            install = (python, "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", lock)
            for command in ((sys.executable, "-m", "venv", "--clear", home), install):
                output_of(command, LockedPythonError, problem)
            stamp.write_text(wanted)
    return python
