"""The job's own log: one line of JSON an entry, on standard error or in a file that is rotated by size."""

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from streaming.errors import LogFileError

FILES_KEPT = 10
"""Files of a rotated log beside the one being written."""


class JsonLines(logging.Formatter):
    """An entry as one line of JSON; a name from an event can't break out of its string."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry's time, level, logger and message, and the `fields` it was logged with."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(entry)


def configure_logging(file: Path | None = None, file_mib: int = 100) -> None:
    """Send the entries of Sluice's loggers to standard error, or to `file`; other libraries' only from warnings up.

    A file that would grow over `file_mib` MiB becomes `file.1` and so on, up to FILES_KEPT. Raises LogFileError.
    """
    handler = logging.StreamHandler(sys.stderr) if file is None else _rotating(file, file_mib)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sluice").setLevel(logging.INFO)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters of it reaches us as an error
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what the query reports as its end anyway


def _rotating(file: Path, file_mib: int) -> RotatingFileHandler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(file, maxBytes=file_mib * 1024 * 1024, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        raise LogFileError(
            f"can't write the log file {file} ({error.strerror}); give a file that can be written"
        ) from error
