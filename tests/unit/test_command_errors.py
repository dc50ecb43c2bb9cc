"""An error of the command line is one printable line, whatever was in it."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from sluice.cli.main import app
from sluice.process.format import error_line
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


def commands(group: Any, parent: typer.Context | None = None) -> Iterator[tuple[list[str], Any]]:
    """The words and the command of each below a group, those of installed extras too."""
    context = typer.Context(group, parent, info_name=getattr(group, "name", None))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from (([name, *words], inner) for words, inner in commands(command, context))
        else:
            yield [name], command


def test_no_command_takes_an_option_with_one_value_twice() -> None:
    """The last one would count alone, and nobody would see it."""
    tried = 0
    for words, command in commands(get_command(app)):
        for option in command.params:
            if option.param_type_name == "option" and not (option.is_flag or option.multiple or option.count):
                ended = invoke(*words, option.opts[0], "a", option.opts[0], "a", code=2)

                assert ended.error_line == f"sluice: error: {option.opts[0]} is given twice; expected once", words
                tried += 1
    assert tried >= 10


def test_names_of_one_option_are_the_same_option() -> None:
    settings = ("--config", "a.yaml", "--config=b.yaml")

    assert invoke("doctor", *settings, code=2).error_line == "sluice: error: --config is given twice; expected once"


def test_an_error_of_kafka_that_has_a_whole_response_is_one_short_line() -> None:
    """As that of a broker that has just woken up; it grew with the number of partitions."""
    assert error_line(ValueError("two\n lines")) == "two lines"
    assert len(error_line(ValueError("MetadataResponse(" * 1_000))) < 1_010
