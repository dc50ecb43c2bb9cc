"""Makes a driver the leader of its checkpoint, keeps it so, and notices when another one has taken its place."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from threading import Event

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import Trouble, connect, error_line
from sluice.streaming.errors import LeadershipError
from sluice.streaming.leadership.lease import Claim, ClaimLog, Driver, Record, Release, Sign, encode

log = logging.getLogger("sluice.leadership")

SIGN_S = 2.0
"""How often the leader gives a sign of life."""

LEASE_S = 10.0
"""A leader without a sign for so long may be replaced. It begins no micro-batch then until it has read its own sign."""

_LOOK_S = 0.25
_RETRY_S = 1.0
_POLL_MS = 200
_OFFSETS_TIMEOUT_MS = 3_000
_SEND_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


class ClaimsTopic:
    """The claims topic, which is read from its beginning and written to. Raises what Kafka's clients do."""

    def __init__(self, topic: str, kafka: Mapping[str, str], key: bytes) -> None:
        self.log = ClaimLog(key)
        self._key = key
        self._partition = TopicPartition(topic, 0)
        self._consumer = connect(KafkaConsumer, kafka, enable_auto_commit=False)
        self._producer = connect(KafkaProducer, kafka, acks="all")
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)

    def close(self) -> None:
        """Close both clients."""
        self._consumer.close()
        self._producer.close(timeout=_STOP_TIMEOUT_S)

    def read(self) -> None:
        """Take all records that the topic has now."""
        end = self._consumer.end_offsets([self._partition], _OFFSETS_TIMEOUT_MS)[self._partition]
        while self._consumer.position(self._partition) < end:
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
            for record in polled.get(self._partition, ()):
                self.log.take(record.offset, record.key, record.value)
            if not polled and self._consumer.end_offsets([self._partition], _OFFSETS_TIMEOUT_MS)[self._partition] < end:
                raise KafkaError("the claims topic has lost records")

    def write(self, record: Record) -> None:
        """Write a record; returns once the brokers have it."""
        sent = self._producer.send(self._partition.topic, encode(record), self._key, partition=0)
        sent.get(_SEND_TIMEOUT_S)


class Leadership:
    """This process as a driver that leads, or wants to.

    `key` names what is led: the checkpoint. With `standby` it waits for its turn; without, a leader that lives is an
    error. `clock_s` is a clock that is never set, in seconds; only times of this process are compared.
    """

    def __init__(
        self,
        topic: str,
        kafka: Mapping[str, str],
        key: str,
        standby: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = Driver(secrets.token_hex(8), socket.gethostname(), os.getpid())
        self.replaced_by: Driver | None = None
        """The driver that has taken this one's place."""
        self._topic = topic
        self._kafka = kafka
        self._key = key
        self._standby = standby
        self._clock_s = clock_s
        self._signed_s: dict[int, float] = {}  # when each sign was sent that is not yet read
        self._confirmed_s = -LEASE_S
        self._number = 0
        self._trouble = Trouble()
        self._thread = BackgroundThread("leadership", self._keep, _RETRY_S, self._report)

    def acquire(self, stop: Event) -> bool:
        """Become the leader. False if `stop` is set before.

        A leader that has released its claim is replaced at once, one without a sign of life after LEASE_S of watching.
        Raises LeadershipError if a leader lives, unless this one stands by.
        """
        try:
            with closing(self._opened()) as claims:
                return self._acquire(claims, stop)
        except (KafkaError, OSError) as error:
            raise self._unknown(error) from error

    def confirm(self) -> None:
        """Raises LeadershipError unless this driver leads now, as the topic says, or if nobody can say it."""
        try:
            with closing(self._opened()) as claims:
                claims.read()
                leader = claims.log.leader
        except (KafkaError, OSError) as error:
            raise self._unknown(error) from error
        if leader != self.driver:
            raise LeadershipError(f"{leader or 'no driver'} leads the checkpoint {self._key} now, not this one")

    def start(self) -> None:
        """Begin to give signs of life."""
        self._thread.start()

    def stop(self) -> None:
        """Give the leadership up, so that the next driver needn't wait. Nothing may be decided any more."""
        self._thread.stop(_STOP_TIMEOUT_S)
        if self.replaced_by is not None or self._thread.is_alive():
            return
        try:
            with closing(self._opened()) as claims:
                claims.read()
                if claims.log.leader == self.driver:
                    claims.write(Release(self.driver, claims.log.epoch))
        except Exception as error:  # any error: the next driver then waits for LEASE_S
            log.warning("the claim on %s can't be released: %s", self._key, error_line(error))

    def may_decide(self) -> bool:
        """Whether it is certain that this driver leads: it has read a sign that it gave within LEASE_S.

        Raises LeadershipError once another driver has taken its place.
        """
        if self.replaced_by is not None:
            raise LeadershipError(
                f"{self.replaced_by} has taken over the checkpoint {self._key}, because this one gave no sign of life"
                f" for {LEASE_S:g} s; it goes on there"
            )
        return self._clock_s() - self._confirmed_s < LEASE_S

    def _unknown(self, error: Exception) -> LeadershipError:
        return LeadershipError(
            f"topic {self._topic} can't be read or written ({error_line(error)}), so nobody knows whether another"
            " driver works on the checkpoint; see that the topic is there and this login may use it"
        )

    def _opened(self) -> ClaimsTopic:
        return ClaimsTopic(self._topic, self._kafka, self._key.encode())

    def _acquire(self, claims: ClaimsTopic, stop: Event) -> bool:
        claims.read()
        watched, since_s, said = claims.log.records, self._clock_s(), False
        while not stop.is_set():
            claims.read()
            leader = claims.log.leader
            if leader == self.driver:
                log.info("leads %s from claim %d on", self._key, claims.log.epoch)
                return True
            if leader is None:
                claims.write(Claim(self.driver, claims.log.epoch))
            elif claims.log.records != watched:
                if not self._standby:
                    raise LeadershipError(
                        f"the checkpoint {self._key} is in use by {leader}; stop that one with SIGTERM first, or start"
                        " this one with --standby to take over when it ends"
                    )
                if not said:
                    log.info("stands by: %s leads %s", leader, self._key)
                watched, since_s, said = claims.log.records, self._clock_s(), True
            elif self._clock_s() - since_s >= LEASE_S:
                log.warning("%s, which leads %s, gives no sign of life; taking over", leader, self._key)
                claims.write(Claim(self.driver, claims.log.epoch))
            else:
                stop.wait(_LOOK_S)
        return False

    def _keep(self) -> None:
        """Give signs and read them until another driver leads; the next call reads the topic from its beginning."""
        with closing(self._opened()) as claims:
            next_s = self._clock_s()
            while not self._thread.stopped.is_set():
                claims.read()
                leader = claims.log.leader
                if leader is not None and leader != self.driver:
                    self.replaced_by = leader
                    self._thread.stopped.set()
                elif leader is None:  # the topic was deleted and is there again
                    claims.write(Claim(self.driver, claims.log.epoch))
                else:
                    self._note_signs(claims.log.last_number)
                    if self._clock_s() >= next_s:
                        next_s = self._clock_s() + SIGN_S
                        self._sign(claims)
                    self._thread.stopped.wait(_LOOK_S)
                self._trouble.ends()

    def _sign(self, claims: ClaimsTopic) -> None:
        self._number += 1
        self._signed_s[self._number] = self._clock_s()
        claims.write(Sign(self.driver, claims.log.epoch, self._number))

    def _note_signs(self, last_number: int) -> None:
        """A sign was read: at the time it was sent this driver led, and it does until LEASE_S later."""
        signed_s = self._signed_s.get(last_number)
        if signed_s is not None:
            self._confirmed_s = signed_s
            self._signed_s = {number: sent_s for number, sent_s in self._signed_s.items() if number > last_number}

    def _report(self, error: Exception) -> None:
        if self._trouble.is_new(error):
            unexpected = not isinstance(error, KafkaError | OSError)
            log.error("no sign of life can be given: %s; trying again", self._trouble.line, exc_info=unexpected)
