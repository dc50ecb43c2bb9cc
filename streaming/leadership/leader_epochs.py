"""Leader epochs: the numbers of a checkpoint's drivers, in files that one driver alone can make, and their markers.

A driver begins its epoch when it leads. From the markers on, no record of a driver with a lower epoch counts
(`sluice.state.decisions.leader_epochs`).
"""

import logging
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import count

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.configs.object_store import is_s3
from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.kafka_python import epoch_in
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.format import error_line
from sluice.sinks.errors import EpochMarkerError
from sluice.state.decisions.leader_epochs import (
    HEADER,
    MARKER_KEY,
    MAX_STEP,
    EpochSpan,
    FencedFrom,
    LeaderEpoch,
    fenced_from,
    is_far,
)
from sluice.state.errors import UNREADABLE
from sluice.streaming.checkpoint.batch_log import CreateFile
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import job_identity
from sluice.streaming.errors import CheckpointError, CheckpointStorageError
from sluice.streaming.java_bridge import hadoop_configuration, java
from sluice.streaming.leadership.leadership import Leadership

log = logging.getLogger("sluice.job")

_FOLDER = "epochs"

_NEWEST = 100
"""Records of a partition in which the epoch of the last driver is looked for; most are its decisions."""

_SEND_TIMEOUT_S = 30.0

_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
"""Raised when another driver created the file between our existence check and our rename."""


def begin_epoch(
    spark: SparkSession, checkpoint: Checkpoint, leadership: Leadership, topics: TopicSettings, kafka: Mapping[str, str]
) -> LeaderEpoch:
    """A new epoch, higher than those of all drivers before, with its markers in the topics that the job writes.

    Records that an earlier driver writes there from now on are fenced.

    1. Read the highest epoch of the job in the decisions topic: a checkpoint that was restored may not know it.
    2. Make the epoch's file. A store of objects has to refuse it a second time.
    3. Confirm that this driver leads: a driver that leads after this gets a higher epoch.
    4. Write the markers.

    Raises CheckpointError, LeadershipError and EpochMarkerError.
    """
    create = file_creator(spark, checkpoint) or checkpoint.sluice.create
    job_id = job_identity(checkpoint).job_id
    published = published_epoch(topics.decisions, kafka, job_id)
    epoch = LeaderEpoch(job_id, new_epoch(checkpoint, create, published))
    if is_s3(checkpoint.location):
        _check_refuses(checkpoint, create, epoch.number)
    leadership.confirm()
    for topic in (topics.decisions, topics.dead_letters, topics.sums):
        _write_markers(topic, kafka, epoch, None)
    _write_markers(topics.waits, kafka, epoch, b"")  # it is compacted
    return epoch


def published_epoch(topic: str, kafka: Mapping[str, str], job_id: str) -> int:
    """The highest epoch of a job in the newest records of the topic; 0 if none has one. Raises EpochMarkerError."""
    highest = 0
    try:
        with TopicReader(kafka, topic) as reader:
            reader.skip_to_last(dict.fromkeys(reader.partitions(), _NEWEST))
            for _, record in reader.read_to_end():
                with suppress(IndexError, UnicodeDecodeError):  # a producer chooses the bytes of a header
                    epoch = epoch_in(record.stored_headers) if record.stored_headers else None
                    if epoch is not None and epoch.job_id == job_id:
                        highest = max(highest, epoch.number)
    except (KafkaError, OSError, TopicLostError) as error:
        raise EpochMarkerError(
            f"topic {topic} can't be read ({error_line(error)}), so the epoch of the driver before isn't known; see"
            " that its brokers are up and this login may read it"
        ) from error
    return highest


def new_epoch(checkpoint: Checkpoint, create: CreateFile, published: int = 0) -> int:
    """A number above all that drivers of this checkpoint have had. Raises CheckpointError.

    Files of older ones stay, so that none is given twice. `published`, the highest in the topic, is above them if the
    checkpoint is a backup that was restored, or if it is forged: one that is too far is left alone.
    """
    known = max(_numbers(checkpoint), default=0)
    if published > known:
        if is_far(LeaderEpoch("", published), known):
            log.error(
                "epoch %d of this job in the decisions topic is more than %d above %d, the highest in %s/sluice/%s: if"
                " the checkpoint was restored, stop the job, make the empty file %s there, and start it, else nobody"
                " counts its decisions; if it was not, somebody forged it, and may write to the topic",
                *(published, MAX_STEP, known, checkpoint.location, _FOLDER, _name(published).partition("/")[2]),
            )
        else:
            log.warning(
                "the checkpoint %s is older than the decisions topic, as one that was restored: it knows of epoch %d,"
                " and the topic has %d; the job goes on above that. Requests since are decided again, from the balances"
                " of then; the tables keep the first answers. If nobody restored it, see who may write to the topic",
                *(checkpoint.location, known, published),
            )
            known = published
    for number in count(known + 1):
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


def _numbers(checkpoint: Checkpoint) -> list[int]:
    return sorted(int(name) for name in checkpoint.sluice.names(_FOLDER) if name.isdecimal())


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:020d}"


def _write_markers(topic: str, kafka: Mapping[str, str], epoch: LeaderEpoch, value: bytes | None) -> None:
    """Write the epoch into each partition; returns once the brokers have it. Raises EpochMarkerError."""
    try:
        with closing(connect(KafkaProducer, kafka, acks="all", allow_auto_create_topics=False)) as producer:
            headers = [(HEADER, epoch.header())]
            sent = [
                producer.send(topic, value, MARKER_KEY, headers, partition)
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


_ByPartition = dict[int, dict[str, int]]
"""By partition and job the highest epoch."""


class _Seen(msgspec.Struct):
    """The highest epochs before and after the last micro-batch that raised any."""

    batch_id: int
    before: _ByPartition
    after: _ByPartition


class EpochsSeen:
    """The highest epochs that were read of a topic, kept so that a repeated micro-batch is judged as before."""

    def __init__(self, checkpoint: Checkpoint, file: str = "epochs_seen.json") -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files, self._file = checkpoint.sluice, file
        content = self._files.read(file)
        try:
            self._seen = _Seen(-1, {}, {}) if content is None else msgspec.json.decode(content, type=_Seen)
        except UNREADABLE as error:
            raise self._files.damaged_file(file, str(error)) from error

    def fenced(self, batch_id: int, spans: list[EpochSpan]) -> list[FencedFrom]:
        """Note the epochs of a micro-batch; returns the records of it that don't count."""
        before = self._seen.before if batch_id == self._seen.batch_id else self._seen.after
        fenced, after = fenced_from(spans, before)
        if after != before:
            self._seen = _Seen(batch_id, before, after)
            self._files.write(self._file, msgspec.json.encode(self._seen))
        return fenced
