"""The id of a decision: `topic-partition-offset`, which names the Kafka record of the request."""

import re
from typing import NamedTuple

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
