"""The notebook of docs/examples over the tables of a week: each cell runs, and its tables say what was used."""

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from notebooks import run_cells
from recorded import START_MS, event, event_at, write_tables
from sluice.jvm.jars import REPOSITORY
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import Json
from tests.commands import invoke

NOTEBOOK = REPOSITORY / "docs" / "examples" / "week.ipynb"


def test_the_notebook_shows_a_week_by_tenant_and_explains_the_hour_with_most_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=2)
    events = [
        *(event_at(hour + timedelta(seconds=second), "shop-1", "Produce", bytes=1_000_000) for second in range(60)),
        event_at(hour + timedelta(days=1), "etl", "Fetch", client_id="report-7", bytes=5_000_000),
    ]
    quotas = [QuotaEntry(QuotaEntity(user="shop-1"), QuotaKind.PRODUCER_BYTE_RATE, 500_000.0)]
    write_tables(tmp_path, quotas, events, hour)
    (tmp_path / "settings.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_CONFIG", "settings.yaml")

    _, week, by_day, hours, quota, explained = run_cells(NOTEBOOK, capsys)

    assert set(week["tenant"]) == {"shop", "analytics"}
    assert by_day["All"].to_dict() == {"shop": 60.0, "analytics": 5.0, "All": 65.0}
    assert (hours.iloc[0]["user"], pd.Timestamp(hours.iloc[0]["start"])) == ("shop-1", pd.Timestamp(hour))
    assert quota.iloc[0]["quota"] == "producer_byte_rate"
    assert quota.iloc[0]["of_limit"] > 1
    assert "THROTTLE" in explained
    assert "set by seed" in explained


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ({"user": ""}, True),
        ({"user": None}, False),
        ({"user": "it's", "client_id": ""}, True),
        ({"user": "007"}, False),
    ],
)
def test_the_notebook_runs_on_data_of_brokers_which_name_part_of_a_client_and_apply_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: Json, waits: bool
) -> None:
    at = datetime.now(UTC) - timedelta(hours=2)
    held = [{"quota": "producer_byte_rate", "entity": {"client_id": "app"}, "ms": 900}] if waits else []
    at_ms = int(at.timestamp() * 1000) - START_MS
    events = [event(at_ms, bytes=10, throttled_by=held if number == 99 else [], **said) for number in range(100)]
    quotas = [QuotaEntry(QuotaEntity(client_id="app"), QuotaKind.PRODUCER_BYTE_RATE, 500_000.0)]
    write_tables(tmp_path, quotas, events, at)
    (tmp_path / "settings.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_CONFIG", "settings.yaml")
    monkeypatch.setattr(subprocess, "run", _in_this_process)

    *_, hours, quota, explained = run_cells(NOTEBOOK, capsys)

    assert hours.iloc[0]["throttled_ms"] == (900 if waits else 0)
    assert list(quota.get("quota", [])) == ([] if said.get("client_id") == "" else ["producer_byte_rate"])
    assert ("applied inline: 900 ms" in explained) is waits


def _in_this_process(command: Sequence[str | Path], **_: object) -> subprocess.CompletedProcess[str]:
    """The end of a command `sluice`, which takes a second to start as a process."""
    ended = invoke(*command[1:], code=None)
    return subprocess.CompletedProcess(command, ended.code, ended.output, ended.error)
