"""The work of one task in the audit query's pass: few records in memory, files, and a report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sluice.sinks.tables.decisions import decision_content, decision_rows, decisions_table
from sluice.sinks.tables.delta_files import DayFiles
from sluice.sinks.tables.unreadable import unreadable_table
from sluice.state.decisions.leader_epochs import LeaderEpoch
from sluice.streaming.audit.worker_pass import Exclusions, Feed, TaskReport, TaskWork, run_task
from tests.audit_records import BOUNDS, REQUESTS, as_records, decision, member, text
from tests.audit_tables import records
from tests.builders import DEFAULTS, Json

TOPIC = DEFAULTS.topics.decisions


def task(
    folder: Path, decided: Sequence[Json], headers: Sequence[bytes | None] = (), read: Any = decision_rows
) -> TaskReport:
    """The report of one task on decisions with these epochs, each of which comes in a batch of its own."""
    return reported(folder, records(as_records([*decided]), epochs=headers).to_batches(max_chunksize=1), read)


def reported(folder: Path, batches: Sequence[pa.RecordBatch], read: Any = decision_rows) -> TaskReport:
    """The report of one task on these batches of records."""
    for name in ("decisions", "unreadable"):
        (folder / name).mkdir()
    feed = Feed(TOPIC, decisions_table(str(folder / "decisions")), read, decision_content, of_decisions=True)
    unreadable = unreadable_table(str(folder / "unreadable"))
    work = TaskWork([feed], unreadable, {}, REQUESTS, BOUNDS, window_s=60, exclusions=Exclusions())
    (answer,) = run_task(iter(batches), work)
    return msgspec.msgpack.decode(answer["report"][0].as_py(), type=TaskReport)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"charges":['])
@pytest.mark.parametrize("field", ["decision_id", "charges", "amounts", "of_a_later_release"])
def test_a_deeply_nested_decision_is_unreadable_in_passing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, opening: str
) -> None:
    """It alone is read a second time, which is what takes time."""
    read_again: list[str] = []
    loads = json.loads

    def counted(text: str) -> Any:
        read_again.append(text)
        return loads(text)

    closing = "".join({"[": "]", "{": "}"}.get(sign, "") for sign in reversed(opening))
    nested = member(decision(1), field, (opening * 20_000 + "1" + closing * 20_000).encode())
    monkeypatch.setattr("sluice.sinks.tables.json_records.json.loads", counted)
    values = [*(text(decision(offset)) for offset in range(2, 302)), nested]

    rows, unreadable = judged(tmp_path, values)

    assert (rows, unreadable) == (300, ["is not a JSON object with the fields of a decision"])
    assert len(read_again) == 1


def judged(folder: Path, values: Sequence[bytes]) -> tuple[int, list[str]]:
    """The number of rows that a task writes of these decisions, and the reasons of those that are unreadable."""
    report = reported(folder, records([(TOPIC, value) for value in values]).to_batches())
    (answers,) = report.answers.values()
    good = len(values) - pa.ipc.open_stream(answers).read_all()["digest"].null_count
    return good, [reason for _, _, reason, count in report.faults for _ in range(count)]


def parquet_files(folder: Path) -> int:
    return len(list(folder.glob("*/date=*/*.parquet")))


@pytest.mark.parametrize(
    ("bound", "value", "padding", "chunks"),
    [("_CHUNK_ROWS", 7, 0, [7, 7, 7, 7, 7, 5]), ("_CHUNK_BYTES", 1_000_000, 120_000, [9, 9, 9, 9, 4])],
    ids=["rows", "bytes"],
)
def test_a_task_takes_its_records_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, padding: int, chunks: list[int]
) -> None:
    """A task has few in memory at once, for forged decisions may be as large as Kafka takes records.

    They go into the same file, and are measured together.
    """
    taken: list[int] = []

    def read_and_count(chunk: pa.Table, *more: Any) -> Any:
        taken.append(len(chunk))
        return decision_rows(chunk, *more)

    monkeypatch.setattr(f"sluice.streaming.audit.worker_pass.{bound}", value)

    report = task(tmp_path, [decision(offset) | {"new": "x" * padding} for offset in range(40)], read=read_and_count)

    assert taken == chunks
    assert [len(files) for files in report.files.values()] == [1]
    assert parquet_files(tmp_path) == 1
    assert report.measures is not None
    assert pa.ipc.open_stream(report.measures).read_all()["count"].to_pylist() == [40]
    assert len(pa.ipc.open_stream(report.answers[TOPIC]).read_all()) == 40


def test_a_header_that_is_no_epoch_is_kept_nowhere(tmp_path: Path) -> None:
    """Headers can be forged too: as long as records, and each different."""
    job = [LeaderEpoch("job", number).header() for number in (1, 2)]
    headers = [b"x" * 1_000, job[0], b"y" * 1_000, job[1], job[1], None]

    report = task(tmp_path, [decision(offset) for offset in range(6)], headers)

    assert sorted(report.epochs) == [(TOPIC, 0, job[0], 1, 1), (TOPIC, 0, job[1], 3, 4)]


def test_a_task_that_cannot_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-batch fails, and is repeated."""

    class FullDisk(DayFiles):
        def write(self, rows: pa.Table) -> None:
            super().write(rows)
            raise OSError("no space left")

    monkeypatch.setattr("sluice.streaming.audit.worker_pass.DayFiles", FullDisk)

    with pytest.raises(OSError, match="no space left"):
        task(tmp_path, [decision(1)])

    assert parquet_files(tmp_path) == 0
