"""Tables that an account may not read, and those whose files somebody has removed: said as that, with the cure."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from job_tables import TABLES, assert_names_what_a_stranger_may_not_read, recorded, settings_in
from sluice.configs.settings import with_absolute_paths
from sluice.sinks.tables.trouble import missing_rights
from sluice.state.quotas.entity import Tags
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.runtime.recorded import see_tables
from sluice_reading.holds_table import HoldsTable
from tests.accounts import STRANGER, as_account, as_root, give
from tests.builders import DEFAULTS, hold_of
from tests.commands import invoke

READERS = (
    ("quotas", "describe"),
    ("quotas", "history"),
    ("maintain",),
)
"""Commands that read a table."""


@as_root
@pytest.mark.parametrize("command", READERS)
def test_a_table_that_cannot_be_seen_is_not_one_that_is_not_there(command: tuple[str, ...], everybodys: Path) -> None:
    assert_names_what_a_stranger_may_not_read(command, everybodys)


@as_root
def test_a_command_of_root_leaves_the_table_to_its_account(everybodys: Path) -> None:
    """With a umask of 077 its commit was a file that the job's account couldn't read: no quota came into force."""
    recorded(everybodys)
    settings = settings_in(everybodys)
    give(everybodys / "quotas", STRANGER)

    with as_account(0):
        change = ("--user", "bob", "--add-config", "producer_byte_rate=1", "--yes")
        invoke("quotas", "alter", *change, "--config", settings)
        invoke("quotas", "hold", "--user", "bob", "--for", "1h", "--reason", "test", "--config", settings, code=None)

    assert {place.stat().st_uid for name in TABLES for place in everybodys.glob(f"{name}*/**/*")} == {STRANGER}
    with as_account(STRANGER):
        assert "bob" in invoke("quotas", "describe", "--config", settings).output


@as_root
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_command_of_root_gives_away_nothing_that_links_in_a_table_lead_to(
    link: Callable[[Path, Path], None], everybodys: Path
) -> None:
    """The table's account may write what it likes there: a link to /etc/shadow gave it the passwords of all."""
    recorded(everybodys)
    secret = everybodys / "secret"
    secret.touch(mode=0o600)
    give(everybodys / "quotas", STRANGER)
    link(everybodys / "quotas" / "part-0.parquet", secret)
    os.chown(everybodys / "quotas" / "part-0.parquet", STRANGER, STRANGER, follow_symlinks=False)
    os.chown(secret, 0, 0)

    with as_account(0):
        change = ("--user", "bob", "--add-config", "producer_byte_rate=1", "--yes")
        invoke("quotas", "alter", *change, "--config", settings_in(everybodys))

    assert (secret.stat().st_uid, secret.stat().st_mode & 0o777) == (0, 0o600)
    assert (everybodys / "quotas" / "_delta_log" / f"{1:020}.json").stat().st_uid == STRANGER


def test_a_hold_is_written_where_there_is_no_quotas_table_yet(tmp_path: Path) -> None:
    table = HoldsTable(str(tmp_path / "quotas"))

    table.append(hold_of(Tags(user="bob"), 1_000, 60_000))

    assert [each.user for each in table.commands()] == ["bob"]


def test_the_rights_of_a_table_are_looked_at_in_bounded_time_however_many_files_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job asks with each poll of a table that can't be read."""
    log, looked_at = tmp_path / "quotas" / "_delta_log", list[str]()
    log.mkdir(parents=True)
    for number in range(1_000):
        (log / f"{number:020}.json").touch()
    can_access = os.access

    def access(place: Path, right: int, *, effective_ids: bool = False) -> bool:
        looked_at.append(str(place))
        return can_access(place, right, effective_ids=effective_ids)

    monkeypatch.setattr(os, "access", access)

    assert missing_rights(str(tmp_path / "quotas")) is None
    assert str(log / f"{999:020}.json") in looked_at
    assert len(looked_at) < 300


@as_root
def test_a_file_of_another_account_is_named_with_the_cure(everybodys: Path) -> None:
    recorded(everybodys)
    give(everybodys / "quotas", STRANGER)
    commit = everybodys / "quotas" / "_delta_log" / f"{0:020}.json"
    give(commit, 0)
    commit.chmod(0o600)
    settings = settings_in(everybodys)

    with as_account(STRANGER):
        said = invoke("quotas", "describe", "--config", settings, code=1).error_line

    assert (
        f"may not read {commit}, which is of root with mode 600, in a table of {STRANGER}: a command of another" in said
    )
    assert said.endswith(f"give it to the table's: chown -R {STRANGER}:{STRANGER} {everybodys}/quotas")


def test_days_of_a_table_that_only_grows_are_not_deleted_and_the_property_is_named(tmp_path: Path) -> None:
    recorded(tmp_path, 1, 4)
    DeltaTable(str(tmp_path / "decisions")).alter.set_table_properties({"delta.appendOnly": "true"})
    settings = settings_in(tmp_path)

    said = invoke("maintain", "--keep-days", "2", "--config", settings, code=1).error_line
    assert "decisions has delta.appendOnly, which somebody has set: no day of it can be deleted" in said
    assert "try again" not in said
    invoke("maintain", "--keep-days", "9", "--config", settings)  # nothing is to be deleted
    invoke("maintain", "--config", settings)


def test_a_lost_table_is_named_where_its_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for doctor, with the job's own settings: the job knows its tables by their paths from the root."""
    monkeypatch.chdir(tmp_path)
    of_job = with_absolute_paths(DEFAULTS)
    Checkpoint(of_job.audit.checkpoint).sluice.write("tables.json", json.dumps({of_job.delta.decisions: "1"}).encode())

    reasons = see_tables(DEFAULTS)[1]

    assert list(reasons) == ["decisions"]
    assert f"{of_job.delta.decisions} isn't there any more" in str(reasons["decisions"])
