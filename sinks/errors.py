"""The errors of the Kafka topics and Delta tables that Sluice writes to."""

import re
from html import unescape
from typing import Self

from sluice.state.errors import SluiceError

_ANSWER = re.compile(r"<\?xml.*?(?:<Message>(?P<message>[^<]*)</Message>.*)?</Error>", re.DOTALL)
"""An error in S3's form."""

_TOOK = re.compile(r" in [\d.]+[nµm]?s\b")
"""The time that a request took, by which one error would be another each time."""

_FORBIDDEN = "403 Forbidden"
S3_RIGHTS = "the keys are wrong, or may not all of s3:GetObject, PutObject, DeleteObject and ListBucket there"


class EpochMarkerError(SluiceError):
    """The decisions topic doesn't take the markers of a driver that takes over."""


class QuotasTableError(SluiceError):
    """The quotas table is missing, broken or can't be written, or its path holds another table."""


class TableReadError(SluiceError):
    """A Delta table can't be read, or has lost rows."""


class TableMaintenanceError(SluiceError):
    """A Delta table can't be compacted or cleaned."""


class QueryError(SluiceError):
    """An SQL query over the Delta tables is wrong, or a table that it names can't be read."""


class NoTableError(QueryError):
    """A table that a query names doesn't exist yet."""

    def __init__(self, *missing: str) -> None:
        """`missing`: the tables, each with its path."""
        self._missing = missing
        super().__init__(
            f"nothing is recorded yet: there is no table for {', '.join(missing)}; a running job writes its first rows"
            " some 10 s after the first decision: start it, or name the settings of the one you mean (--config)"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, ...]]:
        """Pickle the tables, of which the message is made again: a replay reads in several processes."""
        return type(self), self._missing


class UnreadableTableError(QueryError):
    """A table can't be read: a fault of this machine or of the table, not of the query."""


class EarlierTableError(QueryError):
    """A table was made by an earlier release: it lacks columns that a query needs."""

    def __init__(self, path: str, lacking: str) -> None:
        """`lacking` is a column, or a field in one."""
        self._facts = (path, lacking)
        super().__init__(
            f"the table {path} is of an earlier release and has no column {lacking}; the job of this release adds it"
            " when it starts"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Pickle the facts, of which the message is made again: a replay reads in several processes."""
        return type(self), self._facts


class UsageUnknownError(SluiceError):
    """There is no table of metrics yet, or it can't be read, so recent usage is unknown."""


def storage_reason(error: Exception) -> str:
    """An error of delta-rs in one line: it writes trees of causes, in colours, then details of its own code.

    >>> storage_reason(OSError("no\\n \\x1b[31m↳\\x1b[0m 404: <?xml ?><Error><Message>None</Message></Error>"))
    'no: 404: None'
    >>> storage_reason(OSError("GET failed in 180.82µs, after 2 retries"))
    'GET failed, after 2 retries'
    """
    text = _ANSWER.sub(lambda answer: unescape(answer["message"] or ""), str(error).strip())
    text = _TOOK.sub("", text)
    first, *others = (text or type(error).__name__).replace("\x1b[31m", "").replace("\x1b[0m", "").splitlines()
    causes = [line.strip().removeprefix("↳").strip() for line in others if line.strip().startswith("↳")]
    line = ": ".join([first.strip(), *filter(None, causes)])
    return f"{line}: {S3_RIGHTS}" if _FORBIDDEN in line else line
