"""Operators' holds are no condition of the job's start: nobody is let go because the table can't be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import start_checks
from sluice.cli.errors import CheckWarningError
from sluice.configs.settings import Properties, Settings
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import OPERATOR
from sluice_reading.holds_table import HoldsTable
from sluice_toolbox import holds_watch
from sluice_toolbox.holds_watch import HoldsWatch
from tests.builders import changed, hold_of
from tests.input_faults import OF_TABLES, empty_commit
from tests.side_inputs import Input, Quotas, Started, assert_goes_on, refusing, settings_in

HOUR_MS = 3_600_000


class StartedWithHolds(Started):
    """A job whose table of holds is polled by the test."""

    def __init__(
        self,
        settings: Settings,
        published: Overrides | None,
        monkeypatch: pytest.MonkeyPatch,
        *,
        has_kafka: bool = True,
    ) -> None:
        made = list[HoldsWatch]()

        def watch(*arguments: Any) -> HoldsWatch:
            made.append(HoldsWatch(*arguments))
            return made[-1]

        monkeypatch.setattr(holds_watch, "HoldsWatch", watch)
        super().__init__(settings, published, monkeypatch, has_kafka=has_kafka)
        (self.holds,) = made
        self.holds.poll()


class Holds(Input):
    log = "sluice.holds"

    @property
    def place(self) -> Path:
        return Path(self.settings.delta.quotas + "-holds")

    def change(self, number: int) -> None:
        HoldsTable(self.settings.delta.quotas).append(hold_of(Tags(client_id=f"app-{number}"), now_ms(), HOUR_MS))

    def poll(self, job: Started) -> None:
        assert isinstance(job, StartedWithHolds)
        job.holds.poll()

    def in_force(self, job: Started) -> Any:
        job.job.overrides.decide(now_ms())
        return sorted(each.entity.client_id or "" for each in overrides(job) if each.entity)

    def expected(self, number: int) -> Any:
        return [f"app-{each}" for each in range(1, number + 1)]


def overrides(job: Started) -> list[Override]:
    """The overrides of the operator's holds now."""
    said = job.job.overrides.said.get("operator")
    return said.overrides if said else []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = settings_in(tmp_path)
    Holds(made).change(1)
    return made


@pytest.mark.parametrize("fault", OF_TABLES)
def test_a_job_that_starts_and_one_that_runs_go_on_with_the_holds_that_were_in_force(
    settings: Settings,
    tmp_path: Path,
    fault: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start(published: Overrides | None) -> Started:
        return StartedWithHolds(settings, published, monkeypatch)

    assert_goes_on(settings, tmp_path / "aside", Holds, fault, start, caplog)


def test_a_job_starts_though_s3_refuses_its_tables(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy on `quotas/*` covers no `quotas-holds`."""
    before = StartedWithHolds(settings, None, monkeypatch)
    with refusing() as port:
        store = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-west-1"}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        folders: dict[str, Any] = {"quotas": "s3://sluice/quotas", "storage_options": Properties(store | keys)}
        assert Holds(settings).in_force(before) == ["app-1"]
        refused = changed(settings, "delta", **folders)
        job = StartedWithHolds(refused, before.job.overrides.said.get(OPERATOR), monkeypatch)
        job.holds.poll()

        assert Quotas(settings).in_force(job) == [1]
        assert Holds(settings).in_force(job) == ["app-1"]
        assert {*job.health.state(ok=True)["inputs"]} == {"quotas", "holds"}
        assert [each.name for each in caplog.records if "403" in each.message] == ["sluice.quotas", "sluice.holds"]


def test_nobody_is_let_go_while_neither_the_table_nor_kafka_says_who_is_held(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways go on with what they were told; a word of nothing would let all go."""
    empty_commit(Holds(settings).place)

    job = StartedWithHolds(settings, None, monkeypatch, has_kafka=False)
    job.job.overrides.decide(now_ms())

    assert "operator" not in job.job.overrides.said
    assert "is empty" in (job.reason or "")


def test_the_start_warns_of_parts_of_the_job_that_no_extra_has(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, names = changed(settings, "health", port=9464), {"holds", "maintenance", "troubles"}
    assert not names & dict(start_checks.start_checks(settings)).keys()
    monkeypatch.setattr(start_checks, "entry_points", lambda **_: [])

    checks = dict(start_checks.start_checks(settings))
    for name in names:
        with pytest.raises(CheckWarningError, match=r"; pip install 'sluice-kafka\[toolbox\]'"):
            checks[name]()
