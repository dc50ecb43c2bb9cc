"""The largest record that the topics of the job's answers take: a larger one would end the query at each attempt."""

import logging

from kafka.errors import KafkaError

from sluice.configs.settings import Settings
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.topics import max_record_bytes
from sluice.process.format import error_line

log = logging.getLogger("sluice.enforce")

LEAST_BYTES = 8192
"""A dead letter without the event's value fits."""


class RecordBound:
    """Finds the bound at each start of the query: topics may be altered, and not every login may see their configs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._most = self.bytes = settings.topics.max_message_bytes

    def poll(self, was_too_large: bool) -> int:
        """The bound of the next start in bytes; half of the last one if that let through what was too large."""
        if was_too_large:
            self._most = max(LEAST_BYTES, self.bytes // 2)
        before, self.bytes = self.bytes, max(LEAST_BYTES, min(self._most, self._found()))
        if self.bytes < before:
            log.warning(
                "answers are bounded to %d bytes, as a topic takes no larger ones: a larger decision becomes a dead"
                " letter, and a larger dead letter is cut",
                self.bytes,
            )
        return self.bytes

    def _found(self) -> int:
        settings = self._settings
        own = [int(value) for name in ("max.request.size", "buffer.memory") if (value := settings.kafka.get(name))]
        try:
            return min([*own, max_record_bytes(settings.topics, settings.kafka)])
        except (KafkaError, KafkaUnavailableError, OSError) as error:
            log.warning("can't ask how large records may be: %s", error_line(error))
            return min([*own, self.bytes])
