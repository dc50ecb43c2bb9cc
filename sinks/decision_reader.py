"""Reading the decisions topic: its recent past first, then every new decision, across broker outages."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from types import MappingProxyType
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from sinks.errors import KafkaUnavailableError
from sinks.mute_table import now_ms
from sinks.topics import connect

log = logging.getLogger(__name__)

POLL_MS = 200
"""Longest wait for decisions at a time; they end it. Closing takes about as long."""

REJOIN_S = 1.0
"""Pause before a new attempt after an error."""

PARTITIONS_S = 10.0
"""How often to look for new partitions of the topic."""

CLOSE_S = 0.5
"""Longest wait for the end of the thread."""

CONSUMER_OPTIONS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "group_id": None,  # every gateway reads every decision
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",  # after retention has removed decisions that were not read in time
        "allow_auto_create_topics": False,
        "fetch_max_wait_ms": POLL_MS,
        "max_partition_fetch_bytes": 8 * 1024 * 1024,
        "max_poll_records": 5_000,
        "reconnect_backoff_max_ms": 1_000,
        "metadata_max_age_ms": 10_000,
    }
)


class DecisionReader:
    """A background thread that hands the value of every decision to `on_decision`.

    It starts `lookback_s` before now, waits for a topic that doesn't exist yet, and goes on where it was after an
    outage. `on_idle` is called at least once every 200 ms while a broker answers.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        topic: str,
        lookback_s: float,
        on_decision: Callable[[bytes], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.ready = Event()  # all decisions that were there at the start have been read
        self._kafka = kafka
        self._topic = topic
        self._start_ms = max(0, now_ms() - int(lookback_s * 1000))
        self._on_decision = on_decision
        self._on_idle = on_idle
        self._positions: dict[TopicPartition, int] = {}  # partition -> next offset to read
        self._ends: dict[TopicPartition, int] = {}  # partition -> end of the topic at the start
        self._closing = Event()
        self._thread = Thread(target=self._run, name="sluice-decision-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to end; doesn't wait for it."""
        self._closing.set()

    def close(self) -> None:
        """Ends the thread, and waits for it; not for ever, for kafka-python looks long for a broker that is gone."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(KafkaConsumer, self._kafka, **CONSUMER_OPTIONS) as consumer:
                    self._read(consumer)
            except (KafkaError, KafkaUnavailableError, OSError) as error:
                log.warning("decisions can't be read: %s; trying again", " ".join(str(error).split()))
                self._closing.wait(REJOIN_S)

    def _read(self, consumer: KafkaConsumer) -> None:
        look_again_s = 0.0
        while not self._closing.is_set():
            if time.monotonic() >= look_again_s:
                self._assign(consumer)
                look_again_s = time.monotonic() + (PARTITIONS_S if self._positions else REJOIN_S)
            if not self._positions:
                self._closing.wait(POLL_MS / 1000)
                continue
            for partition, records in consumer.poll(timeout_ms=POLL_MS).items():
                for record in records:
                    self._on_decision(record.value)
                self._positions[partition] = records[-1].offset + 1
            if not self.ready.is_set() and self._is_caught_up():
                self.ready.set()
            self._on_idle()

    def _assign(self, consumer: KafkaConsumer) -> None:
        """Takes every partition of the topic, at the place where reading goes on."""
        partitions = {TopicPartition(self._topic, number) for number in consumer.partitions_for_topic(self._topic)}
        if not partitions or partitions == consumer.assignment():
            return
        new = partitions - self._positions.keys()
        ends = consumer.end_offsets(new) if new else {}
        found = consumer.offsets_for_times(dict.fromkeys(new, self._start_ms)) if new else {}
        for partition in new:
            since = found.get(partition)
            self._positions[partition] = since.offset if since else ends[partition]
        if not self.ready.is_set():
            self._ends.update(ends)
        consumer.assign(list(partitions))
        for partition in partitions:
            consumer.seek(partition, self._positions[partition])

    def _is_caught_up(self) -> bool:
        return all(self._positions[partition] >= end for partition, end in self._ends.items())
