"""Troubles for viewers outside of the job, which may be dead: by the ends of topics, and in the job's own words."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from threading import Event
from urllib.request import ProxyHandler, build_opener

from kafka.errors import KafkaError
from msgspec import structs

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.limits import LimitsView
from sluice.state.troubles import MAX_SKEW_MS, BrokersSeen, Facts, Trouble, in_order, is_stale, troubles_of
from sluice_insight.live import LiveModel
from sluice_reading.brokers_seen import silent_servers
from sluice_reading.job_probe import NO_ANSWER, JobProbe
from sluice_reading.newest_records import NewestRecords
from sluice_reading.times import duration
from sluice_reading.troubles import is_doubtful

LOOK_S = 3.0
"""Interval between two polls."""

_SERVERS_EVERY = 10
"""Polls to one of the addresses of bootstrap.servers."""


class TroublesNow:
    """Polls in the background what a viewer can't see in the decisions; `first` is set after a poll without doubt.

    `is_locked` says whether a process has the lock of the job's checkpoint. `limits` is None where the viewer has no
    reader of the limits topic of its own: then this reads the overrides. `tables` has why a table can't be read.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        topics: TopicSettings,
        probe: JobProbe,
        is_locked: Callable[[], bool | None] = lambda: None,
        limits: LimitsView | None = None,
        tables: Callable[[], Mapping[str, str | None]] = dict,
    ) -> None:
        self.first = Event()
        self.is_known = False
        """True once a poll left no doubt; until then an empty list of troubles says nothing."""
        self.limits = limits or LimitsView()
        self.probe = probe
        self._kafka = kafka
        self._topics = topics
        self._is_locked = is_locked
        self._reads_limits = limits is None
        self._tables = tables
        self.job_ahead_ms = 0
        """By how much the job's clock was ahead of this machine's; 0 while that isn't known."""
        self.seen = Facts()
        """The facts that were polled last."""

    def service(self, clock_ms: Callable[[], int]) -> BackgroundService:
        """The service that polls; what it can't read stays unknown, for which other lines have the reason."""
        return BackgroundService(
            "troubles",
            lambda: self._look(clock_ms),
            LOOK_S,
            failure="can't look for what is wrong",
            log=logging.getLogger("sluice.troubles"),
            level=logging.DEBUG,
            stop_timeout_s=1.0,
        )

    def is_stale(self, now_ms: int) -> bool:
        """True while the figures of clients are of then."""
        return is_stale(self.seen.flow, now_ms)

    @property
    def overrides(self) -> Mapping[str, Overrides]:
        """The last records of all deciders."""
        return self.limits.overrides

    def troubles(self, model: LiveModel, now_ms: int) -> list[Trouble]:
        """All that is wrong: by what was polled and the model's heartbeats, then by the job's own words."""
        heard = Facts() if self.is_stale(now_ms) else model.gateways.facts(now_ms)
        beats, capacities = heard.beats, heard.capacities
        facts = replace(self.seen, beats=beats, heard_s=heard.heard_s, capacities=capacities, overrides=self.overrides)
        if all(each.name != "table_unreadable" for each in self.probe.troubles):  # the job reads more tables
            facts = replace(facts, tables=self._tables())
        return in_order([*troubles_of(facts, now_ms), *self._clocks(), *self.probe.troubles])

    def compare_clocks(self, clock_ms: Callable[[], int]) -> None:
        """Ask the job's time, to a second."""
        ahead_ms = 0
        with suppress(*NO_ANSWER, OverflowError, TypeError):  # TypeError: an answer without a date
            with build_opener(ProxyHandler({})).open(f"{self.probe.address}/healthz", timeout=LOOK_S) as answer:
                at = parsedate_to_datetime(answer.headers["Date"])
            ahead_ms = int(at.timestamp() * 1000) - clock_ms()
        self.job_ahead_ms = ahead_ms

    def _clocks(self) -> Iterator[Trouble]:
        """This machine's clock, if it is off, and those that the job names: a place shows one line of each name."""
        if abs(ahead_ms := self.job_ahead_ms) >= MAX_SKEW_MS:
            off = f"{duration(abs(ahead_ms))} {'behind' if ahead_ms > 0 else 'ahead of'}"
            text, effect = f"this machine's clock is {off} the job's", "ages and times here are off by as much"
            own = Trouble("clocks", "warn", text, meanwhile=effect, next="set the clocks by NTP")
            named = next((each for each in self.probe.troubles if each.name == "clocks"), None)
            yield structs.replace(named, text=f"{text} ({effect}), and {named.text}") if named else own

    def _look(self, clock_ms: Callable[[], int]) -> Iterator[None]:
        count = 0
        with (
            NewestRecords(self._kafka, self._topics) as newest,
            TopicReader(self._kafka, self._topics.limits, on_restart=self.limits.begin_again) as limits,
        ):
            try:
                while True:
                    if is_rare := count % _SERVERS_EVERY == 0:
                        self.seen = replace(self.seen, brokers=BrokersSeen(silent_servers(self._kafka)))
                    count += 1
                    self.probe.ask()
                    self.seen = replace(self.seen, job=self.probe.seen(self._is_locked()), looked_ms=clock_ms())
                    if is_rare and self.probe.answers:
                        self.compare_clocks(clock_ms)
                    with suppress(KafkaError):
                        self.seen = replace(self.seen, flow=newest.flow())
                    with suppress(KafkaError):
                        self.seen = replace(self.seen, dead_letters=newest.dead_letters(clock_ms()))
                    if self._reads_limits:
                        with suppress(KafkaError):
                            self._take(limits)
                    if not is_doubtful(self.seen.flow, clock_ms()):
                        self.is_known = True
                        self.first.set()
                    yield
            finally:
                self.first.set()

    def _take(self, limits: TopicReader) -> None:
        for _, record in limits.read_to_end():
            self.limits.take_readable(record.key, record.value)
