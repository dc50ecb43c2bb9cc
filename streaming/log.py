"""The job's own log: one line of JSON an entry, on standard error."""

import json
import logging
import sys
from datetime import UTC, datetime


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


def configure_logging() -> None:
    """Send the entries of Sluice's loggers to standard error; other libraries' only from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sluice").setLevel(logging.INFO)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what the query reports as its end anyway
