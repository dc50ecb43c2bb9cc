"""One process at a time on a checkpoint: the job, or a command that needs it stopped."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming.checkpoint import LOCK, CheckpointFolder
from streaming.errors import CheckpointError


@contextmanager
def locked(folder: CheckpointFolder) -> Iterator[None]:
    """Hold the checkpoint; the lock is gone with the process, however that ends. Raises CheckpointError if it is held.

    Only a path can be locked: of a URI the operator has to know that nobody else works on it.
    """
    if not folder.is_local:
        yield
        return
    path = Path(folder.checkpoint) / "sluice" / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"the checkpoint {folder.checkpoint} is in use by a job or another command; stop it with SIGTERM first"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"can't lock {path} ({error.strerror}); give the job a checkpoint folder it can write"
        ) from error
    with file:
        yield
