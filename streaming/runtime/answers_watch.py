"""The job's poll of its own answers: decisions of other jobs, the newest decisions for metrics, and dead letters."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.contract.projection import projects
from sluice.state.contract.records import Decision
from sluice.state.errors import UNREADABLE
from sluice.streaming.checkpoint.origin import JobIdentity

_POLL_S = 2.0
"""Interval between two polls of the newest decisions."""

_COUNT_S = 10.0
"""Interval between two polls of the ends of the topic of dead letters."""

_RETRY_S = 10.0

_LEAST_OF_A_PARTITION = 100
"""Records of a partition that each poll reads. Another job is seen in these too; reading all would cost a core."""

_MOST_JOBS = 10
_LONGEST_ID = 100
"""Jobs that are told apart, and characters of their ids: a forger of more must fill neither memory nor log."""

_KNOWN_ANSWERS = 10_000
"""Newest answers whose times are kept by a hash, several polls of them: a copy of the job may be seconds behind."""

A_COPY = "a copy of this job's checkpoint"
"""Stands for the id of a job that has this job's own."""


def decisions_watch(
    topic: str, kafka: Mapping[str, str], readers: Sequence[Callable[[bytes | None], None]], newest: int = 0
) -> BackgroundService:
    """A service that gives the newest decisions to each of `readers`, none of them twice.

    Each poll reads `newest` records at most, in equal parts of all partitions, or 100 of each if more. Those of a
    driver that was replaced are left out.
    """

    def poll() -> Iterator[None]:
        with TopicReader(kafka, topic, fenced=True) as reader:
            while True:
                partitions = reader.partitions()
                most = max(_LEAST_OF_A_PARTITION, newest // max(1, len(partitions)))
                reader.skip_to_last(dict.fromkeys(partitions, most))
                for _, record in reader.read_to_end():
                    for read in readers:
                        read(record.value)
                yield

    failure = "can't read the newest decisions"
    log = logging.getLogger("sluice.decisions")
    return BackgroundService(
        "decisions-watch", poll, _POLL_S, retry_s=_RETRY_S, failure=failure, log=log, level=logging.WARNING
    )


def dead_letters_watch(topic: str, kafka: Mapping[str, str], count: Callable[[int], None]) -> BackgroundService:
    """A service that tells `count` how many records the topic has got, by the ends of its partitions."""
    growth = TopicGrowth()

    def poll() -> Iterator[None]:
        with TopicReader(kafka, topic) as reader:
            while True:
                count(growth.since_last({partition: each.end for partition, each in reader.offsets().items()}))
                yield

    failure = "can't count dead letters"
    log = logging.getLogger("sluice.dead_letters")
    return BackgroundService("dead-letters-watch", poll, _COUNT_S, failure=failure, log=log, level=logging.WARNING)


class TopicGrowth:
    """The number of records that a topic gets from one poll to the next.

    >>> growth = TopicGrowth()
    >>> growth.since_last({0: 100, 1: 7}), growth.since_last({0: 103, 1: 7})
    (0, 3)
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] | None = None

    def since_last(self, ends: Mapping[int, int]) -> int:
        """Records since the last poll, at the first one 0; all of a partition that is new, or was made again."""
        before, self._ends = self._ends, dict(ends)
        if before is None:
            return 0
        starts = {partition: start for partition, start in before.items() if start <= ends.get(partition, 0)}
        return sum(end - starts.get(partition, 0) for partition, end in ends.items())


@projects(Decision)
class _Marks(msgspec.Struct):
    """The fields of a decision that name its job and its request. A forged one may have no `job_id`."""

    decision_id: str
    decided_at_ms: int
    job_id: str | None = None
    source_topic_id: str | None = None


_MARKS = msgspec.json.Decoder(_Marks)


class ForeignDecisions:
    """Decisions of others on the job's own topic: a second job decides each request too, or somebody forges.

    Counts those in the newest records of the topic that another job made since this job's checkpoint was made. Earlier
    ones are those of the job that this one follows. A job on a copy of the checkpoint has the same job_id: it is seen
    by requests that have two answers of different times since this process started, as one that a crash repeats keeps
    its time.
    """

    def __init__(self, topic: str, identity: JobIdentity) -> None:
        self.count = 0
        self.jobs: list[str] = []
        """The beginnings of the other jobs' ids; `unknown` for a job that writes none, `A_COPY` for one with ours."""
        self._topic = topic
        self._identity = identity
        self._started_at_ms = now_ms()
        self._times: dict[int, int] = {}
        self._log = logging.getLogger("sluice.foreign")

    def on_decision(self, value: bytes | None) -> None:
        """Look at one record of the topic; one that holds no decision counts as nobody's."""
        try:
            marks = _MARKS.decode(value or b"")
        except UNREADABLE:
            return
        if marks.decided_at_ms <= self._identity.made_at_ms:
            return
        if marks.job_id != self._identity.job_id:
            self._note((marks.job_id or "unknown")[:_LONGEST_ID])
        elif marks.decided_at_ms >= self._started_at_ms and self._has_other_time(marks):
            self._note(A_COPY)

    def _has_other_time(self, marks: _Marks) -> bool:
        """True if the request has another answer, made at another time."""
        request = hash((marks.source_topic_id, marks.decision_id))  # a forger's ids may have any length
        first = self._times.setdefault(request, marks.decided_at_ms)
        if len(self._times) > _KNOWN_ANSWERS:
            del self._times[next(iter(self._times))]
        return first != marks.decided_at_ms

    def _note(self, job_id: str) -> None:
        self.count += 1
        if job_id in self.jobs or len(self.jobs) == _MOST_JOBS:
            return
        self.jobs.append(job_id)
        if job_id == A_COPY:
            self._log.error(
                "topic %s has two answers of this job's job_id, %s, to the same requests: a second job runs on %s, and"
                " charges every request again; stop one of them",
                self._topic,
                self._identity.job_id,
                A_COPY,
            )
            return
        self._log.error(
            "topic %s has decisions with another job_id, %s, than this job's, %s: a second job on this topic, which"
            " charges every request again, or somebody else who writes there; stop that job or give it topics of its"
            " own, else see who may write to the topic",
            self._topic,
            job_id,
            self._identity.job_id,
        )
