"""The requests topic's own identity: Kafka's id tells one that was made again, or is in another cluster."""

import logging
from collections.abc import Iterator

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.topics import topic_id_now
from sluice.process.background import BackgroundService
from sluice.process.format import error_line
from sluice.streaming.balances.imported import read_imported_start
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import charged_topic_id, write_topic_id
from sluice.streaming.checkpoint.spark_files import check_spark_files
from sluice.streaming.errors import CheckpointError

log = logging.getLogger("sluice.enforce")

_POLL_S = 1.0


class RequestsTopicWatch:
    """The id of the requests topic as it is now; None if no broker has given one yet."""

    def __init__(self, settings: Settings) -> None:
        self.id: str | None = None
        self._settings = settings

    def begin(self) -> None:
        """Look before a query starts, and note whose requests its checkpoint has charged.

        Raises CheckpointError if it has charged those of another topic, unless lost input is no failure. While no
        broker says its id the topic is taken for the same.
        """
        checkpoint = Checkpoint(self._settings.enforce.checkpoint)
        try:
            with connect(KafkaAdminClient, self._settings.kafka) as admin:
                found = topic_id_now(admin, self._settings.topics.requests)
        except (KafkaError, KafkaUnavailableError, OSError) as error:
            log.warning("can't ask for the id of topic %s: %s", self._settings.topics.requests, error_line(error))
            self.id = charged_topic_id(checkpoint)
            return
        if (text := another_topic(self._settings, found)) is not None:
            if self._settings.enforce.fail_on_data_loss:
                raise CheckpointError(text)
            log.warning("%s", text)
        charged = charged_topic_id(checkpoint)
        if found is not None and found != charged:
            write_topic_id(checkpoint, found)
        self.id = found or charged

    def service(self) -> BackgroundService:
        """The watch in the background."""
        return BackgroundService("requests-topic", self._poll, _POLL_S, log=log)

    def _poll(self) -> Iterator[None]:
        with connect(KafkaAdminClient, self._settings.kafka) as admin:
            while True:
                self.id = topic_id_now(admin, self._settings.topics.requests) or self.id
                yield


def another_topic(settings: Settings, found: str | None) -> str | None:
    """One line if the topic with the id `found` isn't the one that the enforce checkpoint has charged; else None.

    Raises CheckpointError.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    charged = charged_topic_id(checkpoint)
    has_charged = check_spark_files(checkpoint).planned >= 0 or read_imported_start(checkpoint) is not None
    if found is None or charged in (None, found) or not has_charged:
        return None
    text = (
        f"topic {settings.topics.requests} is another one (id {found}) than the checkpoint {checkpoint.location} has"
        f" charged (id {charged}): it was made again, or is in another cluster"
    )
    if not settings.enforce.fail_on_data_loss:
        return f"{text}; sluice run goes on with the checkpoint's balances and the requests to come"
    return (
        f"{text}; name a new enforce.checkpoint (balances start from zero), or set enforce.fail_on_data_loss: false to"
        " go on with its balances and the requests to come"
    )
