"""The state of a query and the reason for its end: a cause to act on, and one line that tells operators what to do."""

import re
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from py4j.protocol import Py4JNetworkError

from sluice.sinks.errors import S3_RIGHTS, storage_text
from sluice.state.errors import SluiceError, StateError
from sluice.streaming.errors import BrokenProcessError, CheckpointError, CheckpointStorageError, ReleaseError


class RunState(StrEnum):
    """The states of a query; the texts are part of `/readyz` and the status file."""

    STARTING = "starting"
    RETRYING = "trying again"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Place:
    """The place named by the error that ended a query: the record or partition read, or the page of the state."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    page: int | None = None

    def known(self) -> dict[str, str | int]:
        """The fields that are known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of a query, its restarts since the process started, and the reason and place of its last end."""

    state: RunState = RunState.STARTING
    restarts: int = 0
    failures_in_a_row: int = 0
    reason: str | None = None
    place: Place | None = None


_MAX_LENGTH = 400


class Cause(Enum):
    """The causes of a query's end that the job acts on."""

    CHECKPOINT = auto()  # it is damaged, state in it too, or was made with other settings
    LOST_INPUT = auto()  # Kafka no longer has the records that were to be read next
    PROCESS_BROKEN = auto()  # Java, a part of it or the folder of its files is gone: only a new process has them
    TOO_LARGE = auto()  # a record is larger than its topic takes
    NO_ROOM = auto()  # on a disk: the query goes on once somebody makes some
    OTHER_RELEASE = auto()  # workers have another release than the driver
    OTHER = auto()

    @property
    def is_lasting(self) -> bool:
        """True if a restart can't fix it: the operator has to act.

        Lost input is lasting, because a topic that was deleted and created again looks healthy as soon as it has as
        many records as the old one. Continuing would skip those records without any message.
        """
        return self in (Cause.CHECKPOINT, Cause.LOST_INPUT, Cause.OTHER_RELEASE)


class Reason(NamedTuple):
    """Why a query ended: what the job acts on, and what it only shows: one line of text, and the place it names."""

    cause: Cause
    text: str
    place: Place | None = None


_LOST_INPUT = r"KAFKA_DATA_LOSS|KafkaDataLoss|failOnDataLoss|Some data may have been lost"
_TOO_LARGE = r"RecordTooLargeException"
_NO_ROOM = r"No space left on device|Disk quota exceeded|File too large"
_UNLOADED = (
    r"Unable to load the RocksDB shared library|NoClassDefFoundError|ExceptionInInitializerError|UnsatisfiedLinkError"
)
_LACKING = re.compile(r"No module named '(sluice\w*)|port number from (sluice\w*)[\w.]*'s stdout and terminated")
"""A worker that found no package of Sluice, as Python says it, or as Spark does of a daemon that ended at its start."""

_REPORTS = {
    _UNLOADED: (
        "Java couldn't load one of its libraries, and tries no second time ({cause}); make room if a disk is full, and"
        " start the job again"
    ),
    _NO_ROOM: "there is no room to write ({cause}); make room on the disk",
    r"CANNOT_LOAD_STATE_STORE": "stored state can't be read ({cause}); restore the checkpoint from a backup",
    _LOST_INPUT: (
        "Kafka no longer has the next records to read, or has them under other offsets ({cause}); to continue with the"
        " records there are, set {query}.fail_on_data_loss: false, or start with a new checkpoint"
    ),
    _TOO_LARGE: "a record is larger than its topic takes ({cause}); the next start makes smaller ones",
    r"UnknownTopicOrPartitionException": "a topic is missing ({cause}); it is created again with the next start",
    _LACKING.pattern: (
        "the Python of a worker lacks the package {package}, or can't load it ({cause}); install all packages that the"
        " driver has, in the same versions, on each machine with workers, or see the executor's log for another reason"
    ),
    r"Python worker exited unexpectedly": "a Python worker died: killed, or out of memory ({cause})",
    r"has timestamp value -?\d+ that overflows": (
        "Spark can't read the record's time ({cause}); bound the times of its topic with"
        " message.timestamp.before.max.ms and message.timestamp.after.max.ms, delete its records up to that one with"
        " kafka-delete-records.sh, and set {query}.fail_on_data_loss: false"
    ),
    r"AuthorizationException": "this login lacks a right that it needs ({cause}); docs/security.md has all of them",
    r"\(Service: S3, Status Code: 403": f"{{cause}}: {S3_RIGHTS}",
    r"unable to create native thread": (
        "the system gives Java no further thread ({cause}); raise `ulimit -u` of the account, and the most processes of"
        " its container (pids.max), to 512 or more"
    ),
}
"""A pattern in Spark's report -> the text for the operator; `{cause}` in it is the report's innermost line.

The first that is found counts: a full disk before all that it leads to.
"""

_JAVA_GONE = "Java, in which Spark runs, is gone ({cause}): killed, or out of memory; start the job again"

_ERROR_LINE = re.compile(r"(?:Caused by: |: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception)\b.*)")
_OF_TABLES = re.compile(r"^sluice\.sinks\.errors\.\w+: |^[\w.]+: (?=S3 at )")
"""The class before an error whose words are meant for operators."""

_OF_WORKERS = {
    re.compile(rf"\b({StateError.__name__}|{CheckpointError.__name__})\b"): Cause.CHECKPOINT,
    re.compile(rf"\b{ReleaseError.__name__}\b"): Cause.OTHER_RELEASE,
}
"""Errors of Sluice's own that a worker raised: Spark reports only their names."""

_PARTITION = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
_PLACES = [
    re.compile(pattern)
    for pattern in (
        # Spark's Kafka source; its conditions are in error/kafka-error-conditions.json of the jar
        rf"offset \[(?P<offset>\d+), \d+\) for topic partition {_PARTITION}",
        rf"Partition {_PARTITION} offset was changed from (?P<offset>\d+) to",
        rf"Starting offset for {_PARTITION} was (?P<offset>\d+) but",
        rf"Added partition {_PARTITION} starts from \d+ instead of (?P<offset>0)",
        r"at topic (?P<topic>[\w.-]+) partition (?P<partition>\d+) offset (?P<offset>\d+)",
        r"start offset (?P<offset>\d+) is [^.]* for topic (?P<topic>[\w.-]+) partition (?P<partition>\d+)",
        # Kafka's consumer
        rf"partition {_PARTITION} at offset (?P<offset>\d+)",
        rf"offset=(?P<offset>\d+)\b.* out of range for partition {_PARTITION}",
        rf"partition {_PARTITION}\b",
        # Sluice
        rf"\b{StateError.__name__}: page (?P<page>\d+): ",
    )
]
"""Patterns by which an error names its place. The first match counts; the fields are shown, nothing acts on them."""


def reason_of(error: BaseException | None, query: str) -> Reason:
    """Why the query ended; `query` is its name, which is also the name of its section of the settings."""
    return _reason_of(error, query)._replace(place=_place(f"{type(error).__name__}: {error}"))


def _reason_of(error: BaseException | None, query: str) -> Reason:
    if error is None:
        return Reason(Cause.OTHER, "no error was given")
    if isinstance(error, SluiceError):
        if isinstance(error, BrokenProcessError):
            return Reason(Cause.PROCESS_BROKEN, str(error))
        if re.search(_NO_ROOM, str(error)):  # whose own words have another cure
            return Reason(Cause.NO_ROOM, _REPORTS[_NO_ROOM].format(cause=str(error).partition(";")[0]))
        damaged = isinstance(error, StateError | CheckpointError) and not isinstance(error, CheckpointStorageError)
        return Reason(Cause.CHECKPOINT if damaged else Cause.OTHER, str(error))
    report = storage_text(str(error))
    innermost = _innermost(report) or type(error).__name__
    pattern = next((pattern for pattern in _REPORTS if re.search(pattern, report)), None)
    lacking = "".join(filter(None, found.groups())) if (found := _LACKING.search(report)) else ""
    package = lacking.replace("sluice", "sluice-kafka", 1).replace("_", "-")
    text = _REPORTS[pattern].format(cause=innermost, query=query, package=package) if pattern else innermost
    if pattern == _UNLOADED:
        return Reason(Cause.PROCESS_BROKEN, text)
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return Reason(Cause.PROCESS_BROKEN, text if pattern else _JAVA_GONE.format(cause=innermost))
    of_worker = next((cause for error, cause in _OF_WORKERS.items() if error.search(innermost)), None)
    if of_worker is not None and pattern != _NO_ROOM:
        return Reason(of_worker, text)
    causes = {_LOST_INPUT: Cause.LOST_INPUT, _TOO_LARGE: Cause.TOO_LARGE, _NO_ROOM: Cause.NO_ROOM}
    return Reason(causes.get(pattern or "", Cause.OTHER), text)


def _innermost(report: str) -> str:
    """The last line that names an error, else the first line; long lines are cut."""
    lines = [" ".join(line.split()) for line in report.splitlines() if line.strip()]
    named = [match[1] for line in lines if (match := _ERROR_LINE.match(line))]
    return _OF_TABLES.sub("", named[-1] if named else "".join(lines[:1]))[:_MAX_LENGTH]


def _place(report: str) -> Place | None:
    text = " ".join(report.split())
    match = next((match for pattern in _PLACES if (match := pattern.search(text))), None)
    if match is None:
        return None
    fields = match.groupdict()
    numbers = {name: int(value) for name, value in fields.items() if name != "topic"}
    return Place(topic=fields.get("topic"), **numbers)
