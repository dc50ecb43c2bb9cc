"""Reports of tables that an account may not read, and of days that somebody has removed: said with the cure."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from job_tables import NOW, assert_names_what_a_stranger_may_not_read, recorded, settings_in
from tests.accounts import as_root
from tests.commands import invoke

READERS = (
    ("usage", "--from", "7d"),
    ("slo", "--from", "7d"),
    ("explain", "--client-id", "app"),
    ("advise", "--from", "7d"),
)


@as_root
@pytest.mark.parametrize("command", READERS)
def test_a_table_that_cannot_be_seen_is_not_one_that_is_not_there(command: tuple[str, ...], everybodys: Path) -> None:
    assert_names_what_a_stranger_may_not_read(command, everybodys)


@pytest.mark.parametrize("command", [READERS[0], READERS[3]])
def test_a_day_that_was_removed_by_hand_is_named_with_the_cure(command: tuple[str, ...], tmp_path: Path) -> None:
    recorded(tmp_path, 1, 4)
    day = (NOW - timedelta(4)).date()
    shutil.rmtree(tmp_path / "decisions" / f"date={day}")
    settings = settings_in(tmp_path)

    said = invoke(*command, "--config", settings, code=1).error.splitlines()[-1]

    assert f"files of {day} are in the log of {tmp_path}/decisions but not in its folder" in said
    assert said.endswith("sluice maintain --keep-days 3 takes them, and all that is older, out of the table")
    doctor = invoke("doctor", "--config", settings, code=1).output
    assert f"FAIL  tables: files of {day} are in the log" in doctor
    invoke("maintain", "--keep-days", "3", "--config", settings)
    invoke(*command, "--config", settings)


def test_a_day_that_is_kept_is_repaired(tmp_path: Path) -> None:
    recorded(tmp_path, 0, 1)
    shutil.rmtree(tmp_path / "decisions" / f"date={NOW.date()}")

    said = invoke("maintain", "--config", settings_in(tmp_path), code=None).error.splitlines()
    found = invoke("explain", "--config", settings_in(tmp_path), code=1).error.splitlines()[-1]

    assert found.endswith(f"""DeltaTable('"'"'{tmp_path}/decisions'"'"').repair()'""")
    assert not any("Parquet" in line for line in said)
    DeltaTable(str(tmp_path / "decisions")).repair()
    assert "no rows" in invoke("explain", "--config", settings_in(tmp_path), code=1).error
