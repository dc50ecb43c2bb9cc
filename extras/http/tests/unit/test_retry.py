"""The client's side of KIP-599: automatic retry, manual retry and what is left to wait."""

from collections.abc import Callable, Collection

import pytest

from sluice_http.examples.retry import ThrottlingQuotaExceededError, TopicErrors, retry_on_quota_violation, retry_topics


class Time:
    """A clock that sleeping moves, and what was slept."""

    def __init__(self) -> None:
        self.ms = 5_000
        self.slept_ms: list[int] = []

    def __call__(self) -> int:
        return self.ms

    def sleep(self, wait_ms: int) -> None:
        self.slept_ms.append(wait_ms)
        self.ms += wait_ms


def refused_times(times: int, throttle_time_ms: int, time: Time, call_ms: int = 0) -> Callable[[], str]:
    """A call that takes `call_ms` and is refused so many times before it succeeds."""
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        time.ms += call_ms
        if calls <= times:
            raise ThrottlingQuotaExceededError(throttle_time_ms)
        return "done"

    return call


def test_a_refused_call_is_made_again_after_its_throttle_time() -> None:
    time = Time()
    call = retry_on_quota_violation(clock_ms=time, sleep=time.sleep)(refused_times(3, 700, time))

    assert call() == "done"
    assert time.slept_ms == [700, 700, 700]


def test_without_retry_the_caller_gets_the_error() -> None:
    time = Time()
    call = retry_on_quota_violation(retry=False, clock_ms=time, sleep=time.sleep)(refused_times(1, 700, time))

    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        call()

    assert caught.value.throttle_time_ms == 700
    assert caught.value.retriable
    assert caught.value.errno == 89
    assert time.slept_ms == []


@pytest.mark.parametrize(
    ("deadline_ms", "wait_ms", "call_ms", "oversleeps_ms", "left_ms", "ends_ms"),
    [
        # Refused at 0 s and 12 s with 12 s each; the deadline of 20 s comes 8 s into the second wait.
        (20_000, 12_000, 0, 0, 12_000 - 8_000, 20_000),
        (10_000, 500, 0, 60_000, 0, 60_500),  # never negative
        (1_000, 500, 3_000, 0, 500, 3_000),  # a refusal that comes after the deadline is reported in full
    ],
)
def test_after_the_deadline_the_error_says_what_is_left_to_wait(
    deadline_ms: int, wait_ms: int, call_ms: int, oversleeps_ms: int, left_ms: int, ends_ms: int
) -> None:
    time = Time()
    refused = refused_times(9, wait_ms, time, call_ms)

    def sleep(wait_ms: int) -> None:
        time.sleep(wait_ms + oversleeps_ms)

    call = retry_on_quota_violation(deadline_ms=deadline_ms, clock_ms=time, sleep=sleep)(refused)

    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        call()

    assert caught.value.throttle_time_ms == left_ms
    assert time.ms == 5_000 + ends_ms


def test_other_errors_pass_at_once() -> None:
    time = Time()

    @retry_on_quota_violation(clock_ms=time, sleep=time.sleep)
    def call() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        call()
    assert time.slept_ms == []


def test_arguments_and_name_of_the_call_stay() -> None:
    @retry_on_quota_violation()
    def add(one: int, other: int = 1) -> int:
        return one + other

    assert add(2, other=3) == 5
    assert add.__name__ == "add"


def test_only_the_refused_topics_are_asked_for_again() -> None:
    time = Time()
    asked: list[list[str]] = []
    invalid = ValueError("no such topic")

    def create(topics: Collection[str]) -> TopicErrors:
        asked.append(sorted(topics))
        return {
            topic: invalid
            if topic == "bad"
            else (ThrottlingQuotaExceededError(400) if topic in ("b", "c") and len(asked) == 1 else None)
            for topic in topics
        }

    results = retry_topics(create, ["a", "b", "c", "bad"], clock_ms=time, sleep=time.sleep)

    assert asked == [["a", "b", "bad", "c"], ["b", "c"]]
    assert results == {"a": None, "b": None, "c": None, "bad": invalid}
    assert time.slept_ms == [400]


def test_topics_refused_until_the_deadline_carry_what_is_left_to_wait() -> None:
    time = Time()

    def create(topics: Collection[str]) -> TopicErrors:
        return {topic: ThrottlingQuotaExceededError(12_000) if topic == "b" else None for topic in topics}

    results = retry_topics(create, ["a", "b"], deadline_ms=20_000, clock_ms=time, sleep=time.sleep)

    assert results["a"] is None
    left = results["b"]
    assert isinstance(left, ThrottlingQuotaExceededError)
    assert left.throttle_time_ms == 4_000


def test_without_retry_refused_topics_come_back_at_once() -> None:
    time = Time()
    results = retry_topics(
        lambda topics: {topic: ThrottlingQuotaExceededError(300) for topic in topics},
        ["a"],
        retry=False,
        clock_ms=time,
        sleep=time.sleep,
    )

    assert isinstance(results["a"], ThrottlingQuotaExceededError)
    assert time.slept_ms == []
