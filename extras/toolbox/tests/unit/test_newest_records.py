"""Requests that wait, and for how long, by any clocks of job, brokers and gateways."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import Offsets
from sluice.state.troubles import HOUR_MS, Facts, Flow, JobSeen, Unwritten, is_stale, troubles_of
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice_reading import newest_records
from sluice_reading.troubles import is_doubtful
from sluice_toolbox import unwritten
from sluice_toolbox.unwritten import UnwrittenAnswers
from tests.builders import DEFAULTS, changed, decision
from tests.gateway_loop import NOBODY, NOW_MS

RECORDS: dict[str, list[tuple[int, bytes]]] = {}


class Topic:  # of one partition, instead of its reader
    def __init__(self, _: Mapping[str, str], name: str, **__: Any) -> None:
        self._records, self._read = RECORDS[name], 0

    def partitions(self) -> set[int]:
        return {0}

    def topic_id(self) -> str:
        return "id"

    def offsets(self) -> dict[int, Offsets]:
        return {0: Offsets(0, len(self._records))}

    def skip_to_last(self, counts: Mapping[int, int]) -> None:
        self._read = max(self._read, len(self._records) - counts[0])

    def read_to_end(self) -> Iterator[tuple[int, FetchedRecord]]:
        for at_ms, value in self._records[self._read :]:
            yield 0, FetchedRecord(0, None, value, timestamp_ms=at_ms)
        self._read = len(self._records)


class Watched:  # topics, a viewer of them, and its clock; those of job and gateways are so much ahead
    def __init__(self, job_ahead_ms: int, gateways_ahead_ms: int) -> None:
        RECORDS.update({name: [] for name in "rdl"})
        self.ahead_ms, self.gateways_ahead_ms, self.now_ms = job_ahead_ms, gateways_ahead_ms, NOW_MS
        self.look_anew()

    def look_anew(self) -> None:
        topics = replace(DEFAULTS.topics, requests="r", decisions="d", dead_letters="l")
        self.newest = newest_records.NewestRecords(NOBODY, topics, lambda: self.now_ms / 1000)

    def decide(self, decision_id: str, topic_id: str = "id") -> None:
        made = decision(decision_id=decision_id, source_topic_id=topic_id)
        RECORDS["d"].append((self.now_ms + self.ahead_ms, msgspec.json.encode(made)))

    def second(self, *, decided: bool, asked: int = 1) -> Flow:
        """All requests so far may be decided, others come, and the viewer looks."""
        self.now_ms += 1_000
        if decided:
            self.decide(f"r-0-{len(RECORDS['r']) - 1}")
        RECORDS["r"] += [(self.now_ms + self.gateways_ahead_ms, b"{}")] * asked
        flow = self.newest.flow()
        assert flow is not None
        return flow


@pytest.fixture(params=[(job, of) for job in (-HOUR_MS, 0, HOUR_MS) for of in (-HOUR_MS, 0, HOUR_MS)], ids=str)
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(newest_records, "TopicReader", Topic)
    watched = Watched(*request.param)
    watched.second(decided=False)
    return watched


def test_a_job_that_dies_shows_after_15_s_and_one_that_decides_or_has_nothing_to_never(watched: Watched) -> None:
    lived = [(watched.second(decided=True), watched.now_ms) for _ in range(40)]
    died = [(watched.second(decided=False), watched.now_ms) for _ in range(16)]

    assert [is_stale(*each) for each in lived + died] == [False] * 55 + [True]
    elsewhere = [bool(troubles_of(Facts(job=JobSeen(False, False), flow=flow), at_ms)) for flow, at_ms in lived + died]
    assert elsewhere[1:] == [False] * 44 + [True] * 11
    assert (lived[-1][0].waiting, died[-1][0].waiting) == (1, 17)
    (away,) = troubles_of(Facts(job=JobSeen(None, answers=False), flow=died[-1][0]), watched.now_ms)
    assert (away.name, away.since_ms) == ("job_away", watched.now_ms - 16_000)

    watched.second(decided=True, asked=0)
    quiet = [watched.second(decided=False, asked=0) for _ in range(100)]
    assert {(flow.waiting, is_stale(flow, watched.now_ms)) for flow in quiet} == {(0, False)}
    assert not is_stale(watched.second(decided=False), watched.now_ms)


def test_who_begins_to_look_when_the_job_is_dead_knows_it_by_then_too(watched: Watched) -> None:
    watched.second(decided=True)
    watched.look_anew()
    flows = [(watched.second(decided=False), watched.now_ms) for _ in range(17)]
    is_old = watched.ahead_ms < min(0, watched.gateways_ahead_ms)  # by the times of the records alone

    found = [bool(troubles_of(Facts(job=JobSeen(None, answers=False), flow=flow), at_ms)) for flow, at_ms in flows]
    assert found[:15] + found[16:] == [is_old] * 15 + [True]
    assert [is_doubtful(*flows[each]) for each in (0, -1)] == [is_old or watched.ahead_ms > 0, False]
    assert flows[-1][0].waiting == 18


def test_answers_to_requests_that_are_not_there_hide_no_dead_job(watched: Watched) -> None:
    for name, topic_id in (("r-0-0", "another"), ("other-0-0", "id"), ("r-0-999999", "id"), ("r-7-0", "id")):
        watched.decide(name, topic_id)
    assert watched.second(decided=False, asked=3).waiting == 4


def commit(checkpoint: Path, batch: int, decisions: int, letters: int) -> None:
    """Write the files that Spark leaves of a micro-batch of the audit query, by a clock that is an hour off."""
    files, offsets = Checkpoint(str(checkpoint)).spark, json.dumps({"d": {"0": decisions}, "l": {"0": letters}})
    files.write("metadata", b'{"id": "some"}')
    files.write(f"offsets/{batch}", f'v1\n{{"batchTimestampMs": {NOW_MS - HOUR_MS}}}\n{offsets}'.encode())
    files.write(f"commits/{batch}", b"v1\n{}")


@pytest.fixture
def audited(watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], UnwrittenAnswers]:
    """Makes what looks for answers that audit hasn't written, by its checkpoint in `tmp_path`."""
    monkeypatch.setattr(unwritten, "TopicReader", lambda *place: nullcontext(Topic(*place)))
    settings = changed(DEFAULTS, "audit", checkpoint=str(tmp_path), trigger_s=10)
    settings = changed(settings, "topics", requests="r", decisions="d", dead_letters="l")
    return lambda: UnwrittenAnswers(settings, lambda: watched.now_ms / 1000)


def test_a_new_job_whose_first_micro_batch_of_audit_takes_long_is_well_and_one_without_any_is_not(
    watched: Watched, tmp_path: Path, audited: Callable[[], UnwrittenAnswers]
) -> None:
    """A first micro-batch on a busy machine took 100 s, the second one 40: audit_behind was raised meanwhile."""

    def looks(answers: UnwrittenAnswers, seconds: int) -> list[int]:
        found = []
        for _ in range(seconds):
            watched.second(decided=True)
            found.append(answers.look(watched.now_ms).number)
        return found

    never, slow = audited(), audited()
    assert looks(never, 132) == [0] * 130 + [1, 2]
    RECORDS["d"].clear()
    assert looks(slow, 100) == [0] * 100
    commit(tmp_path, 0, decisions=5, letters=0)
    assert looks(slow, 40) == [0] * 40
    commit(tmp_path, 1, decisions=100, letters=0)
    assert looks(slow, 31) == [0] * 30 + [1], "the one that came after the first commit is due after 70 s"


def test_answers_that_audit_does_not_write_show_after_70_s_and_those_that_it_writes_never(
    watched: Watched, tmp_path: Path, audited: Callable[[], UnwrittenAnswers]
) -> None:
    answers = audited()

    def look() -> Unwritten:
        watched.second(decided=True)
        return answers.look(watched.now_ms)

    RECORDS["l"] += [(watched.now_ms, b"{}")] * 30
    for batch in range(100):
        assert look().number == 0
        commit(tmp_path, batch, decisions=batch + 1, letters=30)
    stuck = [look() for _ in range(73)]

    assert [each.number for each in stuck] == [0] * 70 + [1, 2, 3]
    assert stuck[-1].since_ms == watched.now_ms - 72_000
    assert len(answers.looks) <= 72
    commit(tmp_path, 100, decisions=104, letters=30)
    assert look() == Unwritten(0, watched.now_ms)
