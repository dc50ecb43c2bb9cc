"""An error of the command line is one printable line, whatever was in it."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import Sluice, invoke


@pytest.mark.parametrize("name", ["x\x1b[2J\x1b]0;owned\x07", "x\nsluice: all is well", "\u202ex\u2028", "\x9b31m"])
def test_hostile_text_does_not_reach_the_terminal(sluice: Sluice, name: str) -> None:
    ended = sluice("doctor", "--config", f"/nowhere/{name}")

    assert ended.code == 2
    assert ended.error_line.startswith("sluice: error: /nowhere/")
    assert ended.error_line.isprintable()


def test_a_choice_that_is_none_is_said_without_words_of_a_library(sluice: Sluice) -> None:
    ended = sluice("slo", "--by", "shop")

    expected = "Invalid value for '--by': 'shop' is not one of 'user', 'client', 'tenant', 'topic'."
    assert (ended.code, ended.error_line) == (2, f"sluice: error: {expected}")


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
def test_without_a_command_the_help_is_printed(sluice: Sluice, group: list[str]) -> None:
    ended = sluice(*group)

    assert (ended.code, ended.error) == (2, "")
    assert "\nCommands:\n" in ended.output


def test_only_a_standby_can_be_warm(sluice: Sluice) -> None:
    ended = sluice("run", "--warm")

    assert (ended.code, ended.error) == (2, "sluice: error: --warm is given without --standby; expected both\n")


def test_a_standby_needs_a_checkpoint_in_shared_storage(sluice: Sluice, tmp_path: Path) -> None:
    settings = tmp_path / "sluice.yaml"
    settings.write_text(f"enforce: {{checkpoint: {tmp_path}/checkpoint}}\n")

    ended = sluice("run", "--standby", "--config", settings)

    assert ended.code == 2
    assert ended.error_line.endswith(f"but enforce.checkpoint is the path {tmp_path}/checkpoint; expected a URI")
