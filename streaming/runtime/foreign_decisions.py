"""Notices decisions of another job on the job's own topic: then two jobs decide each request."""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from threading import Event, Thread

import msgspec
from kafka import KafkaConsumer, TopicPartition

from configs.kafka import connect, error_line
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
"""Jobs that are told apart; whoever forges more must not fill memory or log."""

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
        self._topic = topic
        self._identity = identity
        self._jobs: Counter[str | None] = Counter()

    @property
    def jobs(self) -> list[str]:
        """The ids of the other jobs; `unknown` for one that writes none."""
        return [job_id or "unknown" for job_id in list(self._jobs)]

    def take(self, value: bytes | None) -> None:
        """Look at one record of the topic; what is no decision is nobody's."""
        try:
            marks = _MARKS.decode(value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if marks.job_id == self._identity.job_id or marks.decided_at_ms <= self._identity.made_at_ms:
            return
        self.count += 1
        if marks.job_id not in self._jobs and len(self._jobs) < _MOST_JOBS:
            log.error(
                "topic %s has decisions of job %s, this is job %s: two jobs decide the same requests and charge each of"
                " them; stop one, or give it topics of its own",
                self._topic,
                (marks.job_id or "unknown")[:100],
                self._identity.job_id,
            )
            self._jobs[marks.job_id] = 0
        if marks.job_id in self._jobs:
            self._jobs[marks.job_id] += 1


class ForeignDecisionsWatch:
    """A thread that feeds the newest decisions of each partition to `found`."""

    def __init__(self, topic: str, kafka: Mapping[str, str], identity: JobIdentity) -> None:
        self.found = ForeignDecisions(topic, identity)
        self._topic = topic
        self._kafka = kafka
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="foreign-decisions", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look_while_topic_lasts()
            except Exception as error:  # any error: what only observes must not end, or touch the queries
                log.warning("can't look for decisions of other jobs: %s; trying again", error_line(error))
                self._stopped.wait(_RETRY_S)

    def _look_while_topic_lasts(self) -> None:
        with closing(connect(KafkaConsumer, self._kafka, enable_auto_commit=False)) as consumer:
            numbers = consumer.partitions_for_topic(self._topic) or set()
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            seen = dict.fromkeys(partitions, 0)
            while not self._stopped.is_set() and partitions:
                first = consumer.beginning_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                ends = consumer.end_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                for partition, end in ends.items():
                    if end < seen[partition]:
                        return  # the topic was created again, so the next call starts from its beginning
                    consumer.seek(partition, max(first[partition], seen[partition], end - _NEWEST))
                    seen[partition] = end
                self._read_to(ends, consumer)
                self._stopped.wait(_LOOK_S)
            self._stopped.wait(_LOOK_S)

    def _read_to(self, ends: Mapping[TopicPartition, int], consumer: KafkaConsumer) -> None:
        for _ in range(_MOST_POLLS):
            if self._stopped.is_set() or all(consumer.position(partition) >= end for partition, end in ends.items()):
                return
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        self.found.take(record.value)
