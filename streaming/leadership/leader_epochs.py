"""Leader epochs: the numbers of a checkpoint's drivers, in files that one driver alone can make, and their markers.

A driver begins its epoch when it leads. From the markers on, no decision of a driver with a lower epoch counts
(`sluice.state.decisions.leader_epochs`).
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.configs.object_store import is_s3
from sluice.kafka_io.client import connect, error_line
from sluice.sinks.errors import EpochMarkerError
from sluice.state.decisions.leader_epochs import HEADER, EpochSpan, FencedFrom, LeaderEpoch, fenced_from
from sluice.streaming.checkpoint.batch_log import CreateFile
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import job_identity
from sluice.streaming.errors import CheckpointError, CheckpointStorageError
from sluice.streaming.java_bridge import hadoop_configuration, java
from sluice.streaming.leadership.leadership import Leadership

_FOLDER = "epochs"

_SEND_TIMEOUT_S = 30.0

_MARKER_KEY = HEADER.encode()
"""kafka-python sends nothing without key and value."""

_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
"""Raised when another driver created the file between our existence check and our rename."""


def begin_epoch(
    spark: SparkSession,
    checkpoint: Checkpoint,
    leadership: Leadership,
    topics: Sequence[str],
    kafka: Mapping[str, str],
) -> LeaderEpoch:
    """A new epoch, higher than those of all drivers before, with its markers in `topics`: what they hold is fenced.

    1. Make the epoch's file. A store of objects has to refuse it a second time.
    2. Confirm that this driver leads: a driver that leads after this gets a higher epoch.
    3. Write the markers.

    Raises CheckpointError, LeadershipError and EpochMarkerError.
    """
    create = file_creator(spark, checkpoint) or checkpoint.sluice.create
    epoch = LeaderEpoch(job_identity(checkpoint).job_id, new_epoch(checkpoint, create))
    if is_s3(checkpoint.location):
        _check_refuses(checkpoint, create, epoch.number)
    leadership.confirm()
    for topic in topics:
        _write_markers(topic, kafka, epoch)
    return epoch


def new_epoch(checkpoint: Checkpoint, create: CreateFile) -> int:
    """A number above all that drivers of this checkpoint have had. Raises CheckpointError.

    Files of older ones stay, so that none is given twice.
    """
    known = _numbers(checkpoint)
    for number in count(known[-1] + 1 if known else 1):
        if create(_name(number), b""):
            break
    return number


def _check_refuses(checkpoint: Checkpoint, create: CreateFile, number: int) -> None:
    """Raise CheckpointError if the epoch's file can be made again, as in a store that knows no conditional writes."""
    if create(_name(number), b""):
        raise CheckpointError(
            f"{checkpoint.location} is in a store that overwrites an object although If-None-Match forbids it, so two"
            " drivers could decide at once; use a store with conditional writes, as S3 itself has them"
        )


def keep_epoch(source: Checkpoint, target: Checkpoint) -> None:
    """Let the epochs of `target`, which takes the place of `source`, go on from there. Raises CheckpointError."""
    if known := _numbers(source):
        target.sluice.write(_name(known[-1]), b"")


def _numbers(checkpoint: Checkpoint) -> list[int]:
    return sorted(int(name) for name in checkpoint.sluice.names(_FOLDER) if name.isdecimal())


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:020d}"


def _write_markers(topic: str, kafka: Mapping[str, str], epoch: LeaderEpoch) -> None:
    """Write the epoch into each partition; returns once the brokers have it. Raises EpochMarkerError."""
    try:
        with closing(connect(KafkaProducer, kafka, acks="all")) as producer:
            headers = [(HEADER, epoch.header())]
            sent = [
                producer.send(topic, None, _MARKER_KEY, headers, partition)
                for partition in sorted(producer.partitions_for(topic))
            ]
            for each in sent:
                each.get(_SEND_TIMEOUT_S)
    except (KafkaError, OSError) as error:
        raise EpochMarkerError(
            f"topic {topic} can't be written ({error_line(error)}), so what a driver that led before publishes could"
            " still count; see that its brokers are up and this login may write to it"
        ) from error


def file_creator(spark: SparkSession, checkpoint: Checkpoint) -> CreateFile | None:
    """Makes a file of Sluice's in a checkpoint that is a URI, for one of several drivers alone, as Spark makes its own.

    On HDFS that is a rename without overwrite, on S3 a conditional write. None for a path, which its lock keeps other
    drivers from.
    """
    if checkpoint.is_local:
        return None
    if checkpoint.location.startswith("file:"):
        return checkpoint.sluice.create
    return partial(_create, spark, checkpoint)


def _create(spark: SparkSession, checkpoint: Checkpoint, name: str, content: bytes) -> bool:
    jvm = java(spark)
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.location}/sluice/{name}")
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    open_files = jvm.sluice.spark.ObjectStoreFiles if is_s3(checkpoint.location) else manager.create
    try:
        files = open_files(path.getParent(), hadoop_configuration(spark))
        if not is_s3(checkpoint.location):  # which needs no folder, and looks by itself
            files.mkdirs(path.getParent())
            if files.exists(path):
                return False
        stream = files.createAtomic(path, False)
        stream.write(content)
        stream.close()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == _EXISTS:
            return False
        reason = error_line(error.java_exception)
        raise CheckpointStorageError(f"can't make {name} in {checkpoint.location}: {reason}") from error
    return True


_FILE = "epochs_seen.json"

_ByPartition = dict[int, dict[str, int]]
"""By partition and job the highest epoch."""


class _Seen(msgspec.Struct):
    """The highest epochs before and after the last micro-batch that raised any."""

    batch_id: int
    before: _ByPartition
    after: _ByPartition


class EpochsSeen:
    """The highest epochs that were read, kept so that a repeated micro-batch is judged as before."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files = checkpoint.sluice
        content = self._files.read(_FILE)
        try:
            self._seen = _Seen(-1, {}, {}) if content is None else msgspec.json.decode(content, type=_Seen)
        except msgspec.MsgspecError as error:
            raise self._files.damaged_file(_FILE, str(error)) from error

    def fenced(self, batch_id: int, spans: list[EpochSpan]) -> list[FencedFrom]:
        """Note the epochs of a micro-batch; returns the records of it that don't count."""
        before = self._seen.before if batch_id == self._seen.batch_id else self._seen.after
        fenced, after = fenced_from(spans, before)
        if after != before:
            self._seen = _Seen(batch_id, before, after)
            self._files.write(_FILE, msgspec.json.encode(self._seen))
        return fenced
