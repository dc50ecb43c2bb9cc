"""`./scripts/run` without its processes: what it says while it waits, and how it ends."""

import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from rich.console import Console

from scripts.demo import console
from scripts.demo import run as demo
from scripts.demo.broker_view import ClientUse, client_lines, summary_lines
from scripts.demo.console import waiting
from scripts.demo.run import RunOptions
from scripts.testbed.job import SluiceJob
from scripts.testbed.live_counts import Answers
from scripts.testbed.load_generator import LoadGenerator, Sent, publish
from sluice.configs.settings import load_settings
from sluice.streaming.runtime.progress import write_status
from tests.unit.test_live_counts import NOW_MS, dead_letter, decision


def test_it_says_every_few_seconds_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_WAITING_SECONDS", 0.01)
    steps, output = iter(["for the broker", "for Java"]), StringIO()

    with waiting(Console(file=output, width=80), lambda: next(steps, "for the queries")):
        while "queries" not in output.getvalue():
            time.sleep(0.005)

    lines = output.getvalue().splitlines()
    assert lines[:3] == [
        "  0 s: waiting for the broker",
        "  0 s: waiting for Java",
        "  0 s: waiting for the queries",
    ]


def test_a_status_file_that_comes_and_goes_is_read_or_is_empty(tmp_path: Path) -> None:
    """Each start removes that of the run before, while another thread reads it."""
    job = SluiceJob(tmp_path)
    done = Event()

    def come_and_go() -> None:
        while not done.is_set():
            write_status(job.status_file, {})
            job.status_file.unlink()

    writer = Thread(target=come_and_go)
    writer.start()
    try:
        assert all(job.status() == {} for _ in range(5_000))
    finally:
        done.set()
        writer.join()


def a_run(tmp_path: Path, answers: Answers, sent: Sent, output: StringIO, **job: Any) -> Any:
    """A run at the end of its load."""
    settings = load_settings(environment={})
    none = str(tmp_path)
    delta = replace(settings.delta, decisions=none, dead_letters=none, quota_metrics=none, unreadable=none)
    process: Any = Mock(settings=replace(settings, delta=delta), **job)
    run = demo._Demo(RunOptions(), None, process, answers, Event(), Console(file=output, width=120))  # type: ignore[arg-type]
    run._sent = sent
    return run


def ended(tmp_path: Path, answers: Answers, sent: Sent) -> tuple[int, str]:
    """Exit code and summary of a run."""
    output = StringIO()
    return a_run(tmp_path, answers, sent, output)._summary(), output.getvalue()


def test_after_the_load_it_says_what_it_waits_for_and_what_is_not_in_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job here has ended, so nothing comes any more: 3 requests were sent, 2 are answered, none is in Delta."""
    monkeypatch.setattr(demo, "publish", lambda *_, **__: None)
    monkeypatch.setattr(demo, "connect", MagicMock())
    monkeypatch.setattr(demo, "HeldClient", MagicMock())
    answers, output = Answers(), StringIO()
    for offset in range(3):
        answers.sent(0, offset)
    answers.decision(decision(0), NOW_MS)
    answers.dead_letter(dead_letter(1), NOW_MS)
    run = a_run(tmp_path, answers, Sent(events=3), output, alive=False)
    run._stop.set()

    run.run()

    lines = [line for line in output.getvalue().splitlines() if "wait" in line or "Delta yet" in line]
    assert lines == [
        "  0 s: waiting for the decisions of 1 requests",
        "  0 s: waiting for the audit query to write 2 answers to Delta",
        "  0 s: waiting for the job to stop",
        "2 answers are not in Delta yet; the audit query continues with the next start",
    ]


def test_answers_to_others_change_neither_books_nor_exit_code(tmp_path: Path) -> None:
    answers = Answers()
    for offset in range(2):
        answers.sent(0, offset)
    answers.decision(decision(0), NOW_MS)
    answers.dead_letter(dead_letter(1), NOW_MS)
    answers.decision(decision(2), NOW_MS)

    code, summary = ended(tmp_path, answers, Sent(events=2))

    assert code == 0
    assert "2 requests = 1 decisions + 1 dead letters\n" in summary
    assert "besides, 1 answers to the gateways and others" in summary


def test_an_answer_to_another_does_not_stand_in_for_a_missing_one(tmp_path: Path) -> None:
    answers = Answers()
    answers.sent(0, 0)
    answers.decision(decision(5), NOW_MS)

    code, summary = ended(tmp_path, answers, Sent(events=1))

    assert code == 1
    assert "1 requests were not answered in 60 s" in summary


def test_what_could_not_be_published_is_said(tmp_path: Path) -> None:
    code, summary = ended(tmp_path, Answers(), Sent(events=1, failed=1, failure="[no] broker"))

    assert code == 1
    assert "1 requests could not be published: [no] broker" in summary
    assert "not answered" not in summary


def test_the_place_of_each_stored_request_is_told() -> None:
    producer, stored = Mock(), Mock()

    publish(producer, "requests", LoadGenerator(), Event(), count=3, sent=Sent(stored=stored))

    callbacks = [call.args[0] for call in producer.send.return_value.add_callback.call_args_list]
    assert callbacks == [stored] * 3


def test_a_client_on_brokers_is_shown_beside_the_limit_that_is_set_now() -> None:
    """`sluice quotas alter` changes it while the run goes on, or removes it."""
    samples = [(time_ms, 200_000.0) for time_ms in range(0, 30_000, 100)]
    (raised,) = client_lines([ClientUse("app", "producer_byte_rate", 2e6, samples, [])], {}, 30_000)
    (removed,) = client_lines([ClientUse("app", "producer_byte_rate", None, samples, [])], {}, 30_000)

    assert "2 MB/s of 2 MB/s; shares: none yet" in raised
    assert "2 MB/s of no limit;" in removed
    assert "1.00 of its quota" in list(summary_lines([ClientUse("app", "producer_byte_rate", 2e6, samples, [])]))[1]
    assert "without a limit" in list(summary_lines([ClientUse("app", "producer_byte_rate", None, samples, [])]))[1]
