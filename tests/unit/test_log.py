"""The job's log: every entry is one line, and a log file doesn't grow without limit."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.streaming.errors import LogFileError
from sluice.streaming.runtime.log import FILES_KEPT, configure_logging

HOSTILE = [
    'x\n{"level": "info", "message": "forged"}',
    "\x1b[2J\x1b]0;title\x07",
    '"},{"a":"',
    "\u2028\u202e",
    "\ud800",
]


@contextmanager
def job_log(file: Path, file_mib: int = 1) -> Iterator[None]:
    """Logging as in the job's process; pytest's logging is restored afterwards."""
    root = logging.getLogger()
    kept, level, root.handlers = root.handlers, root.level, []
    try:
        configure_logging(file, file_mib)
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = kept
        root.setLevel(level)


def test_hostile_text_stays_in_its_entry(tmp_path: Path) -> None:
    """Anything but printable ASCII is escaped, so it can't forge a line or control a terminal."""
    with job_log(tmp_path / "job.log"):
        for text in HOSTILE:
            logging.getLogger("sluice.test").warning("user %s", text, extra={"fields": {"entity": text}})

    content = (tmp_path / "job.log").read_bytes()
    entries = [json.loads(line) for line in content.splitlines()]
    assert [entry["message"] for entry in entries] == [f"user {text}" for text in HOSTILE]
    assert [entry["entity"] for entry in entries] == HOSTILE
    assert all(byte == 10 or 32 <= byte < 127 for byte in content)


def test_a_fault_of_sluices_own_has_its_stack_and_stays_one_line(tmp_path: Path) -> None:
    """One of a library, which a client may cause, has none."""
    with job_log(tmp_path / "job.log"):
        for name in ("sluice.background", "uvicorn.error"):
            try:
                raise KeyError("x")
            except KeyError:
                logging.getLogger(name).exception("failed")

    own, other = (json.loads(line) for line in (tmp_path / "job.log").read_bytes().splitlines())
    assert own["stack"].startswith("Traceback")
    assert own["stack"].endswith("KeyError: 'x'")
    assert "stack" not in other


def test_a_log_file_is_rotated_by_size(tmp_path: Path) -> None:
    with job_log(tmp_path / "job.log", file_mib=1):
        for number in range(FILES_KEPT + 3):
            logging.getLogger("sluice.test").info("%d %s", number, "x" * 1_000_000)

    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(files) == {"job.log"} | {f"job.log.{number}" for number in range(1, FILES_KEPT + 1)}
    assert max(files.values()) <= 1024 * 1024


def test_an_impossible_log_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LogFileError, match=r"can't write the log file .*Is a directory"), job_log(tmp_path):
        pass


@pytest.mark.parametrize("tool", ["rename", "remove", "copytruncate"])
def test_a_log_file_that_other_tools_move_or_cut_gets_the_next_entry(tmp_path: Path, tool: str) -> None:
    file = tmp_path / "job.log"
    with job_log(file):
        logging.getLogger("sluice.test").info("before")
        if tool == "rename":
            file.rename(tmp_path / "job.log-20261128")
        elif tool == "remove":
            file.unlink()
        else:
            file.write_text("")
        logging.getLogger("sluice.test").info("after")

    (line,) = file.read_text().splitlines()
    assert json.loads(line)["message"] == "after"
