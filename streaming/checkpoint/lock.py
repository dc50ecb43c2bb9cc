"""One process at a time on a checkpoint: the job, or a command that needs it stopped."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError


@contextmanager
def locked(checkpoint: Checkpoint) -> Iterator[None]:
    """Hold the checkpoint; the lock ends with the process, even if it is killed. Raises CheckpointError if it is held.

    Only a path can be locked: with a URI the operator has to make sure that nobody else works on the checkpoint.
    """
    if not checkpoint.is_local:
        yield
        return
    path = checkpoint.lock_file
    # without fallback_to_soft=False a file system without locks would get a lock file that outlives a killed process
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} is in use by a job or another command; stop it with SIGTERM first"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"can't lock {path} ({error.strerror}); give the job a checkpoint folder it can write"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(checkpoint: Checkpoint) -> bool | None:
    """True if a process holds the checkpoint; None where it can't be locked. Changes nothing."""
    if not checkpoint.is_local:
        return None
    try:
        with checkpoint.lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
