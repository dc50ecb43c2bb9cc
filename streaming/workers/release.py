"""The release that a process of the job has: workers that have other files than the driver don't work for it.

`pip install` under a running job replaces the files that the next daemon of the workers loads. It would decide by the
new release what the driver has planned by the old one.
"""

import os
from functools import cache
from hashlib import sha256
from pathlib import Path

from sluice.streaming.errors import ReleaseError
from sluice.streaming.workers.engine_start import engine_package

VARIABLE = "SLUICE_PACKAGE"
"""The variable that tells workers the `package_digest` of the driver."""

_PACKAGE = Path(__file__).parents[2]
_SUFFIXES = (".py", ".c", ".h")


@cache
def package_digest() -> str:
    """The digest of the package's files, as they are when this process asks first: it has to ask at its start.

    It has those of the package that gives the engine, too. 16 ms for 270 files.
    """
    digest, engine = sha256(), engine_package()
    for folder in (*sorted(_PACKAGE.iterdir()), *([engine] if engine else ())):  # links to folders in a checkout
        for path in sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES):
            digest.update(b"%b\0%b\0" % (str(path.relative_to(folder.parent)).encode(), path.read_bytes()))
    return digest.hexdigest()[:16]


def check_release() -> None:
    """Raise ReleaseError in a worker whose package isn't the driver's."""
    of_driver = os.environ.get(VARIABLE, "")
    if of_driver and of_driver != package_digest():
        raise ReleaseError(
            "the package of Sluice was replaced under the running job, or this machine has another release than the"
            " driver's: install one release on all machines, and restart the job"
        )
