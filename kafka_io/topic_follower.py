"""Follows a topic in the background: its past first, then every new record, across outages."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event

from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService

log = logging.getLogger(__name__)

REJOIN_S = 1.0
"""Pause before a new attempt after an error."""

CLOSE_S = 0.5
"""Longest wait for the end of the threads: kafka-python searches long for a broker that is gone."""

READ_AGAIN_S = 60.0
"""Shortest time between two times that a topic is read again because its reader asks for it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic to follow and callbacks for its records. All calls come from the follower's thread.

    `since_ms`, `fenced` and `on_restart` are those of TopicReader. `on_record` is called with key and value of every
    record; if it raises, the record is counted and skipped. `on_caught_up` is called once, when all records that
    existed at the start have been read; the follower ends there if `ends_there`. While a broker answers, `on_idle` is
    called at least every POLL_MS. `has_gaps` is asked then: if records are missing that the topic has lost, it is
    read from its beginning again, at most every READ_AGAIN_S.
    """

    topic: str
    on_record: Callable[[bytes | None, bytes | None], None]
    since_ms: int | None = None
    ends_there: bool = False
    fenced: bool = False
    on_restart: Callable[[], None] = lambda: None
    on_caught_up: Callable[[], None] = lambda: None
    on_idle: Callable[[], None] = lambda: None
    has_gaps: Callable[[], bool] = lambda: False


class TopicFollower(BackgroundService):
    """A background thread that reads one topic. No record ends it, and `last_error` says what keeps it from reading.

    It waits for a topic that does not exist yet, and continues at its last position after an outage. `crashes` counts
    the times that reading ended for a reason other than an outage and was begun again.
    """

    def __init__(self, kafka: Mapping[str, str], reading: Reading) -> None:
        self.caught_up = Event()  # set when all records that existed at the start have been read
        self.reader = TopicReader(
            kafka, reading.topic, reading.since_ms, fenced=reading.fenced, on_restart=reading.on_restart
        )
        self.reading = reading
        self._read_again_s = 0.0  # on the monotonic clock
        super().__init__(
            f"reader-{reading.topic}",
            self._follow,
            pause_s=0.0,
            retry_s=REJOIN_S,
            failure=f"topic {reading.topic} can't be read",
            log=log,
            level=logging.WARNING,
            stop_timeout_s=CLOSE_S,
        )

    @property
    def unreadable(self) -> int:
        """Records whose decoding or handling failed."""
        return self.reader.unreadable

    def hand_over(self, partition: int, record: FetchedRecord) -> None:
        """Give one record to its callback."""
        try:
            self.reading.on_record(record.key, record.value)
        except Exception as error:  # of any class: whatever a record holds, the next one must be read
            self.reader.pass_over(partition, record.offset, 1, error)

    def _follow(self) -> Iterator[None]:
        with self.reader:
            while True:
                for partition, record in self.reader.read():
                    self.hand_over(partition, record)
                if self.reader.has_begun:
                    self._notice_end()
                yield

    def _notice_end(self) -> None:
        if not self.caught_up.is_set() and self.reader.is_caught_up():
            self.caught_up.set()  # first: two followers that end at once must see it of each other
            self.reading.on_caught_up()
            if self.reading.ends_there:
                self.stopped.set()
        self.reading.on_idle()
        if self.reading.has_gaps() and time.monotonic() >= self._read_again_s:
            self._read_again_s = time.monotonic() + READ_AGAIN_S
            self.reader.read_again("has removed records that weren't read")
