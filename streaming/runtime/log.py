"""The job's own log: one line of JSON per entry, on standard error or in a file that is rotated by size."""

import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sluice.streaming.errors import LogFileError

OWNER_ONLY = 0o077
"""The umask of the job and of all that it starts: logs, tables, checkpoints and shuffle files hold users' names."""

FILES_KEPT = 10
"""Older files of a rotated log that are kept."""


class JsonLines(logging.Formatter):
    """Formats an entry as one line of JSON, so that no name from an event can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry's time, level, logger and message, and the `fields` it was logged with.

        A fault of Sluice's own has its `stack`. Of other libraries clients may cause errors, which are a line.
        """
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.name.startswith("sluice."):
            entry["stack"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(file: Path | None = None, file_mib: int = 100) -> None:
    """Send Sluice's log entries, and warnings of other libraries, to standard error or to `file`.

    A file of `file_mib` MiB is renamed to `file.1`, that to `file.2` and so on, up to FILES_KEPT. Raises LogFileError.
    """
    handler = logging.StreamHandler(sys.stderr) if file is None else _rotating(file, file_mib)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sluice").setLevel(logging.INFO)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its calls raise what matters
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs errors that the query reports as well


def leave_rotation_signals(file: Path | None) -> None:
    """Let the signals of logrotate do nothing to a process with a log file: it finds out itself that the file moved."""
    for number in (signal.SIGHUP, signal.SIGUSR1) if file is not None else ():
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which child processes would inherit


class _MovedFileHandler(RotatingFileHandler):
    """A rotated log whose file others may rename or remove, as logrotate does: then it is made anew."""

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 # the name is logging's
        """Open the file anew if it isn't the one at the path any more, then decide by its size."""
        if self.stream is not None and self._is_moved(self.stream.fileno()):
            self.stream.close()
            self.stream = self._open()
        return bool(super().shouldRollover(record))

    def _is_moved(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.stat(self.baseFilename), os.fstat(descriptor))
        except FileNotFoundError:
            return True


def _rotating(file: Path, file_mib: int) -> RotatingFileHandler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return _MovedFileHandler(file, maxBytes=file_mib * 1024 * 1024, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        raise LogFileError(
            f"can't write the log file {file} ({error.strerror}); give a file that can be written"
        ) from error
