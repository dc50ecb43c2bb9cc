"""The id of a job, which marks its decisions: made with the checkpoint, kept through restarts and resharding."""

import secrets

import msgspec

from sluice.kafka_io.clock import now_ms
from sluice.streaming.checkpoint.folder import Checkpoint

_FILE = "job.json"


class JobIdentity(msgspec.Struct, frozen=True):
    """The id of the job on a checkpoint, and when the checkpoint got it, in epoch milliseconds."""

    job_id: str
    made_at_ms: int


def job_identity(checkpoint: Checkpoint) -> JobIdentity:
    """The identity of the job on this checkpoint; the first call makes it. Raises CheckpointError."""
    identity = _read(checkpoint)
    if identity is None:
        identity = JobIdentity(secrets.token_hex(8), now_ms())
        _write(checkpoint, identity)
    return identity


def keep_job_identity(source: Checkpoint, target: Checkpoint) -> None:
    """Give `target`, which takes the place of `source`, the same identity. Raises CheckpointError."""
    identity = _read(source)
    if identity is not None:
        _write(target, identity)


def _read(checkpoint: Checkpoint) -> JobIdentity | None:
    content = checkpoint.sluice.read(_FILE)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=JobIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise checkpoint.sluice.damaged_file(_FILE, str(error)) from error


def _write(checkpoint: Checkpoint, identity: JobIdentity) -> None:
    checkpoint.sluice.write(_FILE, msgspec.json.encode(identity))
