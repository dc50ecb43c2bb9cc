"""A background service outlives the errors of its work, and ends as soon as it is told to."""

from collections.abc import Iterator
from threading import Event

import pytest

from sluice.process.background import BackgroundService

LONG_S = 3600.0


def test_an_error_ends_one_attempt_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The error may be of any class; the log has it once, with its stack unless it is one that is to be expected."""
    errors = iter([OSError("no broker"), OSError("no broker"), RuntimeError("unforeseen"), SystemExit(1)])
    done = Event()

    def work() -> None:
        if (error := next(errors, None)) is not None:
            raise error
        done.set()

    service = BackgroundService("test", work, 0.001, failure="can't look")
    service.start()

    assert done.wait(120)
    service.stop(10)
    said = [(record.getMessage(), bool(record.exc_info)) for record in caplog.records]
    assert said == [
        ("can't look: no broker; trying again", False),
        ("can't look: unforeseen; trying again", True),
        ("can't look: 1; trying again", True),
    ]
    assert service.crashes == 2
    assert service.last_error.line is None


def test_a_generator_keeps_what_it_has_opened_between_its_steps_and_closes_it_after_an_error_and_at_the_end() -> None:
    """An attempt after an error begins anew."""
    events, done = list[str](), Event()

    def work() -> Iterator[float]:
        events.append("open")
        try:
            yield 0.0
            events.append("look")
            if events.count("open") == 1:
                raise OSError("gone")
            done.set()
            yield LONG_S
        finally:
            events.append("close")

    with BackgroundService("test", work, 0.001):
        assert done.wait(120)

    assert events == ["open", "look", "close"] * 2


@pytest.mark.parametrize("waits_for_the_end", [False, True])
def test_the_first_call_is_made_at_once_and_a_stop_ends_a_pause_or_work_that_looks_at_it(
    waits_for_the_end: bool,
) -> None:
    begun = Event()

    def work() -> None:
        begun.set()
        if waits_for_the_end:
            service.stopped.wait()

    service = BackgroundService("test", work, LONG_S)
    service.start()
    assert begun.wait(120)

    service.stop(10)

    assert not service.is_alive()


def test_a_thread_that_never_started_can_be_stopped() -> None:
    """As when the job fails between making it and starting it; a later start does no work."""
    called = Event()
    service = BackgroundService("test", called.set, LONG_S)

    service.stop(10)
    service.start()
    service.stop(10)

    assert not called.is_set()
