"""The largest record of the job's answers: what topics take, and less after each one that was too large."""

from dataclasses import replace

import pytest
from kafka.errors import KafkaError

from sluice.configs.settings import Properties
from sluice.state.store.pages import Evicted
from sluice.streaming.enforce import record_bound
from sluice.streaming.enforce.record_bound import LEAST_BYTES, RecordBound
from sluice.streaming.enforce.tracked_entities import EntitiesReport, NewestByPage, Tracked
from sluice.streaming.queries.reasons import Cause, reason_of
from tests.builders import DEFAULTS

MIB = 1024 * 1024


def taking(monkeypatch: pytest.MonkeyPatch, *found: int | Exception) -> None:
    """Let the topics take so much, one time after the other."""
    answers = iter(found)

    def ask(*_: object) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(record_bound, "max_record_bytes", ask)


def test_the_bound_is_what_the_topics_take_at_each_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taking(monkeypatch, 8 * MIB, MIB, KafkaError(), 8 * MIB)
    bound = RecordBound(DEFAULTS)

    assert [bound.poll(False) for _ in range(4)] == [8 * MIB, MIB, MIB, 8 * MIB]
    assert sum("answers are bounded to 1048576 bytes" in line for line in caplog.messages) == 1


def test_a_login_that_may_not_see_the_bound_finds_it_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start fails for each, so that it must be found before `restart.max_failures` is reached."""
    taking(monkeypatch, *[8 * MIB] * 20)
    bound = RecordBound(DEFAULTS)

    found = [bound.poll(each > 0) for each in range(8)]

    assert found == [8 * MIB >> each for each in range(8)]
    assert bound.poll(False) == found[-1]
    assert [bound.poll(True) for _ in range(10)][-1] == LEAST_BYTES


def test_a_producers_own_bounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, 8 * MIB)
    kafka = Properties(DEFAULTS.kafka | {"max.request.size": "2000000", "buffer.memory": "1000000"})

    assert RecordBound(replace(DEFAULTS, kafka=kafka)).poll(False) == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "The message is 9000000 bytes when serialized which is larger than 8388608, which is the value of the"
        " max.request.size configuration.",
        "The request included a message larger than the max message size the server will accept.",
    ],
)
def test_the_end_of_a_query_by_a_record_that_is_too_large_is_a_cause(text: str) -> None:
    report = f"Job aborted.\nCaused by: org.apache.kafka.common.errors.RecordTooLargeException: {text}"

    reason = reason_of(RuntimeError(report), "enforce")

    assert reason.cause is Cause.TOO_LARGE
    assert not reason.cause.is_lasting
    assert "the next start makes smaller ones" in reason.text


def test_dropped_records_add_up_over_tasks_and_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[tuple[int, Evicted, int]] = []
    report = EntitiesReport(9, lambda *numbers: reported.append(numbers))
    tracked = Tracked({})
    for each in (Tracked({1: 5}, dropped=2), Tracked({2: 1}), Tracked({1: 6}, dropped=1)):
        tracked = NewestByPage().addInPlace(tracked, each)
        report.report(tracked)

    assert [numbers[2] for numbers in reported] == [2, 2, 3]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
