"""Reading all balances out of the enforce query's checkpoint, as of its last committed micro-batch."""

from collections.abc import Iterator

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from configs.settings import Settings
from streaming.balances import Balances, Offset
from streaming.checkpoint import BatchLog, CheckpointFolder, Origin, read_origin
from streaming.errors import CheckpointError
from streaming.query_errors import reason_of
from streaming.seed import read_seed, read_start
from streaming.shard_keys import shard_at
from streaming.spark_files import check_enforce_checkpoint, check_spark_files

_OFFSETS_FORM = "v1"
"""The first line of Spark's offset files; then come a line of metadata and one of offsets for each source."""


def required_origin(folder: CheckpointFolder) -> Origin:
    """What the checkpoint was made with. Raises CheckpointError if there is none."""
    origin = read_origin(folder)
    if origin is None:
        raise CheckpointError(f"{folder.checkpoint} has no balances; name the enforce.checkpoint of a job that has run")
    return origin


def stored_balances(settings: Settings) -> Balances:
    """The balances in the checkpoint of the settings; the caller holds its lock.

    Spark is started if it has committed a micro-batch there. Raises CheckpointError if there are no balances, or if a
    micro-batch is begun and not committed: what it wrote must be left out when it is repeated, which only this
    checkpoint's own query can do.
    """
    folder = CheckpointFolder(settings.enforce.checkpoint)
    origin, start = required_origin(folder), read_start(folder)
    committed = _last_committed(settings, folder)
    if start is None and committed < 0:
        raise CheckpointError(f"{folder.checkpoint} has no balances yet: its job has committed no micro-batch")
    offsets = start.offsets if start else {}
    shards = {number: read_seed(folder, number) for number in start.seeded} if start else {}
    if committed >= 0:
        offsets = committed_offsets(folder, committed, origin.requests_topic)
        shards |= _stored_shards(settings, folder.checkpoint, committed)  # a stored shard was its seed before
        if _last_committed(settings, folder) != committed:  # where there are no locks
            raise CheckpointError(f"a job works on {folder.checkpoint}; stop it with SIGTERM first")
    return Balances(origin, offsets, shards)


def _last_committed(settings: Settings, folder: CheckpointFolder) -> int:
    """The last micro-batch, -1 without any. Raises CheckpointError if it isn't committed, or the files are damaged."""
    check_enforce_checkpoint(settings)
    committed = check_spark_files(folder.checkpoint).committed
    begun = BatchLog(folder).last_begun
    if begun > committed:
        raise CheckpointError(
            f"micro-batch {begun} in {folder.checkpoint} was begun and isn't committed; start the job once with the"
            " settings it ran with, let it go on, and stop it with SIGTERM"
        )
    return committed


def committed_offsets(folder: CheckpointFolder, batch_id: int, topic: str) -> dict[int, int]:
    """The offset after the last record of a micro-batch, by partition. Raises CheckpointError."""
    content = CheckpointFolder(folder.checkpoint, subfolder="").read(f"offsets/{batch_id}") or b""
    try:
        form, _, source = content.decode().splitlines()
        if form == _OFFSETS_FORM:
            return msgspec.json.decode(source, type=dict[str, dict[int, Offset]])[topic]
    except (ValueError, KeyError):
        pass
    raise CheckpointError(
        f"offsets/{batch_id} in {folder.checkpoint} doesn't say, in a form that this release knows, where {topic} was"
        " read to; use the release that wrote it, or restore the checkpoint from a backup"
    )


def _stored_shards(settings: Settings, checkpoint: str, batch_id: int) -> dict[int, bytes]:
    from streaming.session import start_session  # takes a second to import, and isn't always needed

    spark = start_session(settings)
    try:
        _ = spark.streams  # SPARK-58973: reading state needs a coordinator that Spark sets up with this, and only then
        state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint)
        rows: Iterator[tuple[int, bytes]] = state.select("key.shard_key", "value.groupState.payload").toLocalIterator()
        return {shard_at(key): bytes(payload) for key, payload in rows}
    except (PySparkException, Py4JError) as error:
        raise CheckpointError(f"{checkpoint}: {reason_of(error)}") from error
    finally:
        spark.stop()
