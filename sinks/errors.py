"""The errors of the Kafka topics and Delta tables that Sluice writes to."""

import re
from html import unescape

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
