"""A query that ends by itself is started again; these queries are made up, because real ones don't fail on demand."""

import logging
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from sluice.configs.settings import RestartSettings
from sluice.state.errors import SluiceError
from sluice.streaming.errors import CheckpointError, JobError
from sluice.streaming.queries.reasons import Cause, reason_of
from sluice.streaming.queries.supervision import SupervisedQuery, backoff_s
from sluice.streaming.running_job import check_runs
from tests.waiting import eventually

FULL = "can't write x: [Errno 28] No space left on device"
QUICK = RestartSettings(max_failures=3, backoff_ms=1, max_backoff_ms=1)
SLOW = RestartSettings(max_failures=3, backoff_ms=3_600_000, max_backoff_ms=3_600_000)


class MadeUpQuery:
    """Runs until it is stopped, or ends immediately with an error, after `batches` micro-batches."""

    def __init__(self, error: Exception | None = None, batches: int = 0) -> None:
        self._error = error
        self.batches = batches
        self.idle_at = "00:00"
        self.stopped = False
        self.error: SluiceError | None = None

    def start(self) -> Any:
        return self

    def stop(self) -> None:
        self.stopped = True

    def exception(self) -> Exception | None:
        return self._error

    @property
    def isActive(self) -> bool:  # noqa: N802 # Spark's name
        return self._error is None

    @property
    def lastProgress(self) -> Any:  # noqa: N802 # Spark's name
        return self.recentProgress[-1] if self.batches else None

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 # Spark's name
        source = {"latestOffset": None, "endOffset": None}
        progress = {"name": "q", "timestamp": self.idle_at, "numInputRows": 1, "durationMs": {}, "sources": [source]}
        return [{**progress, "batchId": number} for number in range(self.batches)]


def supervised(runs: list[MadeUpQuery], restart: RestartSettings, gives_up: bool = True) -> SupervisedQuery:
    made = iter(runs)
    query = SupervisedQuery("q", lambda: next(made), restart, gives_up)
    query.start()
    return query


def end(*queries: SupervisedQuery) -> None:
    for query in queries:
        query.stop()
        query.join()


def test_a_failed_query_is_started_again_and_its_reason_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The line that says what happened, not all of Spark's report."""
    report = "[STREAM_FAILED] Query terminated\n  at x.y\njava.io.IOException: disk\x1b is gone\n\tat z"
    with caplog.at_level(logging.ERROR):
        query = supervised([MadeUpQuery(RuntimeError(report)), running := MadeUpQuery()], QUICK)
        eventually(lambda: query.state.state == "trying again" and query.state.restarts == 1)
        running.batches = 1
        eventually(lambda: query.state.state == "running")
    end(query)

    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("sluice.")]
    assert line == "query q ended, once; starts again in 0.001 s: java.io.IOException: disk\x1b is gone"
    assert running.stopped
    assert query.state.state == "stopped"


def test_the_reason_of_a_failed_start_is_not_logged_when_the_job_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """The job's last line has it; twice in one stream would look like two faults."""
    query = supervised([MadeUpQuery(CheckpointError("sluice.json is damaged"))], SLOW)
    query.join()

    (entry,) = [record for record in caplog.records if record.name.startswith("sluice.")]
    assert entry.getMessage() == "query q is given up"
    assert not vars(entry)["fields"]
    with pytest.raises(JobError) as raised:
        check_runs({query.name: query.state})
    assert str(raised.value).count("sluice.json is damaged") == 1


def test_failures_in_a_row_end_it() -> None:
    query = supervised([MadeUpQuery(RuntimeError(f"E{number}")) for number in range(3)], QUICK)
    query.join()

    assert query.state.state == "given up"
    assert query.state.failures_in_a_row == 3
    assert query.state.reason == "E2"


def test_a_micro_batch_between_failures_starts_the_count_afresh() -> None:
    """Five failures, never three in a row without a micro-batch."""
    failing = [MadeUpQuery(RuntimeError("broker"), batches=number % 2) for number in range(5)]
    query = supervised([*failing, MadeUpQuery()], QUICK)
    eventually(lambda: query.state.restarts == 5)
    batches = query.new_batches()
    end(query)

    assert query.state.state == "stopped"
    assert [batch["batch_id"] for batch in batches] == [0, 0]


@pytest.mark.parametrize("error", [RuntimeError("disk"), OSError(FULL), CheckpointError(f"{FULL}; give it a folder")])
def test_a_query_that_never_gives_up_or_has_no_room_on_a_disk_goes_on_trying(error: Exception) -> None:
    query = supervised([*(MadeUpQuery(error) for _ in range(10)), MadeUpQuery()], QUICK, FULL in str(error))
    eventually(lambda: query.state.restarts == 10)
    end(query)
    assert (query.state.reason == f"there is no room to write ({FULL}); make room on the disk") == (FULL in str(error))

    assert query.state.state == "stopped"


@pytest.mark.parametrize("effect", ["[CANNOT_LOAD_STATE_STORE]", "Python worker exited", "KAFKA_DATA_LOSS"])
def test_whatever_a_full_disk_leads_to_is_told_as_a_full_disk(effect: str) -> None:
    """State in a local file that can't be written is not damaged: a restore of a backup would lose decisions."""
    cause = f"org.rocksdb.RocksDBException: While appending to file: {FULL}"

    found = reason_of(RuntimeError(f"{effect} An error occurred.\nCaused by: {cause}"), "enforce")

    assert found[:2] == (Cause.NO_ROOM, f"there is no room to write ({cause}); make room on the disk")


def test_a_library_that_java_could_not_unpack_needs_a_new_process() -> None:
    """Java keeps the failure of a first use, also once there is room."""
    failure = (
        f"java.lang.RuntimeException: Unable to load the RocksDB shared library\nCaused by: java.io.IOException: {FULL}"
    )

    found = reason_of(RuntimeError(failure), "enforce")

    assert found.cause is Cause.PROCESS_BROKEN
    assert found.text.startswith(
        "Java couldn't load one of its libraries, and tries no second time (java.io.IOException"
    )


@pytest.mark.parametrize("is_made", [True, False])
def test_damage_that_no_restart_cures_ends_it_at_once(is_made: bool) -> None:
    """Also if the query can't even be made: the checkpoint is checked then; an error there must not end the thread."""
    damage = CheckpointError("sluice.json is damaged")
    make = Mock(side_effect=None if is_made else damage, return_value=MadeUpQuery(damage))

    query = SupervisedQuery("q", make, SLOW)
    query.start()
    query.join()

    assert (query.state.state, query.state.reason) == ("given up", "sluice.json is damaged")


class BrokenCall(MadeUpQuery):
    """Runs until it is stopped; its progress can be read once, as if the socket to Java broke then."""

    def __init__(self, is_stoppable: bool = True) -> None:
        super().__init__(batches=1)
        self._is_stoppable = is_stoppable
        self._reads = 0

    def stop(self) -> None:
        super().stop()
        if not self._is_stoppable:
            raise OSError("it broke again")

    @property
    def isActive(self) -> bool:  # noqa: N802 # Spark's name
        return not self.stopped

    @property
    def lastProgress(self) -> Any:  # noqa: N802 # Spark's name
        self._reads += 1
        if self._reads > 1:
            raise OSError("one call to Java failed")
        return super().lastProgress


@pytest.mark.parametrize("is_stoppable", [True, False])
def test_a_query_whose_progress_cant_be_read_is_stopped_before_the_next_starts(is_stoppable: bool) -> None:
    """Three times, each after a micro-batch: that is no failure in a row, and no two queries run at once."""
    active_at_start: list[bool] = []
    runs = [*(BrokenCall(is_stoppable) for _ in range(4)), MadeUpQuery(batches=1)]
    made = iter(runs)

    def make() -> MadeUpQuery:
        active_at_start.append(any(not run.stopped for run in runs[: len(active_at_start)]))
        return next(made)

    query = SupervisedQuery("q", make, QUICK)
    query.start()
    eventually(lambda: query.state.state == "running" and query.state.restarts == 4)
    end(query)

    assert active_at_start == [False] * 5
    assert query.state.state == "stopped"


def test_a_stop_ends_the_pause() -> None:
    """SIGTERM is obeyed immediately, whatever the backoff."""
    query = supervised([MadeUpQuery(RuntimeError("broker"))], SLOW)
    eventually(lambda: query.state.state == "backing off")
    end(query)

    assert query.state.state == "stopped"


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 1.0), (2, 2.0), (4, 8.0), (6, 30.0), (100_000, 30.0)])
def test_the_pause_doubles_up_to_its_limit(failures: int, pause_s: float) -> None:
    assert backoff_s(failures, RestartSettings(8, 1000, 30_000)) == pause_s


def test_a_query_is_quiet_from_its_start_or_sparks_last_report_on() -> None:
    """An idle query reports too, with the number of its next micro-batch and a new time."""
    now_s = 100.0
    run = MadeUpQuery(batches=1)
    query = SupervisedQuery("q", lambda: run, QUICK, clock_s=lambda: now_s)
    query.start()
    eventually(lambda: bool(query.new_batches()))
    assert query.quiet_s() == 0

    now_s = 700.0
    assert query.quiet_s() == 600

    run.idle_at = "00:10"
    eventually(lambda: query.quiet_s() == 0)
    end(query)


def second(first: SupervisedQuery, clock_s: Callable[[], float] = time.monotonic) -> SupervisedQuery:
    query = SupervisedQuery("second", MadeUpQuery, QUICK, clock_s=clock_s, after=first)
    query.start()
    return query


def test_a_query_waits_for_the_first_trigger_of_the_one_before_it() -> None:
    """The first micro-batch after a start takes all cores, and clients wait for its decisions."""
    run = MadeUpQuery()
    first = supervised([run], QUICK)
    follower = second(first)
    assert (first.state.state, follower.state.state) == ("running", "starting")
    assert not first.has_ended_a_trigger()

    run.batches = 1
    eventually(lambda: follower.state.state == "running")

    end(first, follower)


@pytest.mark.parametrize(("error", "now_s"), [(RuntimeError("broker"), 0.0), (None, 121.0)])
def test_a_query_starts_if_the_one_before_it_fails_and_in_two_minutes_whatever_it_does(
    error: Exception | None, now_s: float
) -> None:
    first, clock_s = supervised([MadeUpQuery(error)], SLOW), 0.0
    follower = second(first, lambda: clock_s)
    assert error or follower.state.state == "starting"
    clock_s = now_s
    eventually(lambda: follower.state.state == "running")

    end(first, follower)


def test_a_query_that_waits_for_its_turn_stops_at_once() -> None:
    first = supervised([MadeUpQuery()], QUICK)
    follower = second(first)
    end(follower)

    assert follower.state.state == "stopped"
    end(first)
