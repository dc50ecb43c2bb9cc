"""Summaries of micro-batches, and the status file."""

import json
from pathlib import Path

import pytest

from streaming.runtime.progress import summarize, write_status


def progress(latest: str | None, end: str | None) -> dict[str, object]:
    return {
        "name": "enforce",
        "batchId": 4,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 10,
        "durationMs": {"triggerExecution": 120},
        "sources": [{"latestOffset": latest, "endOffset": end}],
    }


@pytest.mark.parametrize(
    ("latest", "end", "lag"),
    [
        ('{"requests": {"0": 50, "1": 7}}', '{"requests": {"0": 20, "1": 7}}', 30),
        ('{"requests": {"0": 50}}', '{"requests": {}}', 50),
        ("null", '{"requests": {"0": 20}}', 0),  # Spark's report on a batch that is repeated after a crash
        (None, None, 0),
    ],
)
def test_lag_is_what_lies_behind_the_end_of_the_batch(latest: str | None, end: str | None, lag: int) -> None:
    """In events, over all partitions; 0 if Spark doesn't report it."""
    assert summarize(progress(latest, end))["lag"] == lag


def test_a_status_file_is_replaced_whole(tmp_path: Path) -> None:
    """No draft is left in the folder."""
    write_status(tmp_path / "status.json", {"state": "running"})
    write_status(tmp_path / "status.json", {"state": "stopped"})

    assert json.loads((tmp_path / "status.json").read_text()) == {"state": "stopped"}
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def test_a_status_file_is_for_its_owner_alone(tmp_path: Path, usual_umask: None) -> None:  # noqa: ARG001 -- a state
    write_status(tmp_path / "status.json", {"state": "running"})

    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o600
