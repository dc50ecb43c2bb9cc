"""Waits until an operator's hold or release is in force at the gateways, as the job and they say in Kafka."""

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import msgspec
from kafka.errors import KafkaError

from sluice.configs.settings import Settings
from sluice.kafka_io.client import OF_COMMANDS
from sluice.kafka_io.errors import KafkaUnavailableError, TopicLostError
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import FROM_NOW_MS, TopicReader
from sluice.process.clock import now_ms
from sluice.process.format import error_line, moment
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Overrides
from sluice.state.contract.instances import gateway_name, server_text
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.limits import OPERATOR, overrides_key
from sluice.state.shares.alive import HEARTBEAT_MS, MISSED_MS, heartbeat_in
from sluice.state.troubles import STALE_MS
from sluice_toolbox.errors import NotInForceError

_WAIT_MS = 100
_KEY = overrides_key(OPERATOR)
_MOST_NAMES = 5

_UNAVAILABLE = (KafkaError, KafkaUnavailableError, TopicLostError, OSError)


_SAID = msgspec.json.Decoder(Overrides)


class InForceWatch:
    """Reads from now on which commands the job has taken, and which are in force at whom; begin before the command."""

    def __init__(self, settings: Settings) -> None:
        self._sums = settings.topics.sums
        self._limits = settings.topics.limits
        self._kafka = settings.kafka | OF_COMMANDS
        self._stack = ExitStack()
        self._readers: tuple[TopicReader, TopicReader] | None = None
        self._trouble: Exception | None = None
        self._taken = 0
        self._later = ""
        self._heard: dict[str, DecidedHeartbeat] = {}

    def __enter__(self) -> Self:
        """Fix where reading begins. Without Kafka the command is written all the same."""
        try:
            limits = self._stack.enter_context(TopicReader(self._kafka, self._limits, FROM_NOW_MS))
            sums = self._stack.enter_context(TopicReader(self._kafka, self._sums, FROM_NOW_MS, fenced=True))
            for reader in (limits, sums):
                reader.unread()
            self._readers = limits, sums
        except _UNAVAILABLE as error:
            self._trouble = error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def wait_for(self, command: int, timeout_s: float, *, holds: bool) -> str:
        """Wait until this command, which holds a client or releases one, is in force. Returns where.

        Raises NotInForceError with what is missing.
        """
        self._later = "it takes effect when the job is back" + (", a hold for all of its time" if holds else "")
        try:
            if self._readers is None:
                raise self._trouble or KafkaUnavailableError("no broker")
            return self._wait_for(*self._readers, command, timeout_s)
        except _UNAVAILABLE as error:
            raise NotInForceError(
                f"written, but Kafka doesn't say whether it is in force ({error_line(error)}); the job takes it when it"
                " reads the table"
            ) from error

    def _wait_for(self, limits: TopicReader, sums: TopicReader, command: int, timeout_s: float) -> str:
        began_s = time.monotonic()
        settled_s = began_s + MISSED_MS / 1000  # by then each gateway that is alive has been heard of
        while (now_s := time.monotonic()) < began_s + timeout_s:
            for reader in (limits, sums):
                for _, record in reader.read(_WAIT_MS):
                    is_first = not self._heard
                    if self._take(record) and is_first:
                        settled_s = max(settled_s, now_s + HEARTBEAT_MS / 1000)
            if now_s >= settled_s and self._heard and not self._missing(command) and self._taken >= command:
                return self._where(command)
        if self._taken < command:
            if not timeout_s:
                raise NotInForceError("written, and not waited for (--timeout 0); `sluice quotas history` has it")
            raise NotInForceError(f"written, but no job has taken it: {self._silence(timeout_s)}")
        if not self._heard:
            raise NotInForceError(f"the job has taken it, but no gateway was heard of for {timeout_s:g} s")
        names = sorted(map(self._text, self._missing(command)))
        if not names:  # the first one was heard so late that others may follow
            return self._where(command)
        others = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise NotInForceError(
            f"in force at {self._where(command)} only: not at {', '.join(names[:_MOST_NAMES])}{others}"
            f" after {timeout_s:g} s; `sluice doctor` says what is wrong there"
        )

    def _take(self, record: FetchedRecord) -> bool:
        """Note what a record says; True for a heartbeat. One that can't be read says nothing."""
        if (heartbeat := heartbeat_in(record.value)) is not None:
            self._heard[heartbeat.instance] = heartbeat
            return True
        if record.key == _KEY and record.value is not None:
            with suppress(*UNREADABLE):
                self._taken = _SAID.decode(record.value).command
        return False

    def _missing(self, command: int) -> list[str]:
        return [instance for instance, heard in self._heard.items() if heard.command < command]

    def _text(self, instance: str) -> str:
        return server_text(instance) if self._heard[instance].is_broker else gateway_name(instance)

    def _where(self, command: int) -> str:
        """The gateways at which a command is in force, of all that were heard of."""
        counts: Mapping[str, list[bool]] = {
            "brokers": [heard.command >= command for heard in self._heard.values() if heard.is_broker],
            "other gateways": [heard.command >= command for heard in self._heard.values() if not heard.is_broker],
        }
        return " and ".join(f"{sum(are)} of {len(are)} {name}" for name, are in counts.items() if are)

    def _silence(self, timeout_s: float) -> str:
        if self._heard:
            return "one answers, but reads another table, or can't read this one; `sluice doctor` says more"
        since_ms = 0
        with suppress(*_UNAVAILABLE), TopicReader(self._kafka, self._sums) as reader:
            reader.skip_to_last(dict.fromkeys(reader.partitions(), 1))
            for _, record in reader.read_to_end():
                since_ms = max(since_ms, record.timestamp_ms)
        if now_ms() - since_ms < STALE_MS:
            return f"one answered a moment ago, and took nothing in {timeout_s:g} s; `sluice doctor` says more"
        since = f"none answers since {moment(since_ms)} UTC" if since_ms else "none answers"
        return f"{since}; {self._later}; see `sluice doctor`"
