"""An error of the command line is one printable line, whatever was in it."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import invoke


@pytest.mark.parametrize("name", ["x\x1b[2J\x1b]0;owned\x07", "x\nsluice: all is well", "\u202ex\u2028", "\x9b31m"])
def test_hostile_text_does_not_reach_the_terminal(name: str) -> None:
    ended = invoke("doctor", "--config", f"/nowhere/{name}", code=2)

    assert ended.error_line.startswith("sluice: error: /nowhere/")
    assert ended.error_line.isprintable()


def test_the_version_is_the_installed_one() -> None:
    assert invoke("--version").output == f"sluice {version('sluice-kafka')}\n"


@pytest.mark.parametrize("group", [[], ["quotas"], ["state"]])
@pytest.mark.parametrize("width", ["80", "200"])
def test_help_texts_are_whole(group: list[str], width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are wrapped, not cut, also on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERMINAL_WIDTH", width)

    shown = invoke(*group, "--help").output

    assert "Commands:" in shown
    assert "..." not in shown.replace("[ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("group", [[], ["quotas"], ["state"]])
def test_without_a_command_the_help_is_printed(group: list[str]) -> None:
    ended = invoke(*group, code=2)

    assert ended.error == ""
    assert "\nCommands:\n" in ended.output


def test_a_standby_needs_a_checkpoint_in_shared_storage(tmp_path: Path) -> None:
    settings = tmp_path / "sluice.yaml"
    settings.write_text(f"enforce: {{checkpoint: {tmp_path}/checkpoint}}\n")

    ended = invoke("run", "--standby", "--config", settings, code=2)

    assert ended.error_line.endswith(f"but enforce.checkpoint is the path {tmp_path}/checkpoint; expected a URI")
