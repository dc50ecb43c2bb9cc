"""The errors of the Kafka topics and Delta tables that Sluice writes to."""

import re
from html import unescape

from sluice.state.errors import SluiceError

_ANSWER = re.compile(r"<\?xml.*?(?:<Message>(?P<message>[^<]*)</Message>.*)?</Error>", re.DOTALL)
"""An error in S3's form."""

_TOOK = re.compile(r" in [\d.]+[nµm]?s\b")
"""The time that a request took, by which one error would be another each time."""

_TREE = re.compile(r"^.*(?:\n\s*(?:\x1b\[31m)?↳.*)+", re.MULTILINE)
"""An error of delta-rs: a line with its causes below."""

_CAUSE = re.compile(r"\s*\n\s*(?:\x1b\[31m)?↳(?:\x1b\[0m)?\s*")

_REQUEST = re.compile(
    r"(?P<kind>[\w.]+Error: )?.*Error performing [A-Z]+ (?P<place>https?://[^/\s]+)\S*"
    r"(?:, after \d+ retries, max_retries: \d+, retry_timeout: \S+)?\s* - "
    r"(?:Server returned non-2xx status code: (?P<status>\d{3}[\w ]*)(?:: (?P<said>.*))?|(?P<trouble>.*))"
)
"""A request to a store that failed, in one line of delta-rs."""

S3_RIGHTS = "the keys are wrong, or may not all of s3:GetObject, PutObject, DeleteObject and ListBucket there"

_CURES = (
    (r"\b169\.254\.", "no keys are set (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and this machine has no role"),
    (r"current time is too large", "set this machine's clock by NTP"),
    (r"403 Forbidden", S3_RIGHTS),
    (r"token has expired", "renew AWS_SESSION_TOKEN or the file of credentials"),
    (r"bucket does not exist", "make it, or correct the name in the settings"),
    (
        r"\(Connect\)|operation timed out",
        "see that it runs, and that this machine finds and reaches it (AWS_ENDPOINT_URL)",
    ),
)
"""A pattern in an error of S3 -> what to do; the first counts."""


class EpochMarkerError(SluiceError):
    """The decisions topic doesn't take the markers of a driver that takes over."""


class QuotasTableError(SluiceError):
    """The quotas table is missing, broken or can't be written, or its path holds another table."""


class BrokenQuotasError(QuotasTableError):
    """A version of the quotas table has rows that no command would have written."""


class TableReadError(SluiceError):
    """A Delta table can't be read, or has lost rows."""


def storage_reason(error: Exception) -> str:
    """An error of delta-rs in one line: it writes trees of causes, in colours, then details of its own code.

    >>> storage_reason(OSError("no\\n \\x1b[31m↳\\x1b[0m 404: <?xml ?><Error><Message>None</Message></Error>"))
    'no: 404: None'
    >>> storage_reason(OSError("GET failed in 180.82µs, after 2 retries"))
    'GET failed, after 2 retries'
    """
    return (storage_text(str(error).strip()) or type(error).__name__).splitlines()[0].strip()


def storage_text(report: str) -> str:
    """A report in which each error of delta-rs is one line, which says of a store what it answers, and what to do."""
    text = _ANSWER.sub(lambda answer: unescape(answer["message"] or "").rstrip("."), report)
    return _TREE.sub(_plain, _TOOK.sub("", text))


def _plain(tree: re.Match[str]) -> str:
    line = _CAUSE.sub(": ", tree[0]).strip()
    if (request := _REQUEST.fullmatch(line)) is None:
        return line
    kind, place, status, said, trouble = request.group("kind", "place", "status", "said", "trouble")
    *_, last = (trouble or "").split(": ")
    answer = f" answers {status}{f': {said}' if said else ''}" if status else f": {last}"
    words = f"{kind or ''}S3 at {place}{answer}"
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, f"{place} {line}")), "")
    return f"{words}: {cure}" if cure else words
