"""No side input is a condition of the job's start: each of them, with all that can befall it."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from sluice.cli.errors import CheckError, CheckWarningError
from sluice.cli.start_checks import check_capacities, check_folders
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Properties, Settings
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.entity import Tags
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.overrides.watch import OverridesWatch
from tests.builders import changed
from tests.input_faults import OF_FILES, OF_TABLES, a_file, cut_commit, empty, gone, no_log, other_columns
from tests.side_inputs import Capacities, Input, Quotas, Started, assert_goes_on, refusing, settings_in
from tests.waiting import eventually

CASES = [*((Quotas, fault) for fault in OF_TABLES), *((Capacities, fault) for fault in OF_FILES)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.mark.parametrize(("kind", "fault"), CASES, ids=[f"{k.__name__}-{f.__name__}" for k, f in CASES])
def test_a_job_that_starts_and_one_that_runs_go_on_with_the_last_that_was_in_force(
    settings: Settings,
    tmp_path: Path,
    kind: type[Input],
    fault: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = partial(Started, settings, monkeypatch=monkeypatch)
    assert_goes_on(settings, tmp_path / "aside", kind, fault, start, caplog)


def test_the_checks_before_a_start_warn_of_a_table_or_file_of_a_job_that_has_run(settings: Settings) -> None:
    """At the first start each is a wrong setting."""
    a_file(Quotas(settings).place)
    empty(Capacities(settings).place)
    checks = (check_folders, check_capacities)
    for check in checks:
        with pytest.raises((CheckError, InvalidSettingsError)):
            check(settings)
    for name in ("sluice.json", "capacity.json"):
        Checkpoint(settings.enforce.checkpoint).sluice.write(name, b"{}")
    for check in checks:
        with pytest.raises(CheckWarningError):
            check(settings)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_starts_though_s3_refuses_its_tables(
    settings: Settings, is_known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At a first start no quotas are known, so it is refused."""
    before = Started(settings, None, monkeypatch) if is_known else None
    with refusing() as port:
        store = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-west-1"}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        folders: dict[str, Any] = {"quotas": "s3://sluice/quotas", "storage_options": Properties(store | keys)}
        refused = changed(settings, "delta", **folders)
        if before is None:
            with pytest.raises(QuotasTableError, match="403 Forbidden"):
                Started(refused, None, monkeypatch)
            return
        job = Started(refused, None, monkeypatch)

        assert Quotas(settings).in_force(job) == [1]
        assert {*job.health.state(ok=True)["inputs"]} == {"quotas"}
        assert [each.name for each in caplog.records if "403" in each.message] == ["sluice.quotas"]


def test_a_capacity_file_that_no_start_could_read_is_a_wrong_setting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty(Capacities(settings).place)

    with pytest.raises(InvalidSettingsError, match="is no capacity file"):
        Started(settings, None, monkeypatch).job.capacities.limits()


class Held(Decider):
    """Stops whom a test names."""

    name = "operator"
    held: Sequence[Override] = ()

    def decide(self, now_ms: int) -> DecidedOverrides:  # noqa: ARG002 - the base's
        return DecidedOverrides(self.held)


def test_of_changes_that_wait_for_a_table_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be away for days."""
    monkeypatch.setattr("sluice.streaming.overrides.watch._MAX_ROWS", 3)
    decider, place = Held(), tmp_path / "overrides"
    place.write_text("no table")
    watch = OverridesWatch([decider], OverridesTable(str(place), {}), 20)
    watch.remember({})
    for number in range(10):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        watch.decide(number)
        watch.write()
    place.unlink()
    watch.write()

    rows = DeltaTable(str(place)).to_pyarrow_table()["overrides"].to_pylist()
    assert sorted(row[0]["client_id"] for row in rows) == ["app-7", "app-8", "app-9"]


def test_nobody_waits_for_a_hold_because_the_store_of_the_history_does_not_answer() -> None:
    decider, table, is_back = Held(), Mock(), Event()
    table.append.side_effect = lambda _: is_back.wait(300)
    watch = OverridesWatch([decider], table, 20)
    watch.remember({})
    for number in range(2):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        watch.decide(number * 20_000)
        if not number:
            (writing := Thread(target=watch.write)).start()
            eventually(lambda: table.append.called)
    assert (watch.said["operator"].overrides, writing.is_alive()) == (decider.held, True)
    is_back.set()
    writing.join()
    watch.write()
    rows = [row for call in table.append.call_args_list for _, row in call.args[0]]
    assert [row.overrides[0].entity.client_id for row in rows] == ["app-0", "app-1"]


def made_anew(place: Path) -> None:
    gone(place)
    OverridesTable(str(place), {}).append([("operator", Overrides(1, 0, 1))])


@pytest.mark.parametrize("fault", [a_file, cut_commit, other_columns, gone, no_log, made_anew])
def test_overrides_hold_though_their_history_cant_be_written(
    tmp_path: Path, fault: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The changes wait, and are rows later."""
    decider, place, reasons = Held(), tmp_path / "overrides", list[str | None]()
    watch = OverridesWatch([decider], OverridesTable(str(place), {}), 20, report=reasons.append)
    watch.remember({})
    for number in range(3):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        if number == 2:
            shutil.copytree(place, tmp_path / "aside")
            fault(place)
        for second in (0, 20, 40):
            watch.decide((number * 60 + second) * 1000)
            watch.write()

    assert watch.said["operator"].overrides == decider.held
    assert len([each for each in caplog.records if "can't be written" in each.message]) == 1
    assert reasons[0] is None
    assert reasons[-1] is not None
    if fault in (gone, no_log, made_anew):
        assert "somebody has moved or removed its folder" in reasons[-1]
    if place.exists():
        gone(place)
    (tmp_path / "aside").rename(place)
    watch.write()
    assert DeltaTable(str(place)).count() == 3
    assert reasons[-1] is None
