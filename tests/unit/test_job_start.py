"""The start of a job before Spark: it says at once what it waits for, and answers probes meanwhile."""

import dataclasses
import json
import logging
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sluice.configs.settings import HealthSettings, Properties, Settings, load_settings
from sluice.jvm.driver import DriverJava
from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.topics import ensure_topics
from sluice.state.store.pages import Evicted
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice.streaming.enforce.tracked_entities import EntitiesReport, Tracked
from sluice.streaming.errors import CheckpointError
from sluice.streaming.job import Job
from sluice_proxy.processes import free_ports
from tests.builders import Json
from tests.commands import program
from tests.web import answer_of


@pytest.fixture
def settings(silent_broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 1_000)
    defaults = load_settings(environment={})
    return dataclasses.replace(
        defaults,
        kafka=Properties({"bootstrap.servers": silent_broker}),
        enforce=dataclasses.replace(defaults.enforce, checkpoint=str(tmp_path / "checkpoint")),
        delta=dataclasses.replace(defaults.delta, quotas=str(tmp_path / "quotas")),
        health=HealthSettings(address="127.0.0.1", port=free_ports(1)[0], stalled_after_s=600),
    )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when the test has seen the job wait: until then it waits for its broker again and again."""
    seen = Event()

    def ensure(*arguments: Any) -> list[str]:
        while True:
            try:
                return ensure_topics(*arguments)
            except KafkaUnavailableError:
                if seen.is_set():
                    raise

    monkeypatch.setattr("sluice.streaming.job.ensure_topics", ensure)
    return seen


def answer(settings: Settings, path: str, ended: Future[None]) -> tuple[int, Json]:
    """The answer of the health port, once it is open; the job must not end before."""
    while True:
        try:
            status, text = answer_of(settings.health.port, path)
            return status, json.loads(text)
        except OSError:
            assert not ended.done(), ended


def test_probes_are_answered_while_the_job_waits_for_the_broker(
    settings: Settings, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, seen: Event
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    job = Job(settings)
    ended = pool.submit(job.run)
    try:
        assert answer(settings, "/healthz", ended)[0] == 200
        while (found := answer(settings, "/readyz", ended))[1]["reason"] == "starting":
            pass  # the port is open a moment before the job waits
        status, body = found
    finally:
        seen.set()

    waiting = f"waiting for the broker at {settings.kafka['bootstrap.servers']}"
    assert (status, body["ok"], body["reason"]) == (503, False, waiting)
    assert waiting in caplog.messages
    with pytest.raises(KafkaUnavailableError):
        ended.result()


def test_a_job_that_is_stopped_while_it_waits_for_the_broker_ends_well(
    settings: Settings, pool: ThreadPoolExecutor, tmp_path: Path, seen: Event
) -> None:
    job = Job(settings, tmp_path / "status.json")
    ended = pool.submit(job.run)
    try:
        answer(settings, "/readyz", ended)
        job.request_stop("SIGTERM")
    finally:
        seen.set()

    ended.result()
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"


def test_a_job_that_is_stopped_while_java_starts_does_not_wait_for_it(
    settings: Settings, pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "spark" / "bin" / "spark-submit", "#!/bin/bash\nexec cat\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr("sluice.streaming.job.ensure_topics", lambda *_: [])
    java, status = DriverJava({}, tmp_path), tmp_path / "status.json"
    job = Job(settings, status, java=java)
    ended = pool.submit(job.run)
    while not status.exists() or json.loads(status.read_text()).get("waiting_for") != "session":
        assert not ended.done(), ended
    ended_before = java.process.poll()

    job.request_stop("SIGTERM")

    ended.result()
    assert ended_before is None, "the job waits for the Java that was started for it"
    assert java.process.wait() == -signal.SIGKILL
    assert json.loads(status.read_text())["state"] == "stopped"


def test_a_second_job_learns_of_the_first_before_it_waits_or_listens(settings: Settings) -> None:
    """Not of the port, which the first one has too."""
    with locked(Checkpoint(settings.enforce.checkpoint)), pytest.raises(CheckpointError, match="in use by a job"):
        Job(settings).run()


def test_the_log_says_once_that_entities_leave_early(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """And once more, as an error, when those that owe something do."""
    reported: list[tuple[int, Evicted, int]] = []
    report = EntitiesReport(settings.state.max_entities, lambda *numbers: reported.append(numbers))
    evictions = (Evicted(), Evicted(at_rest=1), Evicted(at_rest=2), Evicted(2, owing=1), Evicted(2, owing=2))

    for evicted in evictions:
        report.report(Tracked({}, evicted))

    assert reported == [(0, evicted, 0) for evicted in evictions]
    assert [(record.levelname, "5000000" in record.getMessage()) for record in caplog.records] == [
        ("WARNING", True),
        ("ERROR", True),
    ]
