"""Commands start quickly: what takes long to import is imported only by the commands that need it.

And they start wherever they were put: what is wrong there is one line.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slow_imports import SLUICE, slow_imports


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_line_itself_imports_nothing_slow(option: str) -> None:
    """The help imports the module of each command, as completion in a shell does."""
    assert slow_imports(SLUICE, option) == set()


def test_simulate_imports_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """It has one page, and no workers whose contract with PySpark would have to be tried."""
    quotas, events = tmp_path / "quotas.yaml", tmp_path / "events.jsonl"
    quotas.write_text("- {entity: {user: alice}, quotas: {producer_byte_rate: 5}}\n")
    events.write_text('{"api": "Produce", "user": "alice", "timestamp_ms": 1000, "bytes": 10}\n')

    assert slow_imports(SLUICE, "simulate", "--quotas", str(quotas), "--events", str(events)) == {"numpy", "pyarrow"}


COMMAND = "import sys; sys.argv = ['sluice', *sys.argv[1:]]; from sluice.cli import command; command()"
"""The installed script, whose imports fail in one line, too."""


def started(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The end of the installed script, run with these arguments and options of `subprocess.run`."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    options["env"] = os.environ | options.get("env", {})
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120, **options)


@pytest.mark.parametrize(("module", "command"), [("msgspec", "--help"), ("yaml", "--help"), ("kafka", "doctor")])
def test_a_module_that_pythonpath_hides_is_one_line_that_names_it(tmp_path: Path, module: str, command: str) -> None:
    """It is missed while the command line is loaded, or by a command."""
    (tmp_path / f"{module}.py").write_text("")

    done = started(command, env={"PYTHONPATH": str(tmp_path)}, stdout=subprocess.DEVNULL)

    expected = (
        f"sluice: error: {tmp_path} of PYTHONPATH has another {module} ({tmp_path}/{module}.py) than Sluice needs"
    )
    assert done.stderr.splitlines()[-1] == f"{expected}; leave this folder out of PYTHONPATH"
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    "body", ["import sluice.missing", "raise ValueError('no such thing')", "import sys; sys.exit(3)"]
)
def test_an_extra_that_can_not_be_loaded_takes_no_other_command_away(tmp_path: Path, body: str) -> None:
    """The help of all commands shows the reason in its place, and using it is one line with the extra's name."""
    folder = tmp_path / "other_extra-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: other-extra\nVersion: 9\n")
    (folder / "entry_points.txt").write_text("[sluice.commands]\nother = other_extra:command\n")
    (tmp_path / "other_extra.py").write_text(body)
    environment = {"PYTHONPATH": str(tmp_path)}

    help_ = started("--help", env=environment, stdout=subprocess.PIPE)
    used = started("other", "--way", "x", env=environment, stdout=subprocess.PIPE)

    reason = "the command other is of other-extra 9, which doesn't fit this sluice-kafka ("
    assert reason in " ".join(help_.stdout.split())
    assert " doctor " in help_.stdout
    assert help_.returncode == 0
    assert used.stderr.splitlines()[-1].startswith(f"sluice: error: {reason}")
    assert used.returncode == 2


def test_a_module_that_is_damaged_is_one_line() -> None:
    damaged = f"import sys; sys.modules['yaml'] = None; {COMMAND}"
    done = subprocess.run([sys.executable, "-c", damaged], capture_output=True, text=True, check=False)

    assert re.fullmatch(r"sluice: error: Sluice can't be loaded \(ModuleNotFoundError: .*yaml.*\); .*\n", done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("command", "unbuffered"), [("--help", ""), ("--help", "1"), ("--version", ""), ("doctor", "1")]
)
def test_output_that_nothing_takes_is_one_line(command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = started(command, stdout=full, env={"PYTHONUNBUFFERED": unbuffered})

    assert done.stderr.splitlines()[-1:] == [
        "sluice: error: standard output can't be written (No space left on device); make room there, or send it"
        " elsewhere"
    ]
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 1


def test_a_process_without_standard_streams_opens_no_file_in_their_place(tmp_path: Path) -> None:
    """Output of a library or a child would be in that file."""
    said = tmp_path / "said"
    closed = 'exec "$@" <&- >&- 2>&-'
    program = (
        "import sys; from sluice.process.surroundings import open_standard_streams; open_standard_streams();"
        "import os; found = [os.fstat(number).st_rdev for number in range(3)];"
        "print('lost', flush=True); print('lost', file=sys.stderr); open(sys.argv[1], 'w').write(str(found))"
    )

    done = subprocess.run(
        ["/bin/sh", "-c", closed, "x", sys.executable, "-c", program, str(said)], check=False, timeout=60
    )

    assert done.returncode == 0
    assert said.read_text() == str([os.stat(os.devnull).st_rdev] * 3)


def test_without_assertions_a_line_says_so_in_place_of_a_broker_that_gives_no_answer() -> None:
    """Kafka's client reads answers in assertions: each broker would seem to end its connections."""
    done = started(
        "topics", "--bootstrap-servers", "127.0.0.1:1", env={"PYTHONOPTIMIZE": "1"}, stdout=subprocess.DEVNULL
    )

    assert done.stderr.splitlines()[-1].startswith(
        "sluice: error: this Python runs without assertions, in which Kafka's client reads answers; unset"
        " PYTHONOPTIMIZE"
    )
    assert done.returncode == 1
