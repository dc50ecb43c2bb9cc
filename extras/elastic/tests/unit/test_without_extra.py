"""Settings and start of a job without the extra, as in an environment that lacks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli import start_checks
from sluice.cli.errors import CheckWarningError
from sluice.configs import extras
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.runtime import job_parts
from sluice.streaming.runtime.job_parts import JobView, parts_of_extras
from sluice_elastic.settings import ElasticSettings


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No extra is installed."""
    for module in (extras, job_parts, start_checks):
        monkeypatch.setattr(module, "entry_points", lambda **_: [])
    extras.sections.cache_clear()
    yield
    extras.sections.cache_clear()


@pytest.mark.usefixtures("alone")
def test_the_section_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("elastic: {limits: elastic}\n")
    with pytest.raises(InvalidSettingsError, match=r"section elastic is of the extra elastic; pip install"):
        load_settings(file)


@pytest.mark.usefixtures("alone")
def test_nobody_overrides_limits_and_a_floor_of_disks_is_a_warning() -> None:
    settings = load_settings(environment={})
    assert parts_of_extras(JobView(settings, Quotas)).deciders == []
    assert not settings.gives_way
    with pytest.raises(CheckWarningError, match="no producers are throttled"):
        start_checks.check_disk_guard()


@pytest.mark.parametrize(("limits", "names"), [("strict", []), ("elastic", ["elastic"])])
def test_the_job_finds_the_deciders_that_the_settings_ask_for(tmp_path: Path, limits: str, names: list[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"elastic: {{limits: {limits}}}\n")
    settings = load_settings(file, {})

    found = parts_of_extras(JobView(settings, Quotas)).deciders

    assert {each.name for each in found} - {"operator"} == {*names, "disk_guard", "stored_bytes"}
    assert [each.name for each in found if each.reads_heartbeats] == names
    assert settings.gives_way is bool(names) is (settings.section(ElasticSettings).limits == "elastic")
    assert start_checks.check_disk_guard() == "throttles producers while a disk is low"
