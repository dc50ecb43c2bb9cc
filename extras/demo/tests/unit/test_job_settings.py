"""The job that a command is meant for; the answer names it."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.cli import options as found
from sluice.cli.options import job_settings, running_settings
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import HealthSettings
from sluice.jvm.jars import REPOSITORY
from sluice.sinks.tables.quotas import QuotasTable
from sluice_demo.announced import announced_run
from sluice_demo.run import absolute_paths
from sluice_demo.screen import commands_to_try
from tests.builders import changed
from tests.commands import invoke


@pytest.fixture(autouse=True)
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place where running demos are announced: none is, whatever runs on this machine."""
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    monkeypatch.setattr(found, "RUNNING", tmp_path / "running")
    return tmp_path / "running"


def settings_file(folder: Path, topic: str) -> Path:
    """Settings with a requests topic and a quotas table of their own."""
    path = folder / f"{topic}.yaml"
    path.write_text(f"topics: {{requests: {topic}}}\ndelta: {{quotas: '{folder / topic}'}}\n")
    return path


def chosen(config: Path | None = None) -> str:
    return job_settings(config).topics.requests


def test_the_option_comes_before_the_variable_before_the_running_demo_before_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each but the option is said in one line on standard error."""
    option, variable, demo = (settings_file(tmp_path, topic) for topic in ("option", "variable", "demo"))

    assert chosen() == "quota-requests"
    assert "settings: the defaults" in capsys.readouterr().err
    with announced_run("run", demo):
        assert chosen() == "demo"
        assert capsys.readouterr() == ("", f"sluice: settings: {demo} (of the running demo)\n")
        monkeypatch.setenv("SLUICE_CONFIG", str(variable))
        assert chosen() == "variable"
        assert capsys.readouterr() == ("", f"sluice: settings: {variable} (from SLUICE_CONFIG)\n")
        assert chosen(option) == "option"
        assert capsys.readouterr() == ("", "")


def test_of_several_running_demos_one_has_to_be_named(tmp_path: Path) -> None:
    first, second = settings_file(tmp_path, "first"), settings_file(tmp_path, "second")

    with announced_run("run", first):
        with announced_run("run-2", second):
            assert running_settings() == [first, second]
            with pytest.raises(InvalidSettingsError, match=f"2 demos are running; .*: {first}, {second}"):
                chosen()
            assert chosen(second) == "second"
        assert chosen() == "first"  # the end of the second leaves the first alone
    assert chosen() == "quota-requests"


def test_a_demo_that_was_killed_counts_no_more(tmp_path: Path, running: Path) -> None:
    """And the next one may have its name."""
    demo = settings_file(tmp_path, "demo")
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sluice.cli import options\n"
        "from sluice_demo.announced import announced_run\n"
        "options.RUNNING = Path(sys.argv[1])\n"
        "with announced_run('run', Path(sys.argv[2])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, running, demo], check=False, cwd=REPOSITORY)

    assert (running / "run").read_text() == str(demo)
    assert chosen() == "quota-requests"
    with announced_run("run", demo):
        assert chosen() == "demo"


def test_the_announcement_is_its_owners_alone(tmp_path: Path, running: Path) -> None:
    with announced_run("run", settings_file(tmp_path, "demo")):
        assert (running / "run").stat().st_mode & 0o077 == 0


def test_an_alter_beside_a_running_demo_alters_its_quotas(tmp_path: Path) -> None:
    """Standard output stays clean for machines."""
    demo, table = settings_file(tmp_path, "demo"), QuotasTable(str(tmp_path / "demo"))
    table.create([], "seed", datetime(2026, 1, 1, tzinfo=UTC))

    with announced_run("run", demo):
        limit = ["--user", "alice", "--add-config", "request_percentage=5"]
        ended = invoke("quotas", "alter", "--as", "carol", *limit, "--json")

    assert json.loads(ended.output)["version"] == 1
    assert f"sluice: settings: {demo} (of the running demo)" in ended.error.splitlines()
    assert len(table.entries()) == 1


def test_commands_to_paste_work_in_any_folder(tmp_path: Path) -> None:
    """As the demo prints them, also with a blank in the folder's name."""
    folder = tmp_path / "my quotas"
    folder.mkdir()
    demo = settings_file(folder, "demo")
    QuotasTable(str(folder / "demo")).create([], "seed", datetime(2026, 1, 1, tzinfo=UTC))

    _, settings_line, *commands = commands_to_try(demo, HealthSettings("", 0, 600)).splitlines()
    (history,) = (line for line in commands if line.endswith("history"))

    pasted = f"{settings_line}\n{history}"
    assert subprocess.run(pasted, shell=True, cwd="/", check=True).returncode == 0  # noqa: S602 -- a shell is pasted into


def test_the_address_of_the_health_checks_is_printed_if_there_is_one(tmp_path: Path) -> None:
    assert "  curl http://127.0.0.1:9464/readyz" in commands_to_try(tmp_path, HealthSettings("127.0.0.1", 9464, 600))
    assert "  curl " not in commands_to_try(tmp_path, HealthSettings("127.0.0.1", 0, 600))


def test_paths_of_a_demo_with_settings_of_its_own_work_in_any_folder() -> None:
    """A URI stays as it is."""
    settings = job_settings(None, say=False)
    settings = changed(settings, "audit", checkpoint="s3a://bucket/audit")

    found = absolute_paths(settings)

    assert found["enforce"]["checkpoint"] == str(Path("sluice-data/checkpoints/enforce").absolute())
    assert found["audit"]["checkpoint"] == "s3a://bucket/audit"
    assert all(Path(path).is_absolute() for path in found["delta"].values())
