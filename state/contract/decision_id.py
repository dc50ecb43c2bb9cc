"""The identity of a request event: Kafka's record of it, which all its answers name.

A decision has it as text, `topic-partition-offset`, and a dead letter as fields.
"""

import re
from typing import NamedTuple

import msgspec

from sluice.state.contract.records import FieldError, SourceRecord, Verdict
from sluice.state.errors import UNREADABLE

DECISION_ID = r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})-(?P<offset>0|[1-9][0-9]{0,18})"
"""The id as a regular expression, also Arrow's. The topic may have dashes and digits of its own, and no zeros lead a
number: two ids would name the same event."""

MAX_OFFSET = 2**63 - 1
"""The last offset of a partition."""

_READ = re.compile(DECISION_ID, re.DOTALL)


def decision_id(topic: str, partition: int, offset: int) -> str:
    """The id of the decision on a request, and the request's own id where it has none."""
    return f"{topic}-{partition}-{offset}"


class DecisionId(NamedTuple):
    """The parts of a decision's id."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, text: str) -> "DecisionId | None":
        """The parts of an id; None for a text that is no id.

        >>> DecisionId.of("quota-requests-1-0-7"), DecisionId.of("quota-requests-0-07")
        (DecisionId(topic='quota-requests-1', partition=0, offset=7), None)
        """
        match = _READ.fullmatch(text)
        if match is None or int(match["offset"]) > MAX_OFFSET:
            return None
        return cls(match["topic"], int(match["partition"]), int(match["offset"]))


class _Answer(msgspec.Struct):
    """The fields that make a record a decision or a dead letter, and name its event."""

    decision_id: str | None = None
    verdict: Verdict | None = None
    job_id: str | None = None
    source_topic_id: str | None = None
    source: SourceRecord | None = None
    error: FieldError | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def answered_event(value: bytes | None, job_id: str | None = None) -> SourceRecord | None:
    """The event that a decision or dead letter answers, the same for both; None for any other record.

    With `job_id` decisions of another job are other records. A dead letter doesn't say whose it is.

    >>> decision = b'{"decision_id":"requests-0-7","verdict":"ALLOW","source_topic_id":"A"}'
    >>> error = b'{"field":"api","problem":"is missing","expected":"a value"}'
    >>> letter = b'{"source":{"topic":"requests","partition":0,"offset":7,"topic_id":"A"},"error":%b}' % error
    >>> answered_event(decision) == answered_event(letter), answered_event(b"{}")
    (True, None)
    """
    try:
        answer = _ANSWER.decode(value or b"")
    except UNREADABLE:
        return None
    if answer.decision_id is None:
        return answer.source if answer.error is not None else None
    if answer.verdict is None or answer.source is not None or job_id not in (None, answer.job_id):
        return None
    decided = DecisionId.of(answer.decision_id)
    return None if decided is None else SourceRecord(*decided, answer.source_topic_id)
