"""Notices decisions with another job_id on the job's own topic: two jobs decide each request, or somebody forges."""

import logging
from collections.abc import Mapping
from contextlib import closing

import msgspec
from kafka import KafkaConsumer, TopicPartition

from configs.kafka import Trouble, connect
from sinks.background import BackgroundThread
from streaming.checkpoint.job_identity import JobIdentity

log = logging.getLogger("sluice.foreign")

_LOOK_S = 2.0
_RETRY_S = 10.0
_OFFSETS_TIMEOUT_MS = 3_000
_POLL_MS = 200
_MOST_POLLS = 25

_NEWEST = 100
"""Records of a partition that each look reads. Another job is seen in these too; reading all would cost a core."""

_MOST_JOBS = 10
_LONGEST_ID = 100
"""Jobs that are told apart, and characters by which; whoever forges more must not fill memory or log."""

_STOP_TIMEOUT_S = 10.0


class _Marks(msgspec.Struct):
    """What tells whose a decision is. A job of an older release writes no `job_id`."""

    decided_at_ms: int
    job_id: str | None = None


_MARKS = msgspec.json.Decoder(_Marks)


class ForeignDecisions:
    """Counts decisions in the newest records of the topic that another job made since this job's checkpoint was made.

    Earlier ones are those of the job that this one follows.
    """

    def __init__(self, topic: str, identity: JobIdentity) -> None:
        self.count = 0
        self.jobs: list[str] = []
        """The beginnings of the other jobs' ids; `unknown` for a job that writes none."""
        self._topic = topic
        self._identity = identity

    def take(self, value: bytes | None) -> None:
        """Look at one record of the topic; what is no decision is nobody's."""
        try:
            marks = _MARKS.decode(value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if marks.job_id == self._identity.job_id or marks.decided_at_ms <= self._identity.made_at_ms:
            return
        self.count += 1
        self._note((marks.job_id or "unknown")[:_LONGEST_ID])

    def _note(self, job_id: str) -> None:
        """Keep and log a new job."""
        if job_id in self.jobs or len(self.jobs) == _MOST_JOBS:
            return
        self.jobs.append(job_id)
        log.error(
            "topic %s has decisions with another job_id, %s, than this job's, %s: a second job on this topic, which"
            " charges every request again, or somebody else who writes there; stop that job or give it topics of its"
            " own, else see who may write to the topic",
            self._topic,
            job_id,
            self._identity.job_id,
        )


class ForeignDecisionsWatch:
    """A thread that feeds the newest decisions of each partition to `found`."""

    def __init__(self, topic: str, kafka: Mapping[str, str], identity: JobIdentity) -> None:
        self.found = ForeignDecisions(topic, identity)
        self._topic = topic
        self._kafka = kafka
        self._trouble = Trouble()
        self._thread = BackgroundThread("foreign-decisions", self._look_while_topic_lasts, _RETRY_S, self._report)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop(_STOP_TIMEOUT_S)

    def _look_while_topic_lasts(self) -> None:
        """Look again and again until the topic is another one or has other partitions; the next call begins anew."""
        with closing(connect(KafkaConsumer, self._kafka, enable_auto_commit=False)) as consumer:
            numbers = consumer.partitions_for_topic(self._topic)
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers or ())]
            consumer.assign(partitions)
            seen = dict.fromkeys(partitions, 0)
            while numbers and numbers == consumer.partitions_for_topic(self._topic):
                first = consumer.beginning_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                ends = consumer.end_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                for partition, end in ends.items():
                    if end < seen[partition]:
                        return
                    consumer.seek(partition, max(first[partition], seen[partition], end - _NEWEST))
                    seen[partition] = end
                self._read_to(ends, consumer)
                self._trouble.ends()
                if self._thread.stopped.wait(_LOOK_S):
                    return

    def _report(self, error: Exception) -> None:
        """Log a trouble once, until it changes or is over."""
        if self._trouble.is_new(error):
            log.warning("can't look for decisions of other jobs: %s; trying again", self._trouble.line)

    def _read_to(self, ends: Mapping[TopicPartition, int], consumer: KafkaConsumer) -> None:
        for _ in range(_MOST_POLLS):
            if self._thread.stopped.is_set():
                return
            if all(consumer.position(partition) >= end for partition, end in ends.items()):
                return
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        self.found.take(record.value)
