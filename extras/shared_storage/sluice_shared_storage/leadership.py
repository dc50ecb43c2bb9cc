"""Makes a driver the leader of its checkpoint, keeps it so, and notices when another one has taken its place."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from threading import Event

from kafka import KafkaProducer
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.errors import KafkaUnavailableError, TopicCreationError, TopicLostError
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_lease_topic
from sluice.process.background import BackgroundService, LastError
from sluice.process.format import error_line
from sluice.state.decisions.leader_epochs import LeaderEpoch
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.store import Leadership
from sluice.streaming.errors import LeadershipError
from sluice_shared_storage.leader_epochs import begin_epoch
from sluice_shared_storage.lease import Acquisition, Driver, Heartbeat, LeaseLog, Record, Release, encode

log = logging.getLogger("sluice.leadership")

HEARTBEAT_S = 2.0
"""Interval between two heartbeats of the leader."""

LEASE_S = 10.0
"""A leader without a heartbeat for so long may be replaced. It begins no micro-batch then until it has read its own."""

_POLL_S = 0.25
_RETRY_S = 1.0
_SEND_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0

_TROUBLE = (KafkaError, KafkaUnavailableError, TopicLostError, TopicCreationError, OSError)
"""Errors of the lease topic after which nobody knows who leads."""


class LeaseTopic:
    """The lease topic, which is read from its beginning and written to. Raises the errors of Kafka's clients."""

    def __init__(self, topic: str, kafka: Mapping[str, str], key: bytes) -> None:
        self.log = LeaseLog(key)
        self._key = key
        self._topic = topic
        self._reader = TopicReader(kafka, topic)
        self._producer = connect(KafkaProducer, kafka, acks="all", allow_auto_create_topics=False)

    def close(self) -> None:
        """Close both clients."""
        try:
            self._reader.close()
        finally:
            self._producer.close(timeout=_STOP_TIMEOUT_S)

    def read(self) -> Driver | None:
        """The leader by all records that the topic has now."""
        for _, record in self._reader.read_to_end():
            self.log.read_record(record.offset, record.key, record.value)
        return self.log.leader

    def write(self, record: Record) -> None:
        """Write a record; returns once the brokers have it."""
        self._producer.send(self._topic, encode(record), self._key, partition=0).get(_SEND_TIMEOUT_S)


class KafkaLeadership(Leadership):
    """This process as a driver that leads by a lease, or wants to.

    It makes the lease topic, also where that was deleted. `key` names the checkpoint that is led. With `standby` it
    waits for its turn; without, a leader that lives is an error. `clock_s` is a clock that is never set, in seconds;
    only times of this process are compared.
    """

    def __init__(
        self,
        topics: TopicSettings,
        kafka: Mapping[str, str],
        key: str,
        standby: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = Driver(secrets.token_hex(8), socket.gethostname(), os.getpid())
        self.replaced_by: Driver | None = None
        """The driver that has taken this one's place."""
        self._topics = topics
        self._topic = topics.claims
        self._kafka = kafka
        self._key = key
        self._standby = standby
        self._clock_s = clock_s
        self._sent_s: dict[int, float] = {}  # heartbeat -> when it was sent; those that are not yet read
        self._confirmed_s = -LEASE_S
        self._number = 0
        self._heartbeats = BackgroundService(
            "leadership",
            self._keep,
            _POLL_S,
            retry_s=_RETRY_S,
            failure="no heartbeat can be sent",
            log=log,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )

    def acquire(self, stop: Event) -> bool:
        """Become the leader. False if `stop` is set before.

        A leader that has released its lease is replaced at once, one without a heartbeat after LEASE_S of watching.
        Raises LeadershipError if a leader lives or the topic can't be read, unless this one stands by.
        """
        trouble = LastError()
        while True:
            try:
                ensure_lease_topic(self._topics, self._kafka)
                with closing(self._opened()) as lease:
                    return self._acquire(lease, stop)
            except _TROUBLE as error:
                if not self._standby:
                    raise self._unknown(error) from error
                if trouble.is_new(error):
                    log.warning("%s; stands by on", self._unknown(error))
            # Meanwhile a leader that lives has acquired its lease in a topic that was deleted and made again.
            if stop.wait(LEASE_S):
                return False

    def confirm(self) -> None:
        """Raises LeadershipError unless this driver leads now, as the topic says, or if nobody can say it."""
        try:
            with closing(self._opened()) as lease:
                leader = lease.read()
        except _TROUBLE as error:
            raise self._unknown(error) from error
        if leader != self.driver:
            raise LeadershipError(f"{leader or 'no driver'} leads the checkpoint {self._key} now, not this one")

    def begin_epoch(self, spark: SparkSession) -> LeaderEpoch:
        """A new epoch. Raises CheckpointError, LeadershipError and EpochMarkerError."""
        checkpoint = Checkpoint(self._key)
        if (store := checkpoint.store) is None:
            raise LeadershipError(f"the checkpoint {self._key} is a path, on which no epoch is needed")
        create = store.file_creator(spark, checkpoint.location)
        return begin_epoch(checkpoint, create, self.confirm, self._topics, self._kafka)

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._heartbeats.start()

    def stop(self) -> None:
        """Release the lease, so that the next driver needn't wait. Nothing may be decided any more."""
        self._heartbeats.stop()
        if self.replaced_by is not None or self._heartbeats.is_alive():
            return
        try:
            with closing(self._opened()) as lease:
                if lease.read() == self.driver:
                    lease.write(Release(self.driver, lease.log.lease))
        except Exception as error:  # of any class: the next driver then waits for LEASE_S
            log.warning("the lease of %s can't be released: %s", self._key, error_line(error))

    def may_decide(self) -> bool:
        """True if this driver is certain to lead: it has read a heartbeat that it sent within LEASE_S.

        Raises LeadershipError once another driver has taken its place.
        """
        if self.replaced_by is not None:
            raise LeadershipError(
                f"{self.replaced_by} has taken over the checkpoint {self._key}, because this one sent no heartbeat"
                f" for {LEASE_S:g} s; it goes on there"
            )
        return self._clock_s() - self._confirmed_s < LEASE_S

    def waits_for(self) -> str | None:
        """The reason why no micro-batch may begin now, None if it may. Raises LeadershipError as `may_decide` does."""
        if self.may_decide():
            return None
        error = self._heartbeats.last_error.line or "none came back yet"
        return f"waiting for a heartbeat of this driver in topic {self._topic}: {error}"

    def _unknown(self, error: Exception) -> LeadershipError:
        return LeadershipError(
            f"topic {self._topic} can't be read or written ({error_line(error)}), so nobody knows whether another"
            " driver works on the checkpoint; see that the topic is there and this login may use it"
        )

    def _opened(self) -> LeaseTopic:
        return LeaseTopic(self._topic, self._kafka, self._key.encode())

    def _acquire(self, lease: LeaseTopic, stop: Event) -> bool:
        lease.read()
        watched, since_s, said = lease.log.records, self._clock_s(), False
        while not stop.is_set():
            leader = lease.read()
            if leader == self.driver:
                log.info("leads %s with lease %d", self._key, lease.log.lease)
                return True
            if leader is None:
                lease.write(Acquisition(self.driver, lease.log.lease))
            elif lease.log.records != watched:
                if not self._standby:
                    raise LeadershipError(
                        f"the checkpoint {self._key} is in use by {leader}; stop that one with SIGTERM first, or start"
                        " this one with --standby to take over when it ends"
                    )
                if not said:
                    log.info("stands by: %s leads %s", leader, self._key)
                watched, since_s, said = lease.log.records, self._clock_s(), True
            elif self._clock_s() - since_s >= LEASE_S:
                log.warning("%s, which leads %s, sends no heartbeat; taking over", leader, self._key)
                lease.write(Acquisition(self.driver, lease.log.lease))
            else:
                stop.wait(_POLL_S)
        return False

    def _keep(self) -> Iterator[float | None]:
        """Send heartbeats and read them until another driver leads. A new attempt reads the topic from its start."""
        for name in ensure_lease_topic(self._topics, self._kafka):
            log.error("topic %s was deleted; it is created again", name)
        with closing(self._opened()) as lease:
            next_s = self._clock_s()
            while True:
                leader = lease.read()
                if leader is not None and leader != self.driver:
                    self.replaced_by = leader
                    self._heartbeats.stopped.set()
                elif leader is None:  # the topic was deleted and is there again
                    lease.write(Acquisition(self.driver, lease.log.lease))
                    yield 0.0
                    continue
                else:
                    self._note_heartbeat(lease.log.last_number)
                    if self._clock_s() >= next_s:
                        next_s = self._clock_s() + HEARTBEAT_S
                        self._send_heartbeat(lease)
                yield None

    def _send_heartbeat(self, lease: LeaseTopic) -> None:
        self._number += 1
        self._sent_s[self._number] = self._clock_s()
        lease.write(Heartbeat(self.driver, lease.log.lease, self._number))

    def _note_heartbeat(self, last_number: int) -> None:
        """A heartbeat was read: at the time it was sent this driver led, and it does until LEASE_S later."""
        sent_s = self._sent_s.get(last_number)
        if sent_s is not None:
            self._confirmed_s = sent_s
            self._sent_s = {number: each_s for number, each_s in self._sent_s.items() if number > last_number}
