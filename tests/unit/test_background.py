"""A background thread outlives the errors of its work, and ends as soon as it is told to."""

from threading import Event

from sluice.kafka_io.background import BackgroundThread

LONG_S = 3600.0


def test_an_error_ends_one_call_and_not_the_thread() -> None:
    """Whatever the error is; what is to be told of it is told."""
    errors: list[str] = []
    called_again = Event()

    def work() -> None:
        if errors:
            called_again.set()
        else:
            raise RuntimeError("unforeseen")

    thread = BackgroundThread("test", work, 0.001, lambda error: errors.append(str(error)))
    thread.start()

    assert called_again.wait(10)
    thread.stop(10)
    assert errors == ["unforeseen"]


def test_the_first_call_is_made_at_once_and_a_stop_ends_a_pause() -> None:
    called = Event()
    thread = BackgroundThread("test", called.set, LONG_S)
    thread.start()

    assert called.wait(10)
    thread.stop(10)
    assert not thread.is_alive()


def test_work_that_looks_at_stopped_is_ended_too() -> None:
    begun = Event()

    def work() -> None:
        begun.set()
        thread.stopped.wait()

    thread = BackgroundThread("test", work, LONG_S)
    thread.start()
    assert begun.wait(10)

    thread.stop(10)

    assert not thread.is_alive()


def test_a_thread_that_never_started_can_be_stopped() -> None:
    """As when the job fails between making it and starting it; a later start does no work."""
    called = Event()
    thread = BackgroundThread("test", called.set, LONG_S)

    thread.stop(10)
    thread.start()
    thread.stop(10)

    assert not called.is_set()
