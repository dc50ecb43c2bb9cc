"""The doctor about holds and limits that can't be read, and about a job that reads on without some of its inputs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cli.errors import CheckWarningError
from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import VERSION_KEY, LimitsView, version_end
from sluice.state.troubles import HOUR_MS
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.runtime.health import JobHealth
from sluice_reading.holds_table import HoldsTable
from sluice_toolbox import checks
from tests.builders import DEFAULTS, changed, hold_of
from tests.input_faults import OF_TABLES, a_folder, gone, no_log
from tests.web import answering


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A job that has run, with one hold."""
    made = changed(
        changed(DEFAULTS, "delta", quotas=str(tmp_path / "quotas")), "enforce", checkpoint=str(tmp_path / "c")
    )
    Checkpoint(made.enforce.checkpoint).sluice.write("sluice.json", b"{}")
    hold(made, "app-1")
    return made


def hold(settings: Settings, client_id: str) -> None:
    HoldsTable(settings.delta.quotas).append(hold_of(Tags(client_id=client_id), now_ms(), HOUR_MS))


@pytest.mark.parametrize("fault", OF_TABLES)
def test_a_table_of_holds_that_cant_be_read_is_named(settings: Settings, fault: Callable[[Path], None]) -> None:
    """A table that is gone is no fault to it: only the running job knows that there was one, and holds who was."""
    fault(Path(settings.delta.quotas + "-holds"))
    if fault in (gone, a_folder, no_log):
        assert checks.check_holds_table(settings).startswith("none, as before the first hold; overrides says who")
    else:
        with pytest.raises(CheckWarningError, match="a job goes on with the holds that it read last"):
            checks.check_holds_table(settings)


def test_more_holds_than_the_job_can_follow_are_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_HOLDS", 2)
    hold(settings, "app-2")
    assert checks.check_holds_table(settings) == "2 in force"
    hold(settings, "app-3")
    with pytest.raises(CheckWarningError, match="of 3 clients that are held only the last 100 are stopped"):
        checks.check_holds_table(settings)


def test_the_running_job_is_asked_what_it_cant_read(settings: Settings) -> None:
    health = JobHealth("enforce", 0)
    health.report_input("holds", "the table is gone, or has no row; move it back")
    body = json.dumps(health.state(ok=False)).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with answering(head + body) as port:
        asked = changed(settings, "health", port=port)
        with pytest.raises(CheckWarningError, match=r"what it read last of holds: .* is gone, or has no row;"):
            checks.check_job(asked)


@pytest.mark.parametrize("keys", [[b"a limit"], [b"{\xff", b"x"]])
def test_limits_that_no_gateway_reads_are_a_warning(keys: list[bytes]) -> None:
    view = LimitsView()
    for key in keys:
        view.take_readable(key, b"garbage")
    view.take_readable(VERSION_KEY, b"garbage")
    view.take(VERSION_KEY, version_end(1, 2))

    with pytest.raises(CheckWarningError, match=f"pass over {len(keys)} record.* start the job"):
        checks.limits_verdict(view)
