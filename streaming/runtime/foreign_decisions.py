"""Notices decisions with another job_id on the job's own topic: two jobs decide each request, or somebody forges."""

import logging

import msgspec

from sluice.streaming.checkpoint.job_identity import JobIdentity

log = logging.getLogger("sluice.foreign")

_MOST_JOBS = 10
_LONGEST_ID = 100
"""Jobs that are told apart, and characters by which; whoever forges more must not fill memory or log."""


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
