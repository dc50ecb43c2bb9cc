"""The command line: as a process, and in the process of the test."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from sluice.cli.main import main

SLUICE = (sys.executable, "-m", "sluice.cli.main")


class Ended(NamedTuple):
    """Exit code, standard output and standard error of a command that has ended."""

    code: int
    output: str
    error: str

    @property
    def error_line(self) -> str:
        """The only line of the error."""
        (line,) = self.error.splitlines()
        return line


def invoke(*arguments: object, answer: str | None = None, code: int | None = 0) -> Ended:
    """Run `sluice` in the process of the test as its script does, with `answer` as input; any exit code if None."""
    command = ["sluice", *map(str, arguments)]
    with CliRunner().isolation(answer) as (output, error, _), patch.object(sys, "argv", command):
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [stream.getvalue().decode(errors="surrogateescape") for stream in (output, error)]
    done = Ended(int(ended.value.code or 0), *texts)
    assert code in (done.code, None), done
    return done


def with_values(command: Sequence[str], *options: str) -> list[str]:
    """The command with these values (`--name`, value, ...) in place of those that it has, or at its end.

    >>> with_values(["slo", "--from", "1", "--json"], "--from", "2", "--to", "3")
    ['slo', '--from', '2', '--json', '--to', '3']
    """
    values = dict(zip(options[::2], options[1::2], strict=True))
    replaced = [values.get(before, each) for before, each in pairwise(["", *command])]
    return replaced + [part for option in values.items() if option[0] not in command for part in option]


def program(path: Path, script: str) -> Path:
    """A program that a test makes in place of another one."""
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def run_sluice(*arguments: object) -> Ended:
    """Run `sluice` with these arguments as a process without input."""
    command = [*SLUICE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    return Ended(done.returncode, done.stdout, done.stderr)


def simulate(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `sluice simulate` with these arguments as a process that reads this."""
    command = [*SLUICE, "simulate", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)
