"""Merging what a micro-batch measured into the quota_metrics table."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from sluice.sinks.tables.delta import Commit
from sluice.sinks.tables.quota_metrics import merge_metrics, quota_metrics_table

DAY = date(2026, 11, 21)
WINDOW_START = datetime(2026, 11, 21, 12, tzinfo=UTC)

SCHEMA = quota_metrics_table("unused").columns


def measured(entities: list[dict[str, object]]) -> pa.Table:
    """One request of one byte by each of these entities."""
    common = {
        "window_start": WINDOW_START,
        "window_s": 60,
        "quota": "producer_byte_rate",
        "metered": True,
        "count": 1,
        "value": 1.0,
        "rate": 0.1,
        "violated_count": 0,
        "throttled_count": 0,
        "last_timestamp_ms": 1,
        "date": DAY,
    }
    return pa.Table.from_pylist([common | entity for entity in entities], schema=SCHEMA)


def counts(path: str) -> dict[tuple[object, ...], int]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return {tuple(row[part] for part in ("user", "client_id", "topic", "partition")): row["count"] for row in rows}


def test_an_entity_without_a_part_is_another_than_one_whose_part_is_empty(tmp_path: Path) -> None:
    """Null is no part of the entity; an empty client-id is a client-id."""
    path = str(tmp_path)
    write_deltalake(path, measured([]))
    entities: list[dict[str, object]] = [
        {"user": "alice"},
        {"user": "alice", "client_id": ""},
        {"client_id": ""},
        {"topic": "orders", "partition": 0},
        {"topic": "orders"},
    ]

    for batch_id in range(3):
        merge_metrics(measured(entities), DeltaTable(path), Commit("audit", batch_id))
    merge_metrics(measured(entities[:1]), DeltaTable(path), Commit("audit", 3))

    assert counts(path) == {
        ("alice", None, None, None): 4,
        ("alice", "", None, None): 3,
        (None, "", None, None): 3,
        (None, None, "orders", 0): 3,
        (None, None, "orders", None): 3,
    }


def test_a_hundred_thousand_counters_are_merged_by_hashing(tmp_path: Path) -> None:
    """Not each with every other: that would be 10 billion comparisons, which end in no reasonable time."""
    path = str(tmp_path)
    everybody = measured([{"user": f"user-{number}"} for number in range(100_000)])
    write_deltalake(path, everybody)

    merge_metrics(everybody, DeltaTable(path), Commit("audit", 1))

    found = DeltaTable(path).to_pyarrow_table(columns=["user", "count"])
    assert set(found["count"].to_pylist()) == {2}
    assert len(found) == len(found["user"].unique()) == 100_000


def test_windows_that_a_batch_has_nothing_of_are_not_read(tmp_path: Path) -> None:
    """Else each batch would take longer than the one before, until the day is over."""
    path = str(tmp_path)
    windows = [{"user": "alice", "window_start": WINDOW_START + timedelta(minutes=minute)} for minute in range(3)]
    for window in windows:
        write_deltalake(path, measured([window]), mode="append")
    first, middle, last = sorted(files(path), key=lambda file: str(file["min.window_start"]))
    for file in (first, last):
        (tmp_path / file["path"]).unlink()

    merge_metrics(measured([windows[1]]), DeltaTable(path), Commit("audit", 1))

    left = {file["path"] for file in files(path)}
    assert {first["path"], last["path"]} < left
    assert middle["path"] not in left


def test_a_batch_that_ends_in_the_next_window_writes_a_file_for_each(tmp_path: Path) -> None:
    """Else the next window is in the file of the one before, and each batch writes all windows of the day again."""
    path = str(tmp_path)
    write_deltalake(path, measured([]))

    for batch_id in range(5):
        merge_metrics(measured([minute(batch_id), minute(batch_id + 1)]), DeltaTable(path), Commit("audit", batch_id))

    assert sorted(windows_of_files(path)) == [1] * 6
    assert counts_by_window(path) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 2, 5: 1}


def test_windows_long_before_the_newest_share_a_file_for_each_hour(tmp_path: Path) -> None:
    """After an outage of a quiet topic a batch may have hundreds of windows, and each merge takes time."""
    path = str(tmp_path)
    write_deltalake(path, measured([]))

    merge_metrics(measured([minute(number) for number in range(200)]), DeltaTable(path), Commit("audit", 0))

    assert sorted(windows_of_files(path)) == [1] * 20 + [60, 60, 60]
    assert set(counts_by_window(path).values()) == {1}


def test_a_batch_that_ended_between_its_windows_is_completed_without_counting_one_twice(tmp_path: Path) -> None:
    path = str(tmp_path)
    write_deltalake(path, measured([]))
    rows = measured([minute(0), minute(1)])
    merge_metrics(rows.slice(0, 1), DeltaTable(path), Commit("audit-older-0", 0))

    for _ in range(2):
        merge_metrics(rows, DeltaTable(path), Commit("audit", 0))

    assert counts_by_window(path) == {0: 1, 1: 1}


def test_a_batch_that_is_merged_is_not_counted_again(tmp_path: Path) -> None:
    path = str(tmp_path)
    rows = measured([minute(0), minute(1)])
    write_deltalake(path, rows, commit_properties=CommitProperties(app_transactions=[Transaction("audit", 7)]))

    merge_metrics(rows, DeltaTable(path), Commit("audit", 7))

    assert counts_by_window(path) == {0: 1, 1: 1}


def test_metrics_of_very_many_counters_are_merged_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated batch adds nothing, in whatever order its rows come."""
    monkeypatch.setattr("sluice.sinks.tables.quota_metrics._MAX_MERGED_ROWS", 4)
    path = str(tmp_path)
    write_deltalake(path, measured([]))
    users: list[dict[str, object]] = [{"user": f"user{number}"} for number in range(10)]

    merge_metrics(measured(users), DeltaTable(path), Commit("audit", 0))
    merge_metrics(measured(users[::-1]), DeltaTable(path), Commit("audit", 0))

    assert counts(path) == {(f"user{number}", None, None, None): 1 for number in range(10)}
    assert len(DeltaTable(path).history()) == 4


def minute(number: int) -> dict[str, object]:
    return {"user": "alice", "window_start": WINDOW_START + timedelta(minutes=number)}


def windows_of_files(path: str) -> list[int]:
    """The number of windows in each of the table's files."""
    rows = [pq.read_table(Path(path, file["path"])) for file in files(path)]
    return [len(set(table["window_start"].to_pylist())) for table in rows]


def counts_by_window(path: str) -> dict[int, int]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert len({row["window_start"] for row in rows}) == len(rows)
    return {(row["window_start"] - WINDOW_START) // timedelta(minutes=1): row["count"] for row in rows}


def files(path: str) -> list[dict[str, Any]]:
    """Path and statistics of each of the table's files."""
    rows: list[dict[str, Any]] = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    return rows
