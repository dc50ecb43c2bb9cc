"""Elastic quotas in the job: the loads in heartbeats decide how far limits give way; table `elastic` keeps it."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import msgspec
from deltalake.exceptions import DeltaError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService, LastError
from sluice.process.clock import now_ms
from sluice.sinks.tables.elastic import ElasticTable
from sluice.state.contract.records import BrokerFactor, ElasticState, Sums
from sluice.state.quotas.elastic import FRESH_MS, ElasticRule, MeasuredLoad
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice.streaming.runtime.client_metrics import label_of

log = logging.getLogger("sluice.elastic")

_LOOK_S = 0.5
_REPEAT_MS = 1_000
"""Time after which a state is published again, so that gateways know that it holds."""

_WRITE_MS = 10_000
"""Interval between two commits to the table."""

_MAX_ROWS = 10_000
"""Most changes that wait for a table that can't be written."""

_HEARTBEAT = b'{"heartbeat":'
"""Beginning of the records of the sums topic that are heartbeats; those with sums are many, and aren't decoded."""

_MAX_BROKERS_BYTES = 512 * 1024
"""Most bytes of the brokers in a state, which has to fit into a Kafka record whatever heartbeats say."""

_MAX_LOGGED = 20
"""Most brokers of a state in the log."""

_MEDIAN_OF = 3
"""Heartbeats whose median counts, unless the load is one of bytes: a pause of Java in one second is no load."""

_SUMS = msgspec.json.Decoder(Sums)


class ElasticWatch(Collector):
    """Decides twice a second, and is the metrics of it. `clock_ms` is the time in epoch milliseconds."""

    def __init__(self, quotas: QuotaWatch, table: ElasticTable, clock_ms: Callable[[], int] = now_ms) -> None:
        self._quotas = quotas
        self._table = table
        self._clock_ms = clock_ms
        self._state: ElasticState | None = None
        self._rule = ElasticRule(clock_ms() // 100)  # numbers grow over restarts: two changes a second at most
        self._heard: dict[str, deque[float]] = {}
        self._loads: dict[str, MeasuredLoad] = {}
        self._brokers_bytes = 0  # in a state that names them all
        self._rows: list[tuple[ElasticState, Mapping[str, MeasuredLoad]]] = []
        self._written_ms = 0
        self._last_error = LastError()

    @property
    def state(self) -> ElasticState | None:
        """The present state; None before the first, and FRESH_MS after the last: gateways hold it no more either."""
        state = self._state
        return state if state is not None and self._clock_ms() - state.at_ms <= FRESH_MS else None

    def collect(self) -> Iterator[Metric]:
        """The present metrics."""
        return elastic_metrics(self.state)

    def service(self, topics: TopicSettings, kafka: Mapping[str, str]) -> BackgroundService:
        """The service that reads heartbeats and decides."""

        def look() -> Iterator[None]:
            with TopicReader(kafka, topics.sums, since_ms=self._clock_ms(), fenced=True) as reader:
                try:
                    while True:
                        for _, record in reader.read_to_end():
                            self.on_record(record.value, self._clock_ms())
                        self.decide(self._clock_ms())
                        yield
                finally:
                    self.end(self._clock_ms())

        return BackgroundService("elastic", look, _LOOK_S, failure="loads can't be read", log=log)

    def on_record(self, value: bytes | None, arrived_ms: int) -> None:
        """Take the load out of a record of the sums topic, if it is a heartbeat. Clocks may differ by FRESH_MS."""
        if value is None or not value.startswith(_HEARTBEAT):
            return
        try:
            heartbeat = _SUMS.decode(value).heartbeat
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if heartbeat is None or heartbeat.load is None:
            return
        load, reason = heartbeat.load
        name = f"{_name_of(heartbeat.instance)}: {reason}"
        if heartbeat.instance not in self._loads:
            named_bytes = _bytes_of(heartbeat.instance, name)
            if self._brokers_bytes + named_bytes > _MAX_BROKERS_BYTES:
                return
            self._brokers_bytes += named_bytes
        heard = self._heard.setdefault(heartbeat.instance, deque(maxlen=_MEDIAN_OF))
        heard.append(load)
        at_ms = min(heartbeat.timestamp_ms, arrived_ms)
        load = load if reason.startswith("bytes") else median(heard)
        self._loads[heartbeat.instance] = MeasuredLoad(load, name, at_ms)

    def decide(self, at_ms: int) -> None:
        """Decide from the loads so far, and keep what has changed."""
        self._loads = {name: each for name, each in self._loads.items() if at_ms - each.at_ms <= FRESH_MS}
        self._heard = {name: each for name, each in self._heard.items() if name in self._loads}
        self._brokers_bytes = sum(_bytes_of(name, each.reason) for name, each in self._loads.items())
        state, before = self._rule.decide(self._loads, self._quotas.quotas.most_lend(), at_ms), self._state
        is_new = before is None or state.number != before.number
        if before is None or is_new or abs(at_ms - before.at_ms) >= _REPEAT_MS:  # a clock may be set back
            self._state = state
        if is_new:
            log.info("elastic state %d: %s", state.number, _text(state))
            self._rows = [*self._rows, (state, self._loads)][-_MAX_ROWS:]
        if self._rows and abs(at_ms - self._written_ms) >= _WRITE_MS:
            self._write(at_ms)

    def end(self, at_ms: int) -> None:
        """Let limits be the quotas, and keep that: a what-if takes the last state in the table for the present one."""
        before, self._state = self._state, None
        if before is not None and not before.is_neutral:
            self._rows.append((ElasticState(before.number, at_ms), {}))
        if self._rows:
            self._write(at_ms)

    def _write(self, at_ms: int) -> None:
        self._written_ms = at_ms
        try:
            self._table.append(self._rows)
            self._rows = []
            self._last_error.ends()
        except (DeltaError, OSError) as error:
            if self._last_error.is_new(error):
                log.error("elastic states can't be written: %s; trying again", self._last_error.line)


def elastic_metrics(state: ElasticState | None) -> Iterator[Metric]:
    """Metrics of a state by which limits give way; None if they don't."""
    text = "Multiple of the quotas that is lent, up to ceilings; 1 lends nothing"
    yield GaugeMetricFamily("sluice_cluster_lend", text, value=1.0 if state is None else state.lend)
    text = "Part of its shares that a tightened broker lets through"
    factors = GaugeMetricFamily("sluice_broker_factor", text, labels=("gateway",))
    of_gateways = {_name_of(each.instance): each.factor for each in state.brokers} if state is not None else {}
    for gateway, factor in of_gateways.items():
        factors.add_metric((label_of(gateway),), factor)
    yield factors


def _bytes_of(instance: str, reason: str) -> int:
    return len(msgspec.json.encode(BrokerFactor(instance, 0.001, reason)))


def _name_of(instance: str) -> str:
    """The name of a gateway, whose instance has a random part after it.

    >>> _name_of("broker-2-1f"), _name_of("broker")
    ('broker-2', 'broker')
    """
    return instance.rpartition("-")[0] or instance


def _text(state: ElasticState) -> str:
    """The state in words.

    >>> _text(ElasticState(7, at_ms=0)), _text(ElasticState(8, at_ms=0, lend=1.5, reason="load 0.20: ..."))
    ('all limits are the quotas', 'load 0.20: ...')
    """
    tight = [f"{each.reason}: {each.factor:.2f} of its shares" for each in state.brokers[:_MAX_LOGGED]]
    if len(state.brokers) > _MAX_LOGGED:
        tight.append(f"{len(state.brokers) - _MAX_LOGGED} more")
    return "; ".join([*tight, *([state.reason] if state.reason else [])]) or "all limits are the quotas"
