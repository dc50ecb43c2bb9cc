"""The client side of KIP-599, to copy from: the error of a refused operation, and a retry after its throttle time.

@retry_on_quota_violation(deadline_ms=30_000)
def create_topic() -> None: ...        # raises ThrottlingQuotaExceededError when it is refused
"""

import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar

from sluice import SluiceError

THROTTLING_QUOTA_EXCEEDED = 89
"""Kafka's error code."""

DEFAULT_DEADLINE_MS = 60_000
"""Kafka's `default.api.timeout.ms`."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ThrottlingQuotaExceededError(SluiceError):
    """An operation was refused because its quota is exceeded. It can be retried after `throttle_time_ms`."""

    errno = THROTTLING_QUOTA_EXCEEDED
    retriable = True

    def __init__(self, throttle_time_ms: int, message: str = "The throttling quota has been exceeded.") -> None:
        super().__init__(message)
        self.throttle_time_ms = throttle_time_ms


TopicErrors = Mapping[str, Exception | None]
"""Topic -> its error; None is success."""


def monotonic_ms() -> int:
    """The monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def sleep_ms(wait_ms: int) -> None:
    """Sleeps for `wait_ms` milliseconds."""
    time.sleep(wait_ms / 1000)


def retry_on_quota_violation(
    retry: bool = True,
    deadline_ms: int = DEFAULT_DEADLINE_MS,
    clock_ms: Callable[[], int] = monotonic_ms,
    sleep: Callable[[int], None] = sleep_ms,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A decorator that repeats a refused call after its throttle time, until it succeeds (KIP-599, "Automatic Retry").

    With `retry` False the first ThrottlingQuotaExceededError is raised as it is. When `deadline_ms` have passed since
    the first call, the raised error has the remaining wait, max(0, last throttle - elapsed). Other errors are not
    retried.
    """

    def decorate(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(call)
        def with_retry(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            end_ms = clock_ms() + deadline_ms
            while True:
                try:
                    return call(*args, **kwargs)
                except ThrottlingQuotaExceededError as refused:
                    if not retry:
                        raise
                    left = _wait(refused, end_ms, clock_ms, sleep)
                    if left is not None:
                        raise left from refused

        return with_retry

    return decorate


def retry_topics(
    call: Callable[[Collection[str]], TopicErrors],
    topics: Collection[str],
    retry: bool = True,
    deadline_ms: int = DEFAULT_DEADLINE_MS,
    clock_ms: Callable[[], int] = monotonic_ms,
    sleep: Callable[[int], None] = sleep_ms,
) -> dict[str, Exception | None]:
    """The error of each topic of a request that is refused topic by topic. Only refused topics are retried.

    After `deadline_ms` the topics still refused have ThrottlingQuotaExceededError with the remaining wait.
    """
    end_ms = clock_ms() + deadline_ms
    results = dict(call(topics))
    while retry and (refused := _refused(results)):
        longest = max(refused.values(), key=lambda error: error.throttle_time_ms)
        left = _wait(longest, end_ms, clock_ms, sleep)
        if left is not None:
            return results | dict.fromkeys(refused, left)
        results |= call(refused.keys())
    return results


def _refused(results: TopicErrors) -> dict[str, ThrottlingQuotaExceededError]:
    return {topic: error for topic, error in results.items() if isinstance(error, ThrottlingQuotaExceededError)}


def _wait(
    refused: ThrottlingQuotaExceededError, end_ms: int, clock_ms: Callable[[], int], sleep: Callable[[int], None]
) -> ThrottlingQuotaExceededError | None:
    """Sleeps the throttle time, at most until `end_ms`; then returns the error with the remaining wait."""
    since_ms = clock_ms()
    sleep(max(0, min(refused.throttle_time_ms, end_ms - since_ms)))
    now_ms = clock_ms()
    if now_ms < end_ms:
        return None
    return ThrottlingQuotaExceededError(max(0, refused.throttle_time_ms - (now_ms - since_ms)), str(refused))
