"""The one line that says why a query ended."""

import pytest

from streaming.errors import CheckpointError
from streaming.query_errors import is_lasting, reason_of

REPORT = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback (most recent call last):
  File "enforce.py", line 76, in _write_batch
py4j.protocol.Py4JJavaError: An error occurred while calling o793.save.
: org.apache.spark.SparkException: {outer}
\tat org.apache.spark.scheduler.DAGScheduler
Caused by: java.io.EOFException: Stream ended prematurely
\t... 19 more
 SQLSTATE: 39000
"""


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ("Job aborted", "java.io.EOFException: Stream ended prematurely"),
        (
            "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.",
            "stored state can't be read (java.io.EOFException: Stream ended prematurely);"
            " restore the checkpoint from a backup",
        ),
        (
            "Python worker exited unexpectedly (crashed).",
            "a Python worker died: killed, or out of memory (java.io.EOFException: Stream ended prematurely)",
        ),
    ],
)
def test_the_innermost_cause_is_told_and_what_to_do(outer: str, reason: str) -> None:
    assert reason_of(RuntimeError(REPORT.format(outer=outer))) == reason


def test_a_report_without_an_error_is_its_first_line() -> None:
    assert reason_of(RuntimeError("query\tstopped\nfor no reason")) == "query stopped"
    assert reason_of(RuntimeError()) == "RuntimeError"
    assert reason_of(None) == "no error was given"


def test_a_long_reason_is_cut() -> None:
    assert len(reason_of(RuntimeError("java.io.IOException: " + "x" * 10_000))) == 400


def test_only_damage_that_no_restart_cures_is_lasting() -> None:
    assert is_lasting(reason_of(CheckpointError("sluice.json is damaged")))
    assert is_lasting(reason_of(RuntimeError("[KAFKA_DATA_LOSS.X] Some data may have been lost")))
    assert is_lasting(reason_of(RuntimeError("Traceback\nstate.errors.StateError: stored state is cut short")))
    assert not is_lasting(reason_of(RuntimeError("java.io.IOException: disk")))
