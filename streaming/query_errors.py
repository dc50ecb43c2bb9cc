"""Why a query ended, in one line that says what to do about it."""

import re

from state.errors import SluiceError

_LENGTH = 400

_KNOWN = {
    r"CANNOT_LOAD_STATE_STORE": "stored state can't be read ({cause}); restore the checkpoint from a backup",
    r"KAFKA_DATA_LOSS|KafkaDataLoss|failOnDataLoss|Some data may have been lost": (
        "Kafka has no longer, or not any more under the same offsets, what was to be read next ({cause}); to go on with"
        " what there is set enforce.fail_on_data_loss: false, or start with a new checkpoint"
    ),
    r"UnknownTopicOrPartitionException": "a topic is missing ({cause}); it is created again with the next start",
    r"Python worker exited unexpectedly": "a Python worker died: killed, or out of memory ({cause})",
    r"No space left on device|File too large": "there is no room to write ({cause}); make room on the disk",
}
"""What Spark's report has in it -> what to tell the operator; `cause` is the report's innermost line."""

_ERROR_LINE = re.compile(r"(?:Caused by: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception)\b.*)")
_LASTING = re.compile(r"\b(StateError|CheckpointError)\b|^Kafka has no longer")


def reason_of(error: BaseException | None) -> str:
    """One line; long ones are cut."""
    if error is None:
        return "no error was given"
    if isinstance(error, SluiceError):
        return f"{type(error).__name__}: {error}"
    report = str(error)
    cause = _innermost(report) or type(error).__name__
    for pattern, words in _KNOWN.items():
        if re.search(pattern, report):
            return words.format(cause=cause)
    return cause


def is_lasting(reason: str) -> bool:
    """Whether no restart can cure it: the operator has to act.

    A topic that was made anew looks well again as soon as it has as many records as the old one; going on then would
    leave them out without a word.
    """
    return _LASTING.search(reason) is not None


def _innermost(report: str) -> str:
    """The last line that names an error, else the first line."""
    lines = [" ".join(line.split()) for line in report.splitlines() if line.strip()]
    named = [match[1] for line in lines if (match := _ERROR_LINE.match(line))]
    return (named[-1] if named else "".join(lines[:1]))[:_LENGTH]
