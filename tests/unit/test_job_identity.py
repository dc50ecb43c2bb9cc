"""The owner of a decision: an id that stays with the checkpoint, and decisions of others that are noticed."""

import json
import logging
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import pytest

from sluice.kafka_io import topic_reader
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import JobIdentity, job_identity
from sluice.streaming.enforce.parsing import parse_event
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import Planner
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import OutputRecord, Source
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime import answers_watch
from sluice.streaming.runtime.answers_watch import ForeignDecisions, TopicGrowth, decisions_watch
from tests.builders import DEFAULTS

OWN = JobIdentity("own", made_at_ms=1_000)


def checkpoint(folder: Path, name: str = "checkpoint") -> Checkpoint:
    return Checkpoint(str(folder / name))


def decided(**marks: Any) -> bytes:
    return json.dumps({"decision_id": "r-0-1", "decided_at_ms": 2_000, **marks}).encode()


def test_a_restart_keeps_the_id_and_another_checkpoint_has_another(tmp_path: Path) -> None:
    made = job_identity(checkpoint(tmp_path))

    assert job_identity(checkpoint(tmp_path)) == made
    assert job_identity(checkpoint(tmp_path, "other")).job_id != made.job_id


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path).sluice.write("job.json", b"{broken")

    with pytest.raises(CheckpointError, match=r"job\.json in .* is damaged"):
        job_identity(checkpoint(tmp_path))


def test_decisions_of_a_job_have_its_id_and_simulated_ones_none() -> None:
    event, source = b'{"api": "Metadata"}', Source("r", 0, 0, 0)
    settings = PipelineSettings.of(DEFAULTS)._replace(job_id="own")

    planner = Planner(Quotas(), settings)
    [record] = planner.plan(parse_event(event, source, settings.limits), source, planner.batch_fields(0))
    (simulated,) = Simulation(Quotas(), DEFAULTS).decide([event])

    assert isinstance(record, OutputRecord)
    assert json.loads(record.value)["job_id"] == "own"
    assert json.loads(simulated.value)["job_id"] is None


def test_decisions_of_other_jobs_are_counted_and_each_job_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    found = ForeignDecisions("decisions", OWN)

    with caplog.at_level(logging.ERROR):
        for value in (decided(job_id="own"), *[decided(job_id="other")] * 3, decided(), decided(job_id=None)):
            found.on_decision(value)

    assert (found.count, found.jobs) == (5, ["other", "unknown"])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "topic decisions has decisions with another job_id, other, than this job's, own",
        "topic decisions has decisions with another job_id, unknown, than this job's, own",
    ]


def test_a_job_on_a_copy_of_the_checkpoint_is_seen_by_answers_of_other_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy has the job_id too. A repeated micro-batch keeps its time; restored ones answer old requests."""
    monkeypatch.setattr(answers_watch, "now_ms", lambda: 3_000)
    found = ForeignDecisions("decisions", OWN)

    def see(offset: int, at_ms: int, topic: str = "t") -> int:
        marks = {"job_id": "own", "decision_id": f"r-0-{offset}", "source_topic_id": topic, "decided_at_ms": at_ms}
        found.on_decision(decided(**marks))
        return found.count

    assert see(1, 2_999) == see(1, 3_000) == see(1, 3_000) == 0, "of the process before, then its own, told twice"
    assert see(1, 3_001, topic="made again") == 0
    assert (see(1, 3_001), see(1, 3_002)) == (1, 2)
    assert {see(number, 3_001) for number in range(2, 10_002)} == {see(1, 3_003)} == {2}, "the newest are kept"
    assert found.jobs == ["a copy of this job's checkpoint"]
    (said,) = [record.getMessage() for record in caplog.records if record.name == "sluice.foreign"]
    assert "a second job runs on a copy of this job's checkpoint" in said
    assert "stop one of them" in said


def test_forged_ids_fill_neither_memory_nor_log_and_what_they_may_mean_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second job is only one of two explanations: whoever may write to the topic can write any id."""
    found = ForeignDecisions("decisions", OWN)

    for job_id in ("x" * 1_000_000, "x" * 1_000_001, *(f"forged-{number}" for number in range(1_000))):
        found.on_decision(decided(job_id=job_id))

    said = [record.getMessage() for record in caplog.records if record.name == "sluice.foreign"]
    assert (found.count, len(found.jobs), len(said)) == (1_002, 10, 10)
    assert found.jobs[0] == "x" * 100, "in memory, in the log, and in what /readyz answers"
    assert all("a second job on this topic" in line and "somebody else who writes there" in line for line in said)
    assert max(map(len, said)) < 1_000


@pytest.mark.parametrize(
    "value",
    [
        decided(job_id="before", decided_at_ms=1_000),  # before the checkpoint: of the job before
        *(None, b"", b"[]", b"\xff", b'{"decided_at_ms": "soon"}', b'{"x": ' + b"[" * 100_000),
    ],
    ids=range(7),
)
def test_what_is_no_decision_or_older_than_the_checkpoint_is_nobodys(value: bytes | None) -> None:
    found = ForeignDecisions("decisions", OWN)

    found.on_decision(value)

    assert (found.count, found.jobs) == (0, [])


def test_a_broker_that_is_away_is_said_once_until_the_error_is_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors, all_met = iter(["away", "away", "away", "refused"]), Event()

    def connect(*_: object, **__: object) -> NoReturn:
        error = next(errors, None)
        if error is None:
            all_met.set()
        raise OSError(error or "refused")

    monkeypatch.setattr(answers_watch, "_RETRY_S", 0.001)
    monkeypatch.setattr(topic_reader, "connect", connect)
    watch = decisions_watch("decisions", {}, [])
    watch.start()
    assert all_met.wait(120)
    watch.stop()

    said = [record.getMessage() for record in caplog.records if record.name == "sluice.decisions"]
    assert said == [
        "can't read the newest decisions: away; trying again",
        "can't read the newest decisions: refused; trying again",
    ]


def test_dead_letters_are_counted_from_the_first_look_on_also_over_a_topic_that_is_made_again() -> None:
    growth = TopicGrowth()

    assert [growth.since_last(ends) for ends in ({0: 40}, {0: 42, 1: 3}, {0: 42, 1: 3}, {0: 1, 1: 0})] == [0, 5, 0, 1]
