"""The worker daemon that loads what workers run: what it keeps, collects, says and refuses."""

import gc
import io
import subprocess
import sys
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyspark import worker

from sluice.streaming.errors import ReleaseError
from sluice.streaming.workers.engine_start import NATIVE_LOADED, NATIVE_MISSING, NATIVE_VARIABLE, PYTHON_INSTEAD
from sluice.streaming.workers.release import VARIABLE
from sluice_native.daemon import collect_after_task, keep_memory, load, load_engine, quietly, refuse

TRIMMED_FROM, MAPPED_FROM = -1, -3  # of glibc's malloc.h


@pytest.mark.parametrize("module", ["daemon", "batched_daemon"])
def test_it_says_nothing_and_ends_with_its_standard_input(module: str) -> None:
    command = [sys.executable, "-m", f"sluice_native.{module}", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4), "the port that it listens on"

        _, said = process.communicate(timeout=120)

    assert not said


def test_a_worker_of_another_release_than_the_driver_refuses_before_it_reads_what_it_has_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java learns why: a daemon that ended would be silent."""
    monkeypatch.setenv(VARIABLE, "of another one")
    monkeypatch.setattr(worker, "check_python_version", vars(worker)["check_python_version"])  # as before afterwards
    monkeypatch.setattr(worker, "WorkerInitInfo", Mock(), raising=False)  # which 4.3 reads before
    with pytest.raises(ReleaseError, match="the package of Sluice was replaced under the running job, or ") as found:
        load(lambda: pytest.fail("nothing is prepared"))
    answer = io.BytesIO()

    refuse(found.value)
    with pytest.raises(SystemExit):
        worker.main(io.BytesIO(b"\xff\xff\xff\xf8" + bytes(4)), answer)  # an empty START_OF_INIT_MESSAGE of 4.3

    assert b"sluice.streaming.errors.ReleaseError: the package of Sluice was replaced" in answer.getvalue()


@pytest.mark.parametrize(("of_driver", "lines"), [(None, 0), (NATIVE_MISSING, 0), (NATIVE_LOADED, 1)])
def test_workers_say_that_they_lack_the_engine_only_if_the_driver_has_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], of_driver: str | None, lines: int
) -> None:
    monkeypatch.setattr("sluice_native.daemon.engine_missing", lambda: "no room")
    monkeypatch.delenv(NATIVE_VARIABLE, raising=False)
    if of_driver is not None:
        monkeypatch.setenv(NATIVE_VARIABLE, of_driver)

    load_engine()

    said = f"sluice: native code: {PYTHON_INSTEAD}: no room\n"
    assert capfd.readouterr().err == said * lines


class _Cycle:
    itself: object


def test_what_a_task_leaves_is_collected_and_what_the_worker_keeps_is_not_looked_at() -> None:
    """A worker keeps three objects for each client that it knows."""
    gc.collect()
    generations: list[int] = []
    gc.callbacks.append(lambda _, info: generations.append(info["generation"]))
    left = _Cycle()
    left.itself = left
    reference = weakref.ref(left)
    del left
    try:
        collect_after_task()
    finally:
        gc.callbacks.pop()

    assert generations == [1, 1], "at its begin and end"
    assert reference() is None


def test_what_a_worker_no_longer_keeps_is_collected_within_a_hundred_tasks() -> None:
    """Such as the plans under quotas that are no longer in force."""
    kept = _Cycle()
    kept.itself = kept
    reference = weakref.ref(kept)
    gc.collect()
    del kept
    for _ in range(100):
        collect_after_task()
    assert reference() is not None, "old objects are looked at seldom"

    collect_after_task()
    assert reference() is None


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_worker_that_java_has_left_ends_without_a_traceback(error: OSError) -> None:
    def work(_connection: object, _authenticated: bool) -> int:
        raise error

    assert quietly(work)(None, True) == 1  # type: ignore[arg-type] # no connection is needed


def test_other_errors_of_a_worker_are_seen() -> None:
    def work(_connection: object, _authenticated: bool) -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        quietly(work)(None, True)  # type: ignore[arg-type] # no connection is needed


@pytest.mark.parametrize("most_mapped", [1 << 30, 32 << 20])
def test_blocks_are_mapped_from_the_largest_size_that_this_malloc_takes(
    monkeypatch: pytest.MonkeyPatch, most_mapped: int
) -> None:
    """glibc before 2.35 refuses more than 32 MiB, and would map each block of 128 KiB then."""
    taken: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        is_taken = parameter != MAPPED_FROM or value <= most_mapped
        if is_taken:
            taken[parameter] = value
        return is_taken

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=mallopt))

    keep_memory()

    assert taken == {TRIMMED_FROM: 1 << 30, MAPPED_FROM: most_mapped}
