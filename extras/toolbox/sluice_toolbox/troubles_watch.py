"""Facts of what is wrong now: gateways, topics, brokers and tables, for `/healthz`, `/readyz` and `/metrics`."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kafka.errors import KafkaError

from sluice.configs.settings import Settings
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS
from sluice.kafka_io.client import connect
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.contract.records import Heartbeat
from sluice.state.errors import SluiceError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.troubles import BrokersSeen, Facts, is_stale
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime.job_parts import JobParts, JobView
from sluice.streaming.runtime.recorded import see_tables
from sluice_reading.brokers_seen import BrokerConfigs, plugins_of, read_broker_configs, read_replicas, silent_servers
from sluice_reading.newest_records import NewestRecords
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.cluster_quotas import ClientQuotasAdmin
from sluice_toolbox.gateway_metrics import GatewayMetrics
from sluice_toolbox.own_login import own_login
from sluice_toolbox.topics_seen import topics_seen
from sluice_toolbox.unwritten import UnwrittenAnswers

_POLL_S = 5.0
"""Interval between two polls of the newest records."""

_BROKERS_EVERY = 6
"""Polls of the records to one of the brokers, which answers many more bytes."""

_TABLES_S = 60.0
"""Interval between two polls of the tables, whose logs are read."""

_PAUSE_S = 30.0
"""Time between two polls from which the process is taken for one that stood still."""


def parts(job: JobView) -> JobParts:
    """The polls, and the metrics of gateways, if somebody can ask for them (entry point of `sluice.job_parts`)."""
    settings = job.settings
    if not settings.health.port:
        return JobParts()
    gateways = GatewayMetrics(job.capacities())
    watch = TroublesWatch(settings, gateways.facts, job.limits)
    return JobParts(services=watch.services(), observers={"gateways": gateways}, facts=watch.facts)


def each_alone(*looks: Callable[[], None]) -> None:
    """Call each; raise the first error once all have looked: what makes one fail is what another one sees."""
    errors = list[Exception]()
    for look in looks:
        try:
            look()
        except (KafkaError, SluiceError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


class TroublesWatch:
    """Polls topics, brokers and tables. `gateways` gives the facts of heartbeats, `limits` the quotas in force."""

    def __init__(
        self,
        settings: Settings,
        gateways: Callable[[int], Facts],
        limits: Callable[[], Iterable[QuotaEntry]],
        clock_ms: Callable[[], int] = now_ms,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._gateways = gateways
        self._limits = limits
        self._clock_ms = clock_ms
        self._polled = Facts()
        self._answers = UnwrittenAnswers(settings, clock_s)
        self._clock_s = clock_s
        self._polled_s = self._since_s = clock_s()  # the last poll, and the first since the process stood still
        self._unreadable: Mapping[str, str | None] | None = None
        self._refused: dict[tuple[str, str], bool] = {}

    def facts(self) -> Facts:
        """The facts of the last poll, and those of heartbeats unless the job reads old ones."""
        polled, at_ms = replace(self._polled, tables=self._unreadable), self._clock_ms()
        if self.is_stale(at_ms):
            return polled
        heard = self._gateways(at_ms)
        heard_s = heard.heard_s if self._clock_s() - self._since_s > heard.heard_s else 0
        return replace(polled, beats=heard.beats, heard_s=heard_s, capacities=heard.capacities, ahead_ms=heard.ahead_ms)

    def note_poll(self) -> None:
        """Note that the process works: one that was suspended has heard no gateway meanwhile, and calls none silent."""
        now_s = self._clock_s()
        if now_s - self._polled_s > _PAUSE_S:
            self._since_s = now_s
        self._polled_s = now_s

    def is_stale(self, now_ms: int) -> bool:
        """True while the job's newest decisions are old."""
        return is_stale(self._polled.flow, now_ms)

    def services(self) -> list[BackgroundService]:
        """The services that poll: storage that hangs stops that of the tables alone."""

        def poll() -> Iterator[None]:
            with NewestRecords(self._settings.kafka, self._settings.topics) as newest:
                for count in itertools.count():
                    self.note_poll()
                    rare = () if count % _BROKERS_EVERY else (self._look_at_brokers, self._look_at_answers)
                    each_alone(partial(self._look_at_flow, newest), partial(self._look_at_letters, newest), *rare)
                    yield

        log, failure = logging.getLogger("sluice.troubles"), "can't look for what is wrong"
        polling = partial(BackgroundService, failure=failure, log=log, level=logging.WARNING)
        tables = polling("tables", self._poll_tables, _TABLES_S, stop_timeout_s=0.0)
        return [polling("troubles", poll, _POLL_S), tables]

    def _look_at_flow(self, newest: NewestRecords) -> None:
        self._polled = replace(self._polled, flow=newest.flow())

    def _look_at_letters(self, newest: NewestRecords) -> None:
        self._polled = replace(self._polled, dead_letters=newest.dead_letters(self._clock_ms()))

    def _look_at_brokers(self) -> None:
        """Ask brokers what this login may know; what it may not stays unknown."""
        kafka, topics = self._settings.kafka, self._settings.topics
        names = (topics.requests, topics.decisions, topics.dead_letters, topics.limits, topics.waits, topics.sums)
        with suppress(KafkaError, SluiceError, OSError):
            in_shared_storage = "://" in self._settings.enforce.checkpoint
            seen = topics_seen(topics, kafka, self._refused, in_shared_storage=in_shared_storage)
            self._polled = replace(self._polled, topics=seen)
        silent = silent_servers(kafka)
        self._polled = replace(self._polled, brokers=(self._polled.brokers or BrokersSeen())._replace(silent=silent))
        with connect(ClientQuotasAdmin, kafka) as admin:
            with suppress(KafkaError):
                self._polled = replace(self._polled, brokers=read_replicas(admin, names)._replace(silent=silent))
            configs: BrokerConfigs = {}
            with suppress(KafkaError):
                configs = read_broker_configs(admin)
                self._polled = replace(self._polled, plugins=plugins_of(configs, CALLBACK_CLASS, REPORTER_CLASS))
            with suppress(KafkaError, OSError):
                cluster = client_quotas(admin.describe_client_quotas()).entries
                self._polled = replace(self._polled, own_login=self._own_login(cluster, configs))

    def _poll_tables(self) -> None:
        self._unreadable = see_tables(self._settings)[1]

    def _look_at_answers(self) -> None:
        """Compare the checkpoint of the audit query with its topics."""
        with suppress(KafkaError, CheckpointError):
            self._polled = replace(self._polled, unwritten=self._answers.look(self._clock_ms()))

    def _own_login(self, cluster: Iterable[QuotaEntry], configs: BrokerConfigs) -> tuple[str, str]:
        beats: Mapping[str, Heartbeat] = self._gateways(self._clock_ms()).beats or {}
        return own_login(self._settings.kafka, self._limits(), cluster, configs, CALLBACK_CLASS, beats).limited
