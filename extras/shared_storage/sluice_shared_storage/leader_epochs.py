"""Leader epochs: the numbers of a checkpoint's drivers, in files that one driver alone can make, and their markers.

A driver begins its epoch when it leads. From the markers on, no record of a driver with a lower epoch counts
(`sluice.state.decisions.leader_epochs`).
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from itertools import count

from kafka import KafkaProducer
from kafka.errors import KafkaError

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
    LeaderEpoch,
    is_far,
)
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import job_identity
from sluice.streaming.checkpoint.store import CreateFile
from sluice.streaming.errors import CheckpointError
from sluice_shared_storage.settings import is_s3

log = logging.getLogger("sluice.job")

_FOLDER = "epochs"

_NEWEST = 100
"""Records of a partition in which the epoch of the last driver is looked for; most are its decisions."""

_SEND_TIMEOUT_S = 30.0


def begin_epoch(
    checkpoint: Checkpoint,
    create: CreateFile,
    confirm: Callable[[], None],
    topics: TopicSettings,
    kafka: Mapping[str, str],
) -> LeaderEpoch:
    """A new epoch, higher than those of all drivers before, with its markers in the topics that the job writes.

    Records that an earlier driver writes there from now on are fenced.

    1. Read the highest epoch of the job in the decisions topic: a checkpoint that was restored may not know it.
    2. Make the epoch's file. A store of objects has to refuse it a second time.
    3. Confirm that this driver leads, else `confirm` raises: a driver that leads after this gets a higher epoch.
    4. Write the markers.

    Raises CheckpointError, LeadershipError and EpochMarkerError.
    """
    job_id = job_identity(checkpoint).job_id
    published = published_epoch(topics.decisions, kafka, job_id)
    epoch = LeaderEpoch(job_id, new_epoch(checkpoint, create, published))
    if is_s3(checkpoint.location):
        _check_refuses(checkpoint, create, epoch.number)
    confirm()
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
