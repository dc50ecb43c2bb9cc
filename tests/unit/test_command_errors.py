"""An error of the command line is one printable line, whatever was in it."""

import sys

import pytest

from streaming.cli import main


@pytest.mark.parametrize("name", ["x\x1b[2J\x1b]0;owned\x07", "x\nsluice: all is well", "\u202ex\u2028", "\x9b31m"])
def test_hostile_text_does_not_reach_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sluice", "doctor", "--config", f"/nowhere/{name}"])

    with pytest.raises(SystemExit) as ended:
        main()

    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("sluice: error: /nowhere/")
    assert line.isprintable()
